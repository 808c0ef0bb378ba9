"""Knobs that may change the numbers of a training, and the reference they are compared with."""

from collections.abc import Collection
from typing import Any

from search_spaces.catalogue import CATALOGUE, defaults
from search_spaces.constraints import conflicts_in
from search_spaces.knob import Knobs


def own_knobs(knobs: Knobs, harmless: Collection[str]) -> list[str]:
    """Return the study's own knobs that may change what is computed.

    Args:
        harmless: names of those that cannot.
    """
    return [name for name in knobs if name not in CATALOGUE and name not in harmless]


def touched(knobs: Knobs, baseline: Knobs, harmless: Collection[str] = frozenset()) -> list[str]:
    """Return knobs that may change the numbers of training, against baseline and defaults.

    Args:
        harmless: names of the study's own knobs that cannot; any other of them may.
    """
    own = own_knobs(baseline, harmless)
    known = [
        name
        for name, knob in CATALOGUE.items()
        if knob.numerics and knobs[name] not in (baseline[name], knob.default)
    ]
    return known + [name for name in own if knobs[name] != baseline[name]]


def reference_knobs(checked: Knobs, baseline: Knobs) -> dict[str, Any]:
    """Return the baseline in fp32, with the samples per step of the checked configuration.

    A knob of the baseline that does not go with that has its default.
    """
    plain = defaults()
    formats = {name: plain[name] for name, knob in CATALOGUE.items() if knob.number_format}
    fixed = {**formats, **trained_knobs(checked)}
    knobs = {**baseline, **fixed}
    known = set(conflicts_in(baseline))  # on another device than its own
    while new := set(conflicts_in(knobs)) - known:
        pairs = {name for conflict in new for name in conflict.pair}
        loose = {name for name in pairs - set(fixed) if knobs[name] != plain[name]}
        if not loose:
            break
        knobs |= {name: plain[name] for name in loose}
    return knobs


def trained_knobs(knobs: Knobs) -> dict[str, Any]:
    """Return the knobs that change on purpose what is trained, with their values."""
    return {name: knobs[name] for name, knob in CATALOGUE.items() if knob.schedule}
