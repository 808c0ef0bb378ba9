"""Noise of early trials, and of trials in waves of slow steps, as the study has found it since. Pure.

Early trials were recorded with an assumed noise: the run-to-run noise is learnt from later runs of the
baseline.
"""

import dataclasses
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator

from autotune.analysis.compilation import graph
from autotune.measurement.noise import standard_error
from autotune.measurement.policy import MEASUREMENT
from storage import SEARCH_RUNS, TRIAL_RUNS, AttemptResult, Attempts, Purpose, StoredAttempt

_BY_OWN_STEPS = (MEASUREMENT.computing_processes, MEASUREMENT.waiting_processes)
"""Noise between runs as a trial's own steps tell it, which were timed one by one."""


def with_known_noise(attempts: Attempts) -> Attempts:
    """Return the attempts with the noise that the study has found since.

    It is that of early trials, and of runs that met a wave of slow steps.
    """
    found = {one.id: one for one in (*_early(attempts), *_in_waves(attempts))}
    return attempts.each(lambda one: found.get(one.id, one)) if found else attempts


def errors_of_early(attempts: Attempts) -> dict[int, float]:
    """Return the relative standard errors of early trials as they are known by now, by trial."""
    known = ((one.trial, error_of(one.result)) for one in _early(attempts))
    return {trial: error for trial, error in known if error is not None}


def _early(attempts: Attempts) -> Iterator[StoredAttempt]:
    """Yield the trials before the first repeated or paired baseline, with the noise known by now."""
    first = attempts.of(Purpose.CALIBRATE, Purpose.PAIRED).complete().first
    own = attempts.baseline()  # the reference of all trials, which stays as it is recorded
    if first is None or own is None:
        return
    newest, apart = _newest_sigma(attempts), _apart(own, attempts)
    for one in itertools.takewhile(lambda one: one.id < first.id, attempts.of(Purpose.SEARCH)):
        sigma = one.result.sigma_run
        assumed = sigma is not None and sigma == own.result.sigma_run
        known = sigma if sigma in _BY_OWN_STEPS else newest if assumed else None
        if one is not own and known is not None:
            noise = math.hypot(known, apart)
            yield dataclasses.replace(one, result=dataclasses.replace(one.result, sigma_run=noise))


def _in_waves(attempts: Attempts) -> Iterator[StoredAttempt]:
    """Yield the trials whose device seemed to wait, though most runs of their graph compute.

    A short run that meets a wave of slow steps scatters like one that waits for its host.
    """
    own, runs = attempts.baseline(), list(attempts.of(*TRIAL_RUNS))
    waiting = [one for one in runs if one.result.sigma_run == MEASUREMENT.waiting_processes]
    told = defaultdict(list)
    for one in runs if waiting else ():
        if one.result.sigma_run is not None:
            told[graph(one.knobs)].append(one.result.sigma_run)
    for one in waiting:
        sigma = statistics.median_high(told[graph(one.knobs)])
        if one is not own and sigma != one.result.sigma_run:
            yield dataclasses.replace(one, result=dataclasses.replace(one.result, sigma_run=sigma))


def _apart(own: StoredAttempt, attempts: Attempts) -> float:
    """Return the relative difference between the paired and the unpaired speed of the baseline.

    An unpaired trial may differ as much from the paired ones. It is 0 while nothing is paired.
    """
    beside = attempts.of(Purpose.PAIRED).complete().measured()
    rates = [one.result.throughput or 0.0 for one in beside]
    if not rates or not own.result.throughput:
        return 0.0
    return abs(math.log(statistics.median(rates) / own.result.throughput))


def _newest_sigma(attempts: Attempts) -> float | None:
    """Return the latest noise between runs, of an unpaired trial or of the baseline of a pair.

    The noise of a paired trial is that of its ratio, which is smaller. What a trial's own steps tell
    is of that trial alone.
    """
    newest_first = reversed(list(attempts.of(*SEARCH_RUNS)))
    found = (
        one.result.sigma_run
        for one in newest_first
        if one.result.throughput is not None and not attempts.paired_baseline_of(one)
    )
    return next((sigma for sigma in found if sigma not in _BY_OWN_STEPS), None)


def error_of(result: AttemptResult) -> float | None:
    """Return the relative standard error of a run's rate, by its blocks and by runs; None if unknown."""
    if result.block_half_width is None:
        return None
    df = math.inf if result.block_freedom is None else result.block_freedom
    return math.hypot(standard_error(result.block_half_width, df), result.sigma_run or 0.0)
