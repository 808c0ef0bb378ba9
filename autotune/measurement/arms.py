"""Comparison of configurations whose runs have variances of their own. Pure.

Runs of one configuration may differ by 25 % and those of another by 0.3 % (steps that wait for the host,
steps that compute). Pooled, the first would widen the interval of the second. So each arm has its own
variance and as many runs as it needs. That variance has two components: between processes, shrunk
towards what its steps let expect, and within a run, which its steps tell.

Several arms are compared with the best of them by Hsu's bound. SciPy's multivariate_t integrates by
quasi-Monte Carlo: at the levels of early looks its critical values are off by 0.7 %, or it finds none,
and it takes five times as long.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from autotune.measurement.contrasts import Contrast, Variance
from autotune.measurement.estimate import CONFIDENCE, Ratio
from autotune.measurement.noise import between_runs

NO_VARIANCE = Variance(0.0, 0.0)
ONE_SIDED = (1 - CONFIDENCE) / 2
_NODES = 48
_HALVINGS = 50


@dataclass(frozen=True)
class Arm:
    """Runs of one configuration, each in processes of its own.

    Attributes:
        rates: rates of the runs, at least one.
        prior: variance of the log rate between processes, before any was repeated.
        within: mean variance of the log rate of a run that its steps leave.
    """

    rates: Sequence[float]
    prior: Variance
    within: Variance = NO_VARIANCE

    @functools.cached_property
    def mean(self) -> float:
        """Mean of the log rates."""
        return float(np.mean(np.log(self.rates)))

    @functools.cached_property
    def of_mean(self) -> Variance:
        """Variance of that mean."""
        runs = len(self.rates)
        seen = float(np.var(np.log(self.rates), ddof=1)) if runs > 1 else 0.0
        between = between_runs(Variance(seen, runs - 1), self.within.value, self.prior)
        one = _sum([between, self.within])
        return Variance(one.value / runs, one.df)

    @property
    def rate(self) -> Ratio:
        """Rate with its 95 % interval."""
        return Contrast(self.mean, math.sqrt(self.of_mean.value), self.of_mean.df).ratio(ONE_SIDED)


def welch_contrast(one: Arm, other: Arm) -> Contrast:
    """Return how much faster one is than the other (Welch 1947).

    Each arm contributes the variance of its own mean.
    """
    whole = _sum([one.of_mean, other.of_mean])
    return Contrast(one.mean - other.mean, math.sqrt(whole.value), whole.df)


def _sum(parts: Sequence[Variance]) -> Variance:
    """Return the sum of independent variances, with Satterthwaite's degrees of freedom (1946)."""
    known = [part for part in parts if part.value]
    whole = math.fsum(part.value for part in known)
    return Variance(whole, whole**2 / math.fsum(part.value**2 / part.df for part in known))


@functools.lru_cache(maxsize=1024)
def critical_value(rivals: int, df: float, confidence: float = 0.95) -> float:
    """Return the critical value of a comparison with the best (Hsu 1984; Dunnett's, one-sided).

    No difference to any of the rivals is larger than this number of standard errors above the
    observed one: "at most U slower than the best", U = max_j (y_j - y_i) + d s sqrt(2 / R), and 0
    where that is less.

    Args:
        rivals: number of arms in the comparison, each measured as often as the arm in question.
        df: degrees of freedom of s; 0: s is unknown.
        confidence: simultaneous confidence for all differences.
    """
    if rivals < 1:
        return 0.0
    if df <= 0:
        return math.inf
    # One rival: Student's quantile. Several: at least that, and at most Bonferroni's.
    low = float(special.stdtrit(df, confidence))
    if rivals == 1:
        return low
    high = float(special.stdtrit(df, 1 - (1 - confidence) / rivals))
    points, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    # The nodes are quantiles of the normal distribution, so they reach far into both tails of s,
    # too.
    spreads = np.sqrt(2 * special.gammaincinv(df / 2, special.ndtr(points)) / df)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        within = special.ndtr(points[:, None] + math.sqrt(2) * middle * spreads) ** rivals
        enough = float(weights @ within @ weights) > confidence
        low, high = (low, middle) if enough else (middle, high)
    return (low + high) / 2
