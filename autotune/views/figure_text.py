"""Figures as text, the same in every renderer.

Bounds of an interval are rounded outwards: no text claims more than was measured.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from autotune.analysis.saving import Cost, EnergySaving, Saving
from autotune.analysis.verdict import Numerics
from autotune.analysis.wording import (
    SPEED,
    Rounding,
    Terms,
    duration,
    fixed,
    quantity,
    share_text,
)
from autotune.measurement.estimate import Ratio
from autotune.measurement.policy import GATE

MIB = 2**20
CI = "95 % CI"
_LEAST_GAIN = 0.001
"""Gain below which its figure tells nothing."""
_SMALL = 0.01
"""Difference from 1 below which a ratio has a decimal more."""
_MORE_DECIMALS = 2
"""Most decimals that a bound has more where it would else be told as no difference."""
_WIDEST = 100
"""Factor between the bounds of an interval from which on they tell nothing."""
_FINEST_LOSS = 0.0001
"""Least distance of losses that is told by a figure."""
UNKNOWN = "not distinguishable from 1"
ASSUMED = "assumed: `objective.expected_job_hours` is at its default"

Form = Callable[[float, Rounding], str]
"""Text of a figure, rounded in a direction."""


class Known(Enum):
    """Degree to which a ratio is known, by its interval."""

    EXACTLY = "exactly"
    """The baseline over itself."""
    ONCE = "once"
    """Seen once, without an interval."""
    UNKNOWN = "unknown"
    """The interval contains 1."""
    ROUGHLY = "roughly"
    """Not 1, but the interval is wide."""
    WELL = "well"

    @classmethod
    def of(cls, ratio: Ratio) -> "Known":
        """Return how well this ratio is known."""
        if not math.isfinite(ratio.high):
            return cls.ONCE
        if ratio.low == ratio.high:
            return cls.EXACTLY
        if not ratio.distinguishable:
            return cls.UNKNOWN
        return cls.ROUGHLY if ratio.vague else cls.WELL


def times(value: float, rounding: Rounding = Rounding.NEAREST) -> str:
    """Return for example '1.14x'."""
    return f"{fixed(value, 2, rounding)}x"


def loss_text(found: Numerics) -> str:
    """Return for example 'loss over the last quarter of 32 steps differs from fp32 by 0.01%'."""
    steps = f" of {found.steps} steps" if found.steps else ""
    apart = share_text(found.loss_distance or 0.0, _FINEST_LOSS)
    text = f"loss over the last quarter{steps} differs from fp32 by {apart}"
    if found.share_of_progress is None:
        return text
    fallen = share_text(abs(found.share_of_progress), _LEAST_GAIN)
    return f"{text}, which is {fallen} of its fall (limit {GATE.loss_margin:.0%})"


def percent(value: float, rounding: Rounding = Rounding.NEAREST) -> str:
    """Return a share as a whole number of per cent, without the sign."""
    return fixed(100 * value, 0, rounding)


def percent_form(share: float) -> Form:
    """Return the form of shares of this size in per cent: a small one has a decimal."""
    return functools.partial(_percent, 1 if abs(share) < _SMALL else 0)


def _percent(digits: int, value: float, rounding: Rounding = Rounding.NEAREST) -> str:
    return _apart(100 * value, 0.0, digits, rounding)


def _fixed(digits: int, value: float, rounding: Rounding = Rounding.NEAREST) -> str:
    return _apart(value, 1.0, digits, rounding)


def _apart(value: float, nothing: float, digits: int, rounding: Rounding) -> str:
    """Return a figure that is not told as the one for no difference, if need be with more decimals.

    An interval that excludes `nothing` would else seem to contain it, as bounds are rounded outwards.
    """
    for more in range(digits, digits + _MORE_DECIMALS):
        text = fixed(value, more, rounding)
        if value == nothing or text != fixed(nothing, more):
            return text
    return fixed(value, digits + _MORE_DECIMALS, rounding)


def signed_percent(ratio: float, rounding: Rounding = Rounding.NEAREST) -> str:
    """Return how far a ratio is from 1, as '+1.5%'."""
    share = 100 * (ratio - 1)
    return f"{'+' if share >= 0 else ''}{fixed(share, 1, rounding)}%"


def expected_text(gain: float) -> str:
    """Return the relative gain that a trial is expected to bring, as '1.5%' or 'less than 0.1%'."""
    return share_text(gain, _LEAST_GAIN)


def hours(value: float, rounding: Rounding = Rounding.NEAREST) -> str:
    """Return hours with two digits or more, as '121 h', '2.5 h' or '0.40 h'."""
    return f"{_two_digits(value, rounding)} h"


def kilowatt_hours(value: float, rounding: Rounding = Rounding.NEAREST) -> str:
    """Return an energy with two digits or more, as '121 kWh' or '2.5 kWh'."""
    return f"{_two_digits(value, rounding)} kWh"


def _two_digits(value: float, rounding: Rounding) -> str:
    size = abs(value)
    digits = 1 - math.floor(math.log10(size)) if size else 0
    return fixed(value, max(0, digits), rounding)


def money(value: float, rounding: Rounding = Rounding.NEAREST) -> str:
    """Return an amount without a currency, as '1,234' or '0.56'."""
    return fixed(value, 0 if abs(value) >= 100 else 2, rounding)


def _digits(ratio: Ratio) -> int:
    """Return the decimals of a ratio: those of a small difference that is sure show it."""
    small = abs(ratio.value - 1) < _SMALL
    return 3 if small and ratio.distinguishable else 2


def factor_text(ratio: Ratio) -> str:
    """Return a ratio without its interval, as '1.14x' or '1.004x'."""
    return f"{fixed(ratio.value, _digits(ratio))}x"


def bounds_text(ratio: Ratio, form: Form | None = None) -> str:
    """Return both bounds of an interval, rounded outwards, as '1.10 to 1.19'.

    Args:
        form: of each; None: with the decimals of the ratio.
    """
    form = form or functools.partial(_fixed, _digits(ratio))
    return f"{form(ratio.low, Rounding.DOWN)} to {form(ratio.high, Rounding.UP)}"


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio with its interval; one whose interval contains 1 has no figure."""
    match Known.of(ratio):
        case Known.EXACTLY:
            return times(ratio.value)
        case Known.ONCE:
            return f"{times(ratio.value)}, once"
        case Known.UNKNOWN:
            return UNKNOWN if _is_too_wide(ratio) else f"{UNKNOWN} ({bounds_text(ratio)})"
        case _:
            return f"{factor_text(ratio)} ({bounds_text(ratio)})"


