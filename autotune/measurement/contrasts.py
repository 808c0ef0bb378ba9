"""Comparison of configurations by their runs: variances, contrasts, critical values. Pure.

Runs of one configuration may differ by 25 % and those of another by 0.3 % (steps that wait for the
host, steps that compute). Pooled, the first would widen the interval of the second. So each arm has
a variance of its own, and as many runs as it needs. It has two components: between processes, shrunk
towards what its steps let expect, and within a run, which its steps tell. Paired contrasts are taken
over rounds that both arms ran.

Several arms are compared with the best of them by Hsu's bound. SciPy's multivariate_t integrates by
quasi-Monte Carlo: at the levels of early looks its critical values are off by 0.7 %, or it finds
none, and it takes five times as long.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from autotune.measurement.estimate import CONFIDENCE, Ratio
from autotune.measurement.policy import MEASUREMENT

Rates = Mapping[int, Mapping[int, float]]
"""Rates by round and arm."""

_NO_NOISE = 1e-9
_Frozen = tuple[tuple[int, tuple[tuple[int, float], ...]], ...]
ONE_SIDED = (1 - CONFIDENCE) / 2
_NODES = 48
_HALVINGS = 50


@dataclass(frozen=True)
class Variance:
    """An estimated variance."""

    value: float
    df: float


NO_VARIANCE = Variance(0.0, 0.0)


def shrunk(own: Variance, others: Variance) -> Variance:
    """Return a variance drawn towards that of the others (Smyth 2004).

    It is (d0 s0^2 + d s^2) / (d0 + d).
    """
    df = own.df + others.df
    if df <= 0:
        return Variance(0.0, 0.0)
    total = own.df * own.value + others.df * others.value
    return Variance(total / df, df)


def between_runs(seen: Variance, within: float, prior: Variance) -> Variance:
    """Return the variance between runs that their own intervals do not explain.

    What is seen beyond those is averaged with a prior. It weighs the less, the wider the intervals are.

    Args:
        seen: variance of the log rates of the runs.
        within: mean variance of a log rate by its own interval.
        prior: variance between runs before any was repeated.
    """
    between = max(0.0, seen.value - within)
    visible = max(prior.value, between)
    weight = seen.df * (visible / (visible + within)) ** 2
    return shrunk(Variance(between, weight), prior)


def pooled(rates: Rates) -> Variance:
    """Return the variance of a run's log rate that neither its arm nor its round explains.

    With every arm in every round it is sum (y - y_c. - y_.r + y..)^2 / ((C - 1) (R - 1)). Arms that
    have dropped out are left out of later rounds by least squares.
    """
    cells = [
        (number, arm, math.log(r)) for number, arms in rates.items() for arm, r in arms.items()
    ]
    if not cells:
        return Variance(0.0, 0.0)
    numbers, arms = sorted({c[0] for c in cells}), sorted({c[1] for c in cells})
    design = np.zeros((len(cells), len(numbers) + len(arms)))
    for row, (number, arm, _) in enumerate(cells):
        design[row, numbers.index(number)] = 1.0
        design[row, len(numbers) + arms.index(arm)] = 1.0
    values = np.array([cell[2] for cell in cells])
    fitted, _, rank, _ = np.linalg.lstsq(design, values - values.mean(), rcond=None)
    df = len(cells) - int(rank)
    if df < 1:
        return Variance(0.0, 0.0)
    left = values - values.mean() - design @ fitted
    return Variance(float(left @ left) / df, df)


def _density(z: float, df: float) -> float:
    """Return the density of Student's t; scipy.stats, which has it, takes a second to import."""
    scale = special.gammaln((df + 1) / 2) - special.gammaln(df / 2)
    height = math.exp(float(scale)) / math.sqrt(df * math.pi)
    return height * math.pow(1 + z**2 / df, -(df + 1) / 2)


