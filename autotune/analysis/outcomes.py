"""Ends of attempts where a study has no configuration to recommend, and failures of the baseline. Pure.

A baseline may fail for a reason of its own, which no search can mend.
"""

import collections
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from autotune.analysis.finalists import ranked
from autotune.analysis.node_speeds import at_home_speed
from autotune.analysis.policy import ANALYSIS
from autotune.analysis.soak_runs import soak_runs
from autotune.analysis.trial_ratios import trial_ratios
from autotune.measurement.estimate import Ratio
from storage import Attempts, AttemptState, Purpose, StoredAttempt, StoredNoise

_RUNS = (Purpose.FIT, Purpose.PROFILE, Purpose.SEARCH, Purpose.CALIBRATE)
"""Purposes of its runs before anything is confirmed."""
_OWN_FAULT = (AttemptState.ERROR, AttemptState.CRASH, AttemptState.HANG)
"""Failures that no other configuration mends; out of memory is none, as the search may find a fit."""


@dataclass(frozen=True)
class Failure:
    """End of an attempt that failed, or the reason why a trial may not be recommended.

    Attributes:
        state: state of the attempt; COMPLETE: the trial ran, and is barred.
    """

    trial: int
    state: AttemptState
    cause: str

    @classmethod
    def of(cls, attempt: StoredAttempt) -> Self:
        """Return how an attempt ended."""
        return cls(attempt.trial, attempt.result.state, attempt.result.cause)


@dataclass(frozen=True)
class Outcomes:
    """Ends of the attempts of a study that has measured nothing.

    Attributes:
        again: True if trials completed, but none could be measured again.
        first: first failure with a cause; None if there is none.
    """

    again: bool
    ends: dict[str, int]
    first: Failure | None

    @classmethod
    def of(cls, attempts: Attempts) -> Self:
        """Return the ends of the trials, or of the confirmation if trials completed."""
        searched = attempts.searched()
        again = bool(searched.complete())
        judged = attempts.of(Purpose.CONFIRM) if again else searched
        ends = collections.Counter(str(a.result.state) for a in judged)
        failed = [a for a in judged if a.result.cause and not a.result.state.ended_well]
        return cls(again, dict(sorted(ends.items())), Failure.of(failed[0]) if failed else None)


@dataclass(frozen=True)
class SearchBest:
    """Fastest trial of a search that may be recommended, which was seen once.

    Attributes:
        knobs: its configuration; None if it or the baseline is not known.
        rate: throughput of the baseline, per second; None likewise.
        ratio: of the trial over the baseline, as the tables of trials have it; None likewise.
    """

    complete: bool
    knobs: dict[str, Any] | None = None
    rate: float | None = None
    ratio: Ratio | None = None

    @classmethod
    def of(cls, attempts: Attempts, noise: StoredNoise | None, barred: Collection[int]) -> Self:
        """Return the fastest trial, as if all had run on one node.

        Args:
            noise: newest run-to-run noise that the study has found; None: as recorded with each run.
            barred: trials that may not be recommended.
        """
        at_home, ratios = at_home_speed(attempts), trial_ratios(attempts, noise)
        baseline = at_home.baseline()
        best = next((one for one in ranked(attempts) if one.trial not in barred), None)
        if baseline is None or best is None or best.trial not in ratios:
            return cls(complete=bool(at_home.searched().complete()))
        return cls(True, best.knobs, baseline.result.throughput or 0.0, ratios[best.trial].ratio)


def baseline_failure(attempts: Attempts) -> Failure | None:
    """Return how the baseline failed in the search, or else when it was last measured again.

    None: it completed, never ran, or has no result yet.
    """
    own = attempts.of(Purpose.SEARCH).of_baseline().recorded().last
    if own is not None and own.result.state == AttemptState.COMPLETE:
        own = attempts.of(Purpose.CONFIRM).of_trial(own.trial).recorded().last
    return None if own is None or own.result.state.ended_well else Failure.of(own)


def soak_failure(attempts: Attempts, trial: int, knobs: Mapping[str, Any]) -> Failure | None:
    """Return how the long run of a configuration failed; None if it did not."""
    last = soak_runs(attempts).of_trial(trial).with_knobs(knobs).last
    return None if last is None or last.result.state.ended_well else Failure.of(last)


def for_good(attempts: Attempts, since: int) -> StoredAttempt | None:
    """Return the failure that shows that the baseline does not run; None if none does.

    It equals the failure before it, or is the last of several in a row.

    Args:
        since: id of the last attempt before the study was started, or went on: what stopped it may have
            been mended then, so one failure at least must be newer.
    """
    failures = _last_failures(attempts)
    if len(failures) < 2 or failures[-1].id <= since:
        return None
    new = [failure for failure in failures if failure.id > since]
    again = _reason(failures[-1]) == _reason(failures[-2])
    return failures[-1] if again or len(new) >= ANALYSIS.most_failures else None


def to_be_tried_again(attempts: Attempts, since: int) -> StoredAttempt | None:
    """Return the baseline's own trial if it is to run again, and is not under way.

    It has failed, as once may be chance, or was ended before its first step and has more time now.

    Args:
        since: id of the last attempt before the study was started, or went on.
    """
    own = attempts.searched().of_baseline().last
    runs = attempts.of(*_RUNS).of_baseline()
    if own is None or any(run.running for run in runs):
        return None
    return own if _last_failures(attempts) or _was_cut(attempts, since) else None


def runs_after_all(attempts: Attempts) -> bool:
    """Return whether the baseline has failed as a trial, and runs by now."""
    own = attempts.searched().of_baseline()
    again = attempts.of(Purpose.CALIBRATE).of_baseline().complete().last
    return bool(own.last and again and not own.complete() and own.last.id < again.id)


def _was_cut(attempts: Attempts, since: int) -> bool:
    """Return whether the last run of the baseline was ended without a step, before the study went on."""
    last = attempts.of(*_RUNS).of_baseline().recorded().last
    return attempts.baseline() is None and last is not None and last.id <= since and last.in_vain


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
