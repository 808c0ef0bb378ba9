"""The search spaces that have a name, in words."""

from collections.abc import Iterator

from search_spaces import preset, preset_names, preset_summary
from search_spaces.knob import written


def presets_listed() -> Iterator[str]:
    """Yield every preset with its purpose and the values of its knobs, a line each."""
    for name in preset_names():
        yield f"{name}: {preset_summary(name)}"
        for knob, values in preset(name).items():
            yield f"  {knob}: {', '.join(map(written, values))}"
