"""Figures as text, the same in every renderer."""

import math

from autotune.analysis.wording import quantity
from autotune.measurement.estimate import Ratio

MIB = 2**20
UNKNOWN = "not distinguishable from 1"
_WORTH_A_FIGURE = 1.01
"""Lower bound of a vague speed-up below which it says nothing."""


def times(value: float) -> str:
    """Return for example '1.14x'."""
    return f"{value:.2f}x"


def bounds_text(ratio: Ratio) -> str:
    """Return for example '1.10 to 1.19'."""
    return f"{ratio.low:.2f} to {ratio.high:.2f}"


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio with its 95 % interval; one whose interval contains 1 has no figure."""
    if not math.isfinite(ratio.high):
        return f"{times(ratio.value)}, once"
    if ratio.low == ratio.high:
        return times(ratio.value)
    if not ratio.distinguishable:
        return f"{UNKNOWN} ({bounds_text(ratio)})"
    return f"{times(ratio.value)} ({bounds_text(ratio)})"


def short_ratio(ratio: Ratio) -> str:
    """Return a ratio for a narrow column: of one that is not distinguishable from 1 the bounds."""
    if not ratio.distinguishable and ratio.low < ratio.high and math.isfinite(ratio.high):
        return f"? ({bounds_text(ratio)})"
    return ratio_text(ratio)


def hardly_a_gain(ratio: Ratio) -> bool:
    """Return whether a speed-up is too vague, and its lower bound too low, for a figure of it."""
    return ratio.vague and ratio.low < _WORTH_A_FIGURE


def range_text(rates: tuple[float, float], unit: str) -> str:
    """Return the range of some rates, as '242 to 598 samples/s'."""
    low, high = map(quantity, rates)
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def hours(value: float) -> str:
    """Return hours with their meaningful digits, as '21 h' or '0.4 h'."""
    return f"{value:,.0f} h" if abs(value) >= 10 else f"{value:.2g} h"


def money(value: float) -> str:
    """Return an amount without a currency, as '1,234' or '0.56'."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
