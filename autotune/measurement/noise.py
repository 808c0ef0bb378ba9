"""How far runs of one configuration lie apart when each is a new process. Pure functions.

The interval of one run says nothing about the next: memory lies elsewhere, threads land on other
cores, clocks differ. The baseline, run again, tells how much that is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from autotune.measurement.estimate import CONFIDENCE, student

PRIOR_SIGMA = 0.02
"""Assumed before anything was measured: two shared cores showed 3 to 4 %, a quiet node below 1 %."""
_PRIOR_WEIGHT = 2.0
"""So many runs' worth."""
_NORMAL = float(special.ndtri((1 + CONFIDENCE) / 2))
_SECONDS_PER_HOUR = 3600.0
FEWEST_FOR_DRIFT = 5
SHORTEST_FOR_DRIFT = 1800.0
"""Seconds from the first run to the last one: what minutes show is no hour's drift."""


@dataclass(frozen=True)
class RepeatedRun:
    """One run of the configuration that is repeated.

    Attributes:
        rate: units per second.
        half_width: relative, of the 95 % interval that its own blocks give.
        at: when it began, seconds.
        df: degrees of it, of Student's t in that interval; infinite: the normal distribution.
    """

    rate: float
    half_width: float
    at: float
    df: float = math.inf

    @property
    def error(self) -> float:
        """Relative standard error of the rate, by its blocks."""
        return standard_error(self.half_width, self.df)


@dataclass(frozen=True)
class RunNoise:
    """How far equal runs lie apart, and how well that is known.

    Attributes:
        sigma_run, runs, drift_per_hour: see storage.StoredNoise.
        df: degrees of it, those that the prior weighs included: an interval for the next run is
            Student's with so many.
    """

    sigma_run: float
    runs: int
    drift_per_hour: float | None
    df: float = _PRIOR_WEIGHT

    @property
    def error(self) -> float:
        """Standard error of sigma_run."""
        return self.sigma_run / math.sqrt(2 * self.df)


def run_noise(runs: Sequence[RepeatedRun], prior_sigma: float = PRIOR_SIGMA) -> RunNoise:
    """Return the relative standard deviation between runs that their own blocks do not explain.

    The variance of the log rates around their drift, if they have one, less the mean variance that
    the blocks account for, is averaged with a prior that weighs as much as two runs: three runs
    alone would often show nearly none. Runs whose own intervals are too wide to show any difference
    weigh nothing: not to see noise is no evidence that there is none.

    Args:
        runs: of one configuration, in processes as the trials have them.
        prior_sigma: from an earlier study in the same environment, or PRIOR_SIGMA.
    """
    df = len(runs) - 1
    if df < 1:
        return RunNoise(prior_sigma, len(runs), None)
    logs = np.log([run.rate for run in runs])
    drift = _drift(runs, logs)
    if drift:
        logs = logs - drift * np.array([run.at / _SECONDS_PER_HOUR for run in runs])
        df -= 1
    within = float(np.mean([run.error**2 for run in runs]))
    scatter = float(np.sum((logs - logs.mean()) ** 2)) / df
    between = max(0.0, scatter - within)
    visible = max(prior_sigma**2, between)
    weight = df * (visible / (visible + within)) ** 2
    pooled = (_PRIOR_WEIGHT * prior_sigma**2 + weight * between) / (_PRIOR_WEIGHT + weight)
    return RunNoise(math.sqrt(pooled), len(runs), drift, _PRIOR_WEIGHT + weight)


def run_df(runs: int) -> float:
    """Return degrees of freedom, at most, of what so many equal runs tell of their noise, those of
    the prior included.
    """
    return _PRIOR_WEIGHT + max(0, runs - 1)


def _drift(runs: Sequence[RepeatedRun], logs: np.ndarray) -> float | None:
    hours = [run.at / _SECONDS_PER_HOUR for run in runs]
    spanned = (max(hours) - min(hours)) * _SECONDS_PER_HOUR
    if len(runs) < FEWEST_FOR_DRIFT or spanned < SHORTEST_FOR_DRIFT:
        return None
    from scipy import stats  # takes a second, and few commands come here

    slope = stats.theilslopes(logs, hours, alpha=CONFIDENCE)
    # A slope that may as well be none is no drift.
    return float(slope.slope) if slope.low_slope > 0 or slope.high_slope < 0 else 0.0


def standard_error(half_width: float, df: float = math.inf) -> float:
    """What a 95 % interval is made of.

    Args:
        half_width: of the interval.
        df: degrees of it, of Student's t in the interval; infinite: the normal distribution.
    """
    return half_width / (student(df) if df < math.inf else _NORMAL)


def total_half_width(block_half_width: float, sigma_run: float, df: float = math.inf) -> float:
    """Return relative half-width of the 95 % interval for the next run of the same configuration's
    mean: the scatter of the blocks and that of runs together.

    Args:
        df: degrees of it, of sigma_run; infinite: it is taken for the truth.
    """
    quantile = student(df) if df < math.inf else _NORMAL
    return math.hypot(block_half_width, quantile * sigma_run)
