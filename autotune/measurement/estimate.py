"""Statistics of timed blocks. Pure functions.

Only `scipy.special` is used: `scipy.stats` takes a second to import, for which every command would
wait.
"""

import itertools
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import special

from autotune.measurement.policy import MEASUREMENT

CONFIDENCE = 0.95
_LARGEST_EXPONENT = math.log(sys.float_info.max)


@dataclass(frozen=True)
class Estimate:
    """A rate with its 95 % interval.

    Attributes:
        rate: rate in units per second.
        half_width: half-width of the interval, relative to the rate; infinite for fewer than two
            blocks.
        df: degrees of freedom of Student's t in the interval.
    """

    rate: float
    half_width: float
    blocks: int
    df: float = 1.0

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.rate * (1 - self.half_width)

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.rate * (1 + self.half_width)


def estimate(units: Sequence[float], seconds: Sequence[float]) -> Estimate:
    """Return the rate over all blocks, slow ones included, because a long run pays for them too.

    Neighbouring blocks are correlated, so they count for fewer (see `lag_one`). From ten
    blocks on the interval holds the truth in 92.6 to 97 % of all cases where neighbours correlate
    by up to 0.3, in 88 to 93 % where they do by 0.6; with five, in 84 %.

    Args:
        units: samples or tokens per block, at least one block.
        seconds: wall time per block.
    """
    rates = np.asarray(units, dtype=float) / np.asarray(seconds, dtype=float)
    rate = float(np.sum(units) / np.sum(seconds))
    count = len(rates)
    if count < 2:
        return Estimate(rate, math.inf, count)
    effective = effective_size(rates)
    df = max(effective - 1, min(MEASUREMENT.least_block_df, count - 1))
    spread = float(np.std(rates, ddof=1))
    half_width = student(df) * spread / (rate * math.sqrt(effective))
    return Estimate(rate, half_width, count, df)


def lag_one(runs: Sequence[Sequence[float]]) -> float:
    """Return the correlation of neighbouring values, limited to [0, 0.9].

    Args:
        runs: at least one series, none of them empty, each around a mean of its own.
    """
    products = squares = 0.0
    for run in runs:
        mean = statistics.fmean(run)
        around = [value - mean for value in run]
        products += sum(a * b for a, b in itertools.pairwise(around))
        squares += sum(a * a for a in around)
    if not squares:
        return 0.0
    length = statistics.fmean(map(len, runs))
    likely = unbiased_correlation(products / squares, length)
    return min(MEASUREMENT.most_block_correlation, max(0.0, likely))


def unbiased_correlation(seen: float, length: float) -> float:
    """Return the correlation of neighbouring values without the bias of short series.

    Series underestimate it by (1 + 4 r) / n, because their own mean follows them (Kendall 1954;
    Marriott and Pope 1954 divide the products by n - 1 and have 3 r). That is added.

    Args:
        seen: correlation in the series.
        length: number of values of a series; of several series their mean number.
    """
    return seen + (1 + 4 * seen) / length


def effective_sample_size(values: int, correlation: float) -> float:
    """Return the number of independent values with an equally exact mean.

    It is n (1 - r) / (1 + r), at least 1.
    """
    return max(1.0, values * (1 - correlation) / (1 + correlation))


def effective_size(values: Sequence[float] | np.ndarray) -> float:
    """Return the number of independent values that these count for, at least 1."""
    array = np.asarray(values, dtype=float)
    if len(array) < 3 or np.ptp(array) == 0:
        return float(len(array))
    return effective_sample_size(len(array), lag_one([array.tolist()]))


def theil_sen(values: np.ndarray) -> float:
    """Return the median slope between any two of the values, per place; two at least."""
    first, second = np.triu_indices(len(values), k=1)
    return float(np.median((values[second] - values[first]) / (second - first)))


def steady(seconds_per_step: Sequence[float]) -> bool:
    """Return whether the last ten blocks, or all of five or more, show no drift.

    The drift is what the Theil-Sen slope adds up to over five blocks. It is at most 1 % of the median,
    or at most one standard error of it and 3 %. The error follows from the scatter of neighbours (von
    Neumann 1941), which a drift hardly widens.
    """
    last = np.asarray(seconds_per_step[-MEASUREMENT.drift_blocks :], dtype=float)
    count = len(last)
    if count < MEASUREMENT.steady_blocks:
        return False
    slope = abs(theil_sen(last))
    scatter = math.sqrt(float(np.mean(np.diff(last) ** 2)) / 2)
    error_of_slope = scatter * math.sqrt(12 / (count * (count**2 - 1)))
    per_block = float(np.median(last)) / MEASUREMENT.steady_blocks
    explained = min(
        MEASUREMENT.steady_errors * error_of_slope, MEASUREMENT.most_steady_drift * per_block
    )
    return slope <= max(explained, MEASUREMENT.steady_drift * per_block)


