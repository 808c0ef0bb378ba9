"""Failures of the baseline for a reason of its own, which no search can mend. Pure."""

import re

from autotune.measurement.policy import MEASUREMENT
from storage import Attempts, AttemptState, Purpose, StoredAttempt

_RUNS = (Purpose.FIT, Purpose.PROFILE, Purpose.SEARCH, Purpose.CALIBRATE)
"""Purposes of its runs before anything is confirmed."""
_OWN_FAULT = (AttemptState.ERROR, AttemptState.CRASH, AttemptState.HANG)
"""Failures that no other configuration mends; out of memory is none, as the search may find a fit."""


def for_good(attempts: Attempts, since: int) -> StoredAttempt | None:
    """Return the failure that shows that the baseline does not run; None if none does.

    It equals the failure before it, or is the last of several in a row.

    Args:
        attempts: attempts of the study.
        since: id of the last attempt before the study was started, or went on: what stopped it may have
            been mended then, so one failure at least must be newer.
    """
    failures = _last_failures(attempts)
    if len(failures) < 2 or failures[-1].id <= since:
        return None
    new = [failure for failure in failures if failure.id > since]
    again = _reason(failures[-1]) == _reason(failures[-2])
    return failures[-1] if again or len(new) >= MEASUREMENT.most_failures else None


def to_be_tried_again(attempts: Attempts) -> StoredAttempt | None:
    """Return the baseline's own trial if it has failed and is not under way, as once may be chance."""
    own = attempts.searched().of_baseline().last
    runs = attempts.of(*_RUNS).of_baseline()
    if own is None or any(run.running for run in runs) or not _last_failures(attempts):
        return None
    return own


def runs_after_all(attempts: Attempts) -> bool:
    """Return whether the baseline has failed as a trial, and runs by now."""
    own = attempts.searched().of_baseline()
    again = attempts.of(Purpose.CALIBRATE).of_baseline().complete().last
    return bool(own.last and again and not own.complete() and own.last.id < again.id)


def _last_failures(attempts: Attempts) -> list[StoredAttempt]:
    """Return the failures in a row up to the last run; none once the baseline's trial is complete."""
    if attempts.baseline():
        return []
    own = attempts.of(Purpose.SEARCH).of_baseline().last
    failures: list[StoredAttempt] = []
    for run in attempts.of(*_RUNS).of_baseline().recorded():
        if _beside(run, own):
            continue
        failures = [*failures, run] if run.result.state in _OWN_FAULT else []
    return failures


def _beside(run: StoredAttempt, own: StoredAttempt | None) -> bool:
    """Return whether a run was on another node while the baseline's own trial ran.

    A fault of that node says nothing of the baseline.
    """
    if run.purpose != Purpose.CALIBRATE:
        return False
    return own is None or own.ended is None or run.started < own.ended


def _reason(failure: StoredAttempt) -> tuple[str, str]:
    """Return what two equal failures have in common; the rank and the step that fail are chance."""
    return failure.result.state, re.sub(r"\d+", "#", failure.result.cause)
