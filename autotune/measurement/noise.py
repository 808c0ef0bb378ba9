"""Run-to-run noise: differences between runs of one configuration. Pure.

The interval of one run says nothing about the next: memory lies elsewhere, threads land on other
cores, clocks differ. Repeated runs of the baseline tell how much that is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from autotune.measurement.contrasts import Variance, between_runs
from autotune.measurement.estimate import CONFIDENCE, Estimate, student
from autotune.measurement.policy import MEASUREMENT

_NORMAL = float(special.ndtri((1 + CONFIDENCE) / 2))
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class RepeatedRun:
    """A run of the configuration that is repeated.

    Attributes:
        rate: rate in units per second.
        half_width: relative half-width of the 95 % interval from its own blocks.
        at: start time in seconds.
        df: degrees of freedom of Student's t in that interval; infinite: the normal distribution.
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
    """Run-to-run noise, and how well it is known.

    Attributes:
        sigma_run, runs, drift_per_hour: see storage.StoredNoise.
        df: degrees of freedom, the weight of the prior included; an interval for the next run is
            Student's with these.
    """

    sigma_run: float
    runs: int
    drift_per_hour: float | None
    df: float = MEASUREMENT.prior_weight

    @property
    def error(self) -> float:
        """Standard error of sigma_run."""
        return self.sigma_run / math.sqrt(2 * self.df)


def run_noise(
    runs: Sequence[RepeatedRun], prior_sigma: float = MEASUREMENT.prior_sigma
) -> RunNoise:
    """Return the relative standard deviation between runs that their own blocks do not explain.

    It is the variance of the log rates around their drift, if there is one, less the mean variance
    that the blocks account for. It is averaged with a prior that weighs as much as two runs, because
    three runs alone would often show nearly none. Runs whose own intervals are too wide to show any
    difference weigh nothing: not to see noise is no evidence that there is none.

    Args:
        runs: runs of one configuration, in the same kind of processes as trials.
        prior_sigma: value of an earlier study in the same environment, or MEASUREMENT.prior_sigma.
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
    prior = Variance(prior_sigma**2, MEASUREMENT.prior_weight)
    pooled = between_runs(Variance(scatter, df), within, prior)
    return RunNoise(math.sqrt(pooled.value), len(runs), drift, pooled.df)


def run_df(runs: int) -> float:
    """Return the most degrees of freedom of the noise of this many equal runs, the prior included."""
    return MEASUREMENT.prior_weight + max(0, runs - 1)


def _drift(runs: Sequence[RepeatedRun], logs: np.ndarray) -> float | None:
    hours = [run.at / _SECONDS_PER_HOUR for run in runs]
    spanned = (max(hours) - min(hours)) * _SECONDS_PER_HOUR
    if len(runs) < MEASUREMENT.fewest_for_drift or spanned < MEASUREMENT.shortest_for_drift:
        return None
    from scipy import stats  # takes a second to import, and few commands need it

    slope = stats.theilslopes(logs, hours, alpha=CONFIDENCE)
    # A slope whose interval includes zero is no drift.
    return float(slope.slope) if slope.low_slope > 0 or slope.high_slope < 0 else 0.0


def standard_error(half_width: float, df: float = math.inf) -> float:
    """Return the standard error that underlies a 95 % interval.

    Args:
        half_width: half-width of the interval.
        df: degrees of freedom of Student's t in the interval; infinite: the normal distribution.
    """
    return half_width / _quantile(df)


def interval_of_blocks(found: Estimate) -> tuple[float, float | None]:
    """Return the relative half-width of a run by its blocks, and its degrees of freedom; None: unknown.

    No run counts as less exact, by its standard error, than one whose blocks tell nothing.
    """
    if not math.isfinite(found.half_width):
        return MEASUREMENT.unknown_width, None
    widest = MEASUREMENT.unknown_width * _quantile(found.df) / _NORMAL
    return min(found.half_width, widest), found.df


def noise_of_pairs(sigma_run: float) -> float:
    """Return the relative standard deviation between pairs, given that between single runs."""
    return max(sigma_run / MEASUREMENT.pairing_gain, min(sigma_run, MEASUREMENT.prior_sigma))


def total_half_width(block_half_width: float, sigma_run: float, df: float = math.inf) -> float:
    """Return the relative half-width of the 95 % interval for the mean of the next run.

    It combines the scatter of the blocks with that of runs.

    Args:
        df: degrees of freedom of sigma_run; infinite: it is exact.
    """
    return math.hypot(block_half_width, _quantile(df) * sigma_run)


def _quantile(df: float) -> float:
    return student(df) if df < math.inf else _NORMAL
