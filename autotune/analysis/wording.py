"""Figures and configurations in words, the same in verdict, progress, notes and report. Pure."""

from collections.abc import Mapping
from typing import Any

from search_spaces.knob import written
from storage import AttemptState

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def quantity(value: float) -> str:
    """Return a rate with its meaningful digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def difference(knobs: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return what differs from another configuration, as 'micro_batch=32, precision=bf16'."""
    changed = {name: value for name, value in knobs.items() if other.get(name) != value}
    return ", ".join(f"{name}={written(value)}" for name, value in changed.items()) or "no change"


def counted(number: int, noun: str) -> str:
    """Return for example '1 trial' or '3 trials'."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{ending}"


def duration(seconds: float) -> str:
    """Return for example '45 s', '12 min', '3.5 h' or '4.2 days'."""
    if seconds < 100:
        return f"{max(seconds, 0.0):.0f} s"
    if seconds < 100 * _MINUTE:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        return f"{seconds / _HOUR:.1f} h"
    return f"{seconds / _DAY:.1f} days"


def too_slow(state: AttemptState) -> str:
    """Return advice on a run that hung, in a sentence that begins with a space.

    It is empty for any other end.
    """
    if state != AttemptState.HANG:
        return ""
    return (
        " If it was at work all the same, as in an evaluation or while it wrote a checkpoint between "
        "two steps, raise `measurement.step_deadline` (before its first step, as it compiles or loads "
        "data, `measurement.startup_deadline`) in the study file; autotune start then goes on."
    )
