"""Whether trials that follow each other compare on this machine, by the runs of the baseline. Pure."""

import math
import statistics

from autotune.measurement.noise import RunNoise, standard_error
from storage import AttemptResult, Attempts, Purpose

_MOST = 0.06
"""Relative standard error of a trial, its blocks' and that between runs together, from which on it is
worth its seconds to have the baseline beside every trial: that takes 1.8 times as long, so that runs of
each trial, one after another, would be 1.3 times more exact. Equal trials that lay 12, 10 and 8 % apart
by themselves lay 5.5, 2.8 and 3.3 % apart beside it, and such as lay 4.6 % apart 4.9 (two shared cores,
benchmarks/pace.py)."""
_DRIFT = 0.04
"""Relative, in an hour: as long as many studies take."""


def unrest(noise: RunNoise, attempts: Attempts) -> str:
    """Why they do not compare, in words; empty if they do. One run may show it: the sooner trials take
    turns with the baseline, the fewer there are that have run by themselves."""
    complete = attempts.of(Purpose.SEARCH, Purpose.CALIBRATE).of_baseline().complete()
    runs = [attempt.result for attempt in complete.measured()]
    if not runs:
        return ""
    error = math.hypot(noise.sigma_run, statistics.median(map(_own_error, runs)))
    if error > _MOST:
        return f"by the runs of the baseline one of them is off by {error:.1%} (standard error)"
    if abs(noise.drift_per_hour or 0.0) > _DRIFT:
        return f"the machine's speed drifts by {noise.drift_per_hour:+.1%} an hour"
    disturbed = sum(run.contended for run in runs)
    if 2 * disturbed > len(runs):
        return f"others disturbed {disturbed} of {len(runs)} runs of the baseline"
    return ""


def _own_error(run: AttemptResult) -> float:
    """Relative standard error of a run by its blocks; 0 if they tell nothing of it."""
    if run.block_half_width is None or run.block_freedom is None:
        return 0.0
    return standard_error(run.block_half_width, run.block_freedom)
