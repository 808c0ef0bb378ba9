"""Trials that were measured before it was known how far their rates are off. Pure."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator

from autotune.analysis.contenders import error_of
from storage import Attempts, Purpose, StoredAttempt


def with_known_noise(attempts: Attempts) -> Attempts:
    """All of them; what is recorded as the noise of early trials was assumed, and is here what the
    study has found since."""
    found = {one.id: one for one in _early(attempts)}
    return attempts.each(lambda one: found.get(one.id, one)) if found else attempts


def errors_of_early(attempts: Attempts) -> dict[int, float]:
    """What is known by now of their relative standard errors, by trial."""
    known = ((one.trial, error_of(one.result)) for one in _early(attempts))
    return {trial: error for trial, error in known if error is not None}


def _early(attempts: Attempts) -> Iterator[StoredAttempt]:
    """Trials that ran before the baseline did so again, by itself or beside one of them, with the noise
    that they have by now."""
    first = attempts.of(Purpose.CALIBRATE, Purpose.PAIRED).complete().first
    own = attempts.baseline()  # with which all are compared, and which others look up as it is
    if first is None or own is None or (known := _newest(attempts)) is None:
        return
    noise = math.hypot(known, _apart(own, attempts))
    for one in itertools.takewhile(lambda one: one.id < first.id, attempts.of(Purpose.SEARCH)):
        assumed = one.result.sigma_run == own.result.sigma_run  # else its own steps told
        if one is not own and one.result.sigma_run is not None and assumed:
            yield dataclasses.replace(one, result=dataclasses.replace(one.result, sigma_run=noise))


def _apart(own: StoredAttempt, attempts: Attempts) -> float:
    """Relative, by how much the baseline runs faster or slower where it takes turns, on processors of
    its own, than by itself: so far may a trial that ran by itself be off those that did not. 0 while
    none takes turns."""
    beside = attempts.of(Purpose.PAIRED).complete().measured()
    rates = [one.result.throughput or 0.0 for one in beside]
    if not rates or not own.result.throughput:
        return 0.0
    return abs(math.log(statistics.median(rates) / own.result.throughput))


def _newest(attempts: Attempts) -> float | None:
    """As a run by itself has it, or the baseline beside a trial, whose ratio differs by less."""
    newest_first = reversed(list(attempts.of(Purpose.SEARCH, Purpose.CALIBRATE, Purpose.PAIRED)))
    measured = (one for one in newest_first if one.result.throughput is not None)
    return next(
        (one.result.sigma_run for one in measured if not attempts.paired_baseline_of(one)), None
    )
