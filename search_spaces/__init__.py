"""The knob catalogue: what can be tuned, within which bounds, and why. Imports nothing of ours."""

from search_spaces.catalogue import CATALOGUE, defaults, preset, preset_names, preset_summary
from search_spaces.constraints import Facts, infeasible
from search_spaces.knob import Knob, KnobValue

__all__ = [
    "CATALOGUE",
    "Facts",
    "Knob",
    "KnobValue",
    "defaults",
    "infeasible",
    "preset",
    "preset_names",
    "preset_summary",
]
