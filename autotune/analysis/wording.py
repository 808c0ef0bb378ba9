"""Figures and configurations in words, the same in verdict, progress, notes and report. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from enum import Enum
from typing import Any

from autotune.measurement.estimate import Ratio
from search_spaces.knob import changed_knobs, written
from storage import AttemptState

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_ENDS = {str(AttemptState.COMPLETE): "complete", str(AttemptState.PRUNED): "ended early"}
"""Usual ends of attempts in words."""
_NOISE_DIGITS = 9
"""Decimals beyond which a figure holds nothing but the errors of its arithmetic."""


@dataclass(frozen=True)
class Terms:
    """Words for what a study compares.

    Attributes:
        better, best, worse: adjectives of configurations.
        of_energy: True if rates are work per joule: the energy of a sample is what texts say.
    """

    better: str
    best: str
    worse: str
    of_energy: bool = False

    @classmethod
    def of(cls, unit: str) -> "Terms":
        """Return the words for rates of this unit, such as samples/s."""
        return _ENERGY if unit.endswith("/J") else SPEED

    def said(self, ratio: Ratio) -> Ratio:
        """Return a ratio of rates as a text says it: of energies, where that is the objective."""
        return ratio.inverse if self.of_energy else ratio


SPEED = Terms("faster", "fastest", "slower")
_ENERGY = Terms("more efficient", "most efficient", "less efficient", of_energy=True)


class Rounding(Enum):
    """Direction in which a figure is rounded."""

    NEAREST = ROUND_HALF_EVEN
    DOWN = ROUND_FLOOR
    UP = ROUND_CEILING


def fixed(value: float, digits: int, rounding: Rounding = Rounding.NEAREST) -> str:
    """Return a figure with so many decimals."""
    if not math.isfinite(value):
        return str(value)
    exact = Decimal(repr(round(value, _NOISE_DIGITS)))
    rounded = exact.quantize(Decimal(1).scaleb(-digits), rounding.value)
    return f"{rounded + 0:,}"  # which takes the sign from a zero


def quantity(value: float) -> str:
    """Return a rate with its meaningful digits, and without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{Decimal(f'{round(value, _NOISE_DIGITS):.3g}'):f}"


def share_text(share: float, finest: float) -> str:
    """Return a share in per cent, as '1.5%'; one below the finest that is told, as 'less than 0.1%'."""
    digits = round(-math.log10(100 * finest))
    return f"less than {finest:.{digits}%}" if share < finest else f"{share:.{digits}%}"


def difference(knobs: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return what differs from another configuration, as 'micro_batch=32, precision=bf16'."""
    changed = changed_knobs(knobs, other)
    return ", ".join(f"{name}={written(value)}" for name, value in changed.items()) or "no change"


def counted(number: int, noun: str) -> str:
    """Return for example '1 trial' or '3 trials'."""
    ending = "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}{ending}"


def duration(seconds: float, rounding: Rounding = Rounding.NEAREST) -> str:
    """Return for example '45 s', '12 min', '3.5 h' or '4.2 days'."""
    if seconds < 100:
        return f"{fixed(max(seconds, 0.0), 0, rounding)} s"
    if seconds < 100 * _MINUTE:
        return f"{fixed(seconds / _MINUTE, 0, rounding)} min"
    if seconds < 2 * _DAY:
        return f"{fixed(seconds / _HOUR, 1, rounding)} h"
    return f"{fixed(seconds / _DAY, 1, rounding)} days"


def too_slow(state: AttemptState) -> str:
    """Return advice on a run that hung, in a sentence that begins with a space.

    It is empty for any other end.
    """
    if state != AttemptState.HANG:
        return ""
    return (
        " If it was at work all the same, as in an evaluation or while it wrote a checkpoint between "
        "two steps, raise `measurement.step_timeout` (before its first step, as it compiles or loads "
        "data, `measurement.startup_timeout`) in the study file; autotune start then goes on."
    )


def end_in_words(state: str) -> str:
    """Return the state in which an attempt ended, as texts name it."""
    return _ENDS.get(state, str(state))