def student(df: float) -> float:
    """Return half the width of Student's central 95 % interval, in standard errors."""
    return float(special.stdtrit(df, (1 + CONFIDENCE) / 2))


@dataclass(frozen=True)
class Ratio:
    """Ratio of two rates, with its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, half_width: float) -> Self:
        """Return a ratio with an interval of this half-width on a logarithmic scale.

        It is without bounds where they are beyond the range of a float.
        """
        factor = math.exp(half_width) if half_width < _LARGEST_EXPONENT else math.inf
        return cls(value, value / factor, value * factor)

    @classmethod
    def from_json(cls, stored: "Mapping[str, float | None] | float") -> Self:
        """Return the ratio that JSON holds, which has null for infinity.

        An earlier version stored some as a number, without the interval.
        """
        if not isinstance(stored, Mapping):
            return cls(stored, 0.0, math.inf)
        ends = (stored[name] for name in ("value", "low", "high"))
        return cls(*(math.inf if end is None else end for end in ends))

    @property
    def inverse(self) -> "Ratio":
        """The ratio the other way round."""
        return Ratio(1 / self.value, 1 / self.high, 1 / self.low if self.low else math.inf)

    @property
    def half_width(self) -> float:
        """Half the interval in logarithms; infinite where it is without bounds."""
        if self.low <= 0 or not math.isfinite(self.high):
            return math.inf
        return math.log(self.high / self.low) / 2

    @property
    def distinguishable(self) -> bool:
        """True if the interval excludes 1."""
        return self.low > 1 or self.high < 1

    @property
    def faster(self) -> bool:
        """True if the whole interval lies above 1."""
        return self.low > 1

    def tells(self, share: float) -> bool:
        """Return whether half the interval is at most this share of the difference, in logarithms."""
        width = self.half_width
        return math.isfinite(width) and width <= share * abs(math.log(self.value))

    @property
    def vague(self) -> bool:
        """True if the interval is too wide for the figure to mean anything.

        It reaches beyond 10 % to either side, and less than half of the difference is certain (in
        logarithms).
        """
        return (
            not self.tells(MEASUREMENT.least_certain)
            and self.half_width > MEASUREMENT.fine_half_width
        )


def clearly_faster(ratio: Ratio) -> bool:
    """Return whether the first is faster, beyond doubt and by a meaningful figure."""
    return ratio.faster and not ratio.vague


def half_width_of(spread: float, count: int) -> float:
    """Return the half-width of the 95 % interval of a mean."""
    return student(count - 1) * spread / math.sqrt(count)


def half_width_of_mean(values: np.ndarray) -> float:
    """Return the half-width of the 95 % interval of the mean of correlated values, at least three."""
    effective = effective_size(values)
    df = max(effective - 1, MEASUREMENT.least_block_df)
    return student(df) * float(np.std(values, ddof=1)) / math.sqrt(effective)


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Return the ratio of two rates measured in the same rounds, by Student's t on the log ratios.

    Args:
        numerator: rates of one, by round.
        denominator: rates of the other in the same rounds.
    """
    logs = np.log(np.asarray(numerator, dtype=float) / np.asarray(denominator, dtype=float))
    mean = float(logs.mean())
    if len(logs) < 2:
        return Ratio(math.exp(mean), 0.0, math.inf)
    error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    quantile = student(len(logs) - 1)
    return Ratio(
        math.exp(mean), math.exp(mean - quantile * error), math.exp(mean + quantile * error)
    )


def drift_within(runs: Sequence[Sequence[float]]) -> Ratio | None:
    """Return the speed in the second half of a run over that in the first; None if unknown.

    Args:
        runs: speeds of the blocks of each run that count; those with a single block tell nothing.
    """
    halves = [(run[: len(run) // 2], run[-(len(run) // 2) :]) for run in runs if len(run) > 1]
    if len(halves) < MEASUREMENT.fewest_runs_of_drift:
        return None
    first, second = (
        [statistics.harmonic_mean(half) for half in part] for part in zip(*halves, strict=True)
    )
    return paired_ratio(second, first)
