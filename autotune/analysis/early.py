"""Trials that were measured before the noise between runs was. Pure."""

import dataclasses
import itertools

from storage import Attempts, Purpose, StoredAttempt


def with_known_noise(attempts: Attempts) -> Attempts:
    """All of them; what is recorded as the noise of the first trials was assumed, and is here what the
    study has found since. The sampler's model learns by itself how far errors are what is told."""
    first = attempts.of(Purpose.CALIBRATE).complete().first
    if first is None or (known := _newest(attempts)) is None:
        return attempts
    before = itertools.takewhile(lambda one: one.id < first.id, attempts.of(Purpose.SEARCH))
    own = attempts.baseline()  # with which all are compared, and which others look up as it is
    early = {one.id for one in before if one is not own and one.result.sigma_run is not None}
    return attempts.each(lambda one: _told(one, known) if one.id in early else one)


def _newest(attempts: Attempts) -> float | None:
    """As a run by itself has it, or the baseline beside a trial, whose ratio differs by less."""
    newest_first = reversed(list(attempts.of(Purpose.SEARCH, Purpose.CALIBRATE, Purpose.PACE)))
    measured = (one for one in newest_first if one.result.throughput is not None)
    return next((one.result.sigma_run for one in measured if not attempts.pacer_of(one)), None)


def _told(one: StoredAttempt, sigma_run: float) -> StoredAttempt:
    return dataclasses.replace(one, result=dataclasses.replace(one.result, sigma_run=sigma_run))