def bounds_of_interval(ratio: Ratio) -> str:
    """Return both bounds for a sentence; words where they are too far apart to tell anything."""
    return "too wide to tell anything" if _is_too_wide(ratio) else bounds_text(ratio)


def short_ratio(ratio: Ratio) -> str:
    """Return a ratio for a narrow column: of one that is not distinguishable from 1 the bounds."""
    if Known.of(ratio) is not Known.UNKNOWN:
        return ratio_text(ratio)
    return "?" if _is_too_wide(ratio) else f"? ({bounds_text(ratio)})"


def _is_too_wide(ratio: Ratio) -> bool:
    """Return whether the bounds of an interval are too far apart to tell anything."""
    return ratio.high >= _WIDEST * ratio.low


def said_ratio(ratio: Ratio, terms: Terms) -> str:
    """Return a ratio of rates with its interval, by itself: as one of energies where those count."""
    return f"{ratio_text(terms.said(ratio))}{' the energy per sample' if terms.of_energy else ''}"


def over_yours(ratio: Ratio, terms: Terms) -> str:
    """Return a ratio over the baseline for a line, as '1.20x (1.02 to 1.42) over yours'."""
    text = short_ratio(terms.said(ratio))
    return f"{text} the energy per sample of yours" if terms.of_energy else f"{text} over yours"