@dataclass(frozen=True)
class Contrast:
    """Difference of two arms' log rates.

    Attributes:
        value: difference of the logarithms.
        error: standard error of the difference.
        df: degrees of freedom of the error; 0: the error is unknown.
    """

    value: float
    error: float
    df: float

    def beyond(self, level: float) -> float:
        """Return the half-width of the interval with this one-sided error; infinite if unknown."""
        if self.df <= 0:
            return math.inf
        return float(special.stdtrit(self.df, 1 - level)) * self.error

    def ratio(self, level: float) -> Ratio:
        """Return the ratio of the rates, with the interval of this one-sided error on either side."""
        return Ratio.around(math.exp(self.value), self.beyond(level))

    @property
    def chance(self) -> float:
        """Posterior probability that the first arm is faster, with a flat prior."""
        if self.df <= 0:
            return 0.5
        return float(special.stdtr(self.df, self.value / self.error))

    @property
    def risk(self) -> float:
        """Expected loss, in logarithms, of choosing the first arm where the second may be faster.

        It is E max(0, -x), with x of the same posterior; infinite where that has no mean. By the
        linear loss integral of Student's t it is s ((v + z^2) / (v - 1) f(z) - z F(-z)), z = value
        / s (Raiffa and Schlaifer 1961, chapter 5).
        """
        if self.df <= 1:
            return math.inf
        z = self.value / self.error
        beyond = (self.df + z**2) / (self.df - 1) * _density(z, self.df)
        return self.error * (beyond - z * float(special.stdtr(self.df, -z)))


def contrast(rates: Rates, one: int, other: int, others: float = MEASUREMENT.others_df) -> Contrast:
    """Return the contrast of two arms over the rounds that both ran, at least one.

    The variance is that of the pair's own differences, drawn towards that of all other arms.

    Args:
        others: largest number of degrees of freedom of all other arms; infinite: as many as they
            have.
    """
    both = [arms for arms in rates.values() if one in arms and other in arms]
    logs = np.log([arms[one] / arms[other] for arms in both])
    mean, df = float(logs.mean()), len(logs) - 1
    if df < 1:
        return Contrast(mean, math.inf, 0.0)
    own = Variance(float(np.var(logs, ddof=1)) / 2, df)
    found = shrunk(own, _of_others(rates, own, others))
    error = math.sqrt(2 * found.value / len(logs))
    return Contrast(mean, max(error, _NO_NOISE), found.df)


def _of_others(rates: Rates, own: Variance, most: float) -> Variance:
    """Return the pooled variance without a pair's own, with limited weight.

    The pair's differences are one direction of the space of residuals, at a right angle to the
    rest.
    """
    every = _pooled(_frozen(rates))
    df = every.df - own.df
    if df < 1:
        return Variance(0.0, 0.0)
    left = every.df * every.value - own.df * own.value
    return Variance(max(0.0, left) / df, min(df, most))


def _frozen(rates: Rates) -> _Frozen:
    return tuple((number, tuple(arms.items())) for number, arms in rates.items())


@functools.lru_cache(maxsize=256)
def _pooled(rates: _Frozen) -> Variance:
    return pooled({number: dict(arms) for number, arms in rates})


@dataclass(frozen=True)
class Arm:
    """Runs of one configuration, each in processes of its own.

    Attributes:
        prior: variance of the log rate between processes, before any was repeated.
        within: mean variance of the log rate of a run that its steps leave.
        others: rates of runs under other conditions: they tell how far runs lie apart, not the mean.
    """

    rates: Sequence[float]
    prior: Variance
    within: Variance = NO_VARIANCE
    others: Sequence[float] = ()

    @functools.cached_property
    def mean(self) -> float:
        """Mean of the log rates."""
        return float(np.mean(np.log(self.rates)))

    @functools.cached_property
    def of_mean(self) -> Variance:
        """Variance of that mean."""
        seen = shrunk(_variance(self.rates), _variance(self.others))
        between = between_runs(seen, self.within.value, self.prior)
        one = _sum([between, self.within])
        return Variance(one.value / len(self.rates), one.df)

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


def _variance(rates: Sequence[float]) -> Variance:
    """Return the variance of log rates around their own mean; one alone tells none."""
    if len(rates) < 2:
        return NO_VARIANCE
    return Variance(float(np.var(np.log(rates), ddof=1)), len(rates) - 1)


def _sum(parts: Sequence[Variance]) -> Variance:
    """Return the sum of independent variances, with Satterthwaite's degrees of freedom (1946)."""
    known = [part for part in parts if part.value]
    whole = math.fsum(part.value for part in known)
    return Variance(whole, whole**2 / math.fsum(part.value**2 / part.df for part in known))


@functools.lru_cache(maxsize=1024)
def critical_value(rivals: int, df: float, confidence: float) -> float:
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
