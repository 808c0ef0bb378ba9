"""How far runs of one configuration lie apart when each is a new process. Pure functions.

The interval of one run says nothing about the next: memory lies elsewhere, threads land on other
cores, clocks differ. The baseline, run again, tells how much that is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from autotune.measurement.estimate import CONFIDENCE

PRIOR_SIGMA = 0.02
"""Assumed before anything was measured: two shared cores showed 3 to 4 %, a quiet node below 1 %."""
_PRIOR_WEIGHT = 2.0
"""So many runs' worth."""
_NORMAL = float(special.ndtri((1 + CONFIDENCE) / 2))
_SECONDS_PER_HOUR = 3600.0
FEWEST_FOR_DRIFT = 4
SHORTEST_FOR_DRIFT = 1800.0
"""Seconds from the first run to the last one: what minutes show is no hour's drift."""


@dataclass(frozen=True)
class Run:
    """One run of the configuration that is repeated.

    Attributes:
        rate: units per second.
        half_width: relative, of the 95 % interval that its own blocks give.
        at: when it began, seconds.
    """

    rate: float
    half_width: float
    at: float


@dataclass(frozen=True)
class Noise:
    """See storage.StoredNoise."""

    sigma_run: float
    runs: int
    drift_per_hour: float | None


def run_noise(runs: Sequence[Run], prior_sigma: float = PRIOR_SIGMA) -> Noise:
    """The relative standard deviation between runs that their own blocks do not explain.

    The variance of the log rates, less the mean variance that the blocks account for, is averaged with
    a prior that weighs as much as two runs: three runs alone would often show nearly none. Runs whose
    own intervals are too wide to show any difference weigh nothing: not to see noise is no evidence
    that there is none.

    Args:
        runs: of one configuration, each in a new process.
        prior_sigma: from an earlier study in the same environment, or PRIOR_SIGMA.
    """
    freedom = len(runs) - 1
    if freedom < 1:
        return Noise(prior_sigma, len(runs), None)
    logs = np.log([run.rate for run in runs])
    within = float(np.mean([(run.half_width / _NORMAL) ** 2 for run in runs]))
    between = max(0.0, float(np.var(logs, ddof=1)) - within)
    visible = max(prior_sigma**2, between)
    weight = freedom * (visible / (visible + within)) ** 2
    pooled = (_PRIOR_WEIGHT * prior_sigma**2 + weight * between) / (_PRIOR_WEIGHT + weight)
    return Noise(math.sqrt(pooled), len(runs), _drift(runs, logs))


def _drift(runs: Sequence[Run], logs: np.ndarray) -> float | None:
    hours = [run.at / _SECONDS_PER_HOUR for run in runs]
    spanned = (max(hours) - min(hours)) * _SECONDS_PER_HOUR
    if len(runs) < FEWEST_FOR_DRIFT or spanned < SHORTEST_FOR_DRIFT:
        return None
    from scipy import stats  # takes a second, and few commands come here

    slope = stats.theilslopes(logs, hours, alpha=CONFIDENCE)
    # A slope that may as well be none is no drift.
    return float(slope.slope) if slope.low_slope > 0 or slope.high_slope < 0 else 0.0


def total_half_width(block_half_width: float, sigma_run: float) -> float:
    """Relative half-width of the 95 % interval for the next run of the same configuration's mean: the
    scatter of the blocks and that of runs together."""
    return math.hypot(block_half_width, _NORMAL * sigma_run)