def claim(ratio: Ratio, other: str = "yours", terms: Terms = SPEED) -> str:
    """Return a gain over another configuration, as '1.20x yours (1.02 to 1.42, 95 % CI)'.

    Where energy counts it is '0.83x the energy per sample of yours (...)'.
    """
    said, whose = terms.said(ratio), other
    if terms.of_energy:
        whose = f"the energy per sample of {other}"
    match Known.of(ratio):
        case Known.EXACTLY:
            return f"{times(said.value)} {whose}"
        case Known.ONCE:
            return f"{times(said.value)} {whose}, seen once"
        case Known.UNKNOWN:
            return f"not distinguishable from {whose} ({bounds_text(said)}, {CI})"
        case _:
            return f"{factor_text(said)} {whose} ({bounds_text(said)}, {CI})"


def least(ratio: Ratio, terms: Terms = SPEED) -> str:
    """Return what is sure of a gain that is known roughly; empty if it is known well."""
    if Known.of(ratio) is not Known.ROUGHLY or not ratio.faster:
        return ""
    bound, sure = times(ratio.low, Rounding.DOWN), "at least {}"
    if terms.of_energy:
        bound, sure = times(terms.said(ratio).high, Rounding.UP), "at most {} the energy"
    if bound == times(1.0):
        return f"That it is {terms.better} is sure, by how much is not."
    return f"The interval is wide: {sure.format(bound)} is sure."


@dataclass(frozen=True)
class LabelledFigure:
    """Figure of savings and cost in words.

    Attributes:
        interval: 95 % confidence interval; empty if it has none.
        note: on what it rests; empty if that needs no words.
    """

    name: str
    figure: str
    interval: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        """All but the name, in a line."""
        interval = f" ({self.interval}, {CI})" if self.interval else ""
        return f"{self.figure}{interval}{f'; {self.note}' if self.note else ''}"


def saving_facts(
    saving: Saving | EnergySaving, cost: Cost, *, assumed: bool
) -> Iterator[LabelledFigure]:
    """Yield what a recommendation saves and what its study cost.

    Args:
        assumed: whether the length of the job is the default.
    """
    job = hours(saving.expected_job_hours)
    note = f"the {job} are {ASSUMED}" if assumed else ""
    if isinstance(saving, EnergySaving):
        energy, whole = saving.kilowatt_hours, kilowatt_hours(saving.whole)
        figure = f"{kilowatt_hours(energy.value)} of the {whole} of a job of {job}"
        yield LabelledFigure("saves", figure, bounds_text(energy, kilowatt_hours), note)
        yield _cost(cost)
        return
    yield LabelledFigure(
        "saves",
        f"{hours(saving.hours.value)} of a job of {job}",
        bounds_text(saving.hours, hours),
        note,
    )
    yield _cost(cost)
    if (paid := saving.payback_seconds) is not None:
        figure = f"{duration(paid.value)} of training"
        yield LabelledFigure("payback", figure, bounds_text(paid, duration))
    if saving.money is not None and cost.money is not None:
        figure = f"{money(saving.money.value)} saved for {money(cost.money)}"
        yield LabelledFigure("money", figure, bounds_text(saving.money, money), note)


def _cost(cost: Cost) -> LabelledFigure:
    spent = f"{duration(cost.seconds)} of runs"
    return LabelledFigure(
        "cost", f"{_two_digits(cost.device_hours, Rounding.NEAREST)} device hours", note=spent
    )


def period_text(start: float, end: float) -> str:
    """Return when something was, as '2026-11-27 14:02 to 14:12 UTC'.

    Args:
        start: seconds since the epoch, as is `end`.
    """
    first, last = (datetime.fromtimestamp(at, UTC) for at in (start, end))
    form = "%H:%M" if first.date() == last.date() else "%Y-%m-%d %H:%M"
    return f"{first:%Y-%m-%d %H:%M} to {last.strftime(form)} UTC"


def range_text(rates: tuple[float, float], unit: str) -> str:
    """Return the range of some rates, as '242 to 598 samples/s'; of energy as '1.5 to 1.6 J/sample'."""
    if Terms.of(unit).of_energy:
        rates, unit = (1 / rates[1], 1 / rates[0]), "J/sample"
    low, high = map(quantity, rates)
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
