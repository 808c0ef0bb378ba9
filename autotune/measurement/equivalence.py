"""Whether two courses of a loss are equivalent: two one-sided tests (Schuirmann 1987). Pure
functions."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from scipy import special

from autotune.measurement.autocorrelation import lag_one

LEVEL = 0.05
"""Chance to call courses equivalent that lie just a margin apart, over all looks together."""
_DIFFERENT = 0.01
"""Chance to call courses different, before the last look, that lie just a margin apart."""
_SCATTER = 0.15
"""Of the margin: standard deviation between the distances of equal courses with other seeds, at least.
One pair knows nothing of it, and two or three little."""


class Equivalence(Enum):
    """What the differences show."""

    EQUIVALENT = "equivalent"
    DIFFERENT = "different"
    OPEN = "open"


@dataclass(frozen=True)
class Distance:
    """How far two courses lie apart, in units of the loss.

    Attributes:
        mean: of the differences.
        error: its standard error.
        df: degrees of freedom of that.
        runs: pairs of them, with a seed each.
    """

    mean: float
    error: float
    df: float
    runs: int = 1

    def within(self, margin: float, looks: int) -> Equivalence:
        """Return whether the courses lie within a margin of each other.

        Args:
            margin: in units of the loss.
            looks: how often this is asked at most; the level is shared out among them (Bonferroni).
        """
        if abs(self.mean) + self.half_width(margin, looks) < margin:
            return Equivalence.EQUIVALENT
        if abs(self.mean) - self._half_width(margin, _DIFFERENT) > margin:
            return Equivalence.DIFFERENT
        return Equivalence.OPEN

    def half_width(self, margin: float, looks: int) -> float:
        """Of the interval that has to lie within the margin."""
        return self._half_width(margin, LEVEL / looks)

    def _half_width(self, margin: float, level: float) -> float:
        error = math.hypot(self.error, _SCATTER * margin / math.sqrt(self.runs))
        return float(special.stdtrit(self.df, 1 - level)) * error


def distance(runs: Sequence[Sequence[float]]) -> Distance:
    """Of the differences between two courses, step by step, in one or several runs of both.

    Steps that follow each other are correlated: their variance counts for (1 + r) / (1 - r) as much,
    with the lag-one correlation r of all runs together. Runs may lie further apart than their steps
    tell: the larger of the two errors counts.

    Args:
        runs: of at least four differences each.
    """
    means = [statistics.fmean(run) for run in runs]
    r = lag_one(runs)
    within = _pooled_variance(runs, means) * (1 + r) / (1 - r)
    count = sum(map(len, runs))
    error = math.sqrt(within / count)
    df = max(2.0, (count - len(runs)) * (1 - r) / (1 + r))
    if len(runs) > 1:
        error = max(error, statistics.stdev(means) / math.sqrt(len(runs)))
    return Distance(statistics.fmean(means), error, df, len(runs))


def _pooled_variance(runs: Sequence[Sequence[float]], means: Sequence[float]) -> float:
    squares = sum((x - mean) ** 2 for run, mean in zip(runs, means, strict=True) for x in run)
    return squares / (sum(map(len, runs)) - len(runs))
