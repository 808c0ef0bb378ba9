"""Comparison of configurations whose runs have variances of their own. Pure.

Runs of one configuration may differ by 25 % and those of another by 0.3 % (steps that wait for the host,
steps that compute). Pooled, the first would widen the interval of the second. So each arm has its own
variance, shrunk towards what its steps let expect, and as many runs as it needs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autotune.measurement.contrasts import Contrast, Variance, shrunk
from autotune.measurement.estimate import CONFIDENCE, Ratio

ONE_SIDED = (1 - CONFIDENCE) / 2


@dataclass(frozen=True)
class Arm:
    """Runs of one configuration, each in processes of its own.

    Attributes:
        rates: rates of the runs, at least one.
        prior: variance of the log rate of a run, before any was repeated.
    """

    rates: Sequence[float]
    prior: Variance

    @cached_property
    def mean(self) -> float:
        """Mean of the log rates."""
        return float(np.mean(np.log(self.rates)))

    @cached_property
    def of_mean(self) -> Variance:
        """Variance of that mean."""
        runs = len(self.rates)
        seen = float(np.var(np.log(self.rates), ddof=1)) if runs > 1 else 0.0
        one = shrunk(Variance(seen, runs - 1), self.prior)
        return Variance(one.value / runs, one.df)

    @property
    def rate(self) -> Ratio:
        """Rate with its 95 % interval."""
        return Contrast(self.mean, math.sqrt(self.of_mean.value), self.of_mean.df).ratio(ONE_SIDED)


def compare(one: Arm, other: Arm) -> Contrast:
    """Return how much faster one is than the other (Welch 1947).

    Each arm contributes the variance of its own mean; the degrees of freedom are Satterthwaite's (1946).
    """
    parts = one.of_mean, other.of_mean
    whole = math.fsum(part.value for part in parts)
    df = whole**2 / math.fsum(part.value**2 / part.df for part in parts)
    return Contrast(one.mean - other.mean, math.sqrt(whole), df)
