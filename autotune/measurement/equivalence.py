"""Equivalence of two loss curves: two one-sided tests (Schuirmann 1987). Pure."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from scipy import special

from autotune.measurement.estimate import lag_one
from autotune.measurement.policy import PROOF, ProofPolicy


class Equivalence(Enum):
    """Result of the test."""

    EQUIVALENT = "equivalent"
    DIFFERENT = "different"
    OPEN = "open"


@dataclass(frozen=True)
class Distance:
    """Distance of two loss curves, in units of the loss.

    Attributes:
        mean: mean of the differences.
        error: standard error of the mean.
        df: degrees of freedom of the error.
        runs: number of pairs of runs, with a seed each.
    """

    mean: float
    error: float
    df: float
    runs: int = 1

    def within(self, margin: float, looks: int, policy: ProofPolicy = PROOF) -> Equivalence:
        """Return whether the curves lie within a margin of each other.

        One pair tells nothing about the scatter between seeds, and two or three little: a part of
        the margin is taken for granted.

        Args:
            margin: margin in units of the loss.
            looks: largest number of tests, which share the level (Bonferroni).
            policy: levels, and scatter between seeds.
        """
        if abs(self.mean) + self.half_width(margin, policy.level / looks, policy) < margin:
            return Equivalence.EQUIVALENT
        if abs(self.mean) - self.half_width(margin, policy.surely_different, policy) > margin:
            return Equivalence.DIFFERENT
        return Equivalence.OPEN

    def half_width(self, margin: float, level: float, policy: ProofPolicy = PROOF) -> float:
        """Return the half-width of the interval with this one-sided error."""
        error = math.hypot(self.error, policy.seed_scatter * margin / math.sqrt(self.runs))
        return float(special.stdtrit(self.df, 1 - level)) * error


def distance(runs: Sequence[Sequence[float]]) -> Distance:
    """Return the distance of two loss curves, from their step-by-step differences in some runs.

    Neighbouring steps are correlated: the variance of their mean is larger by (1 + r) / (1 - r),
    with the lag-one correlation r of all runs together. Runs may lie further apart than their steps
    tell: the larger of the two errors counts.

    Args:
        runs: differences of each run, at least four.
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
