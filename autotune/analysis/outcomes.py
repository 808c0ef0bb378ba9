"""Ends of attempts, where a study has no configuration to recommend. Pure."""

import collections
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from autotune.analysis.levels import levelled
from storage import Attempts, AttemptState, Purpose, StoredAttempt

_ENDED_WELL = (AttemptState.COMPLETE, AttemptState.PRUNED)


@dataclass(frozen=True)
class Failure:
    """End of an attempt that failed, or the reason why a trial may not be recommended.

    Attributes:
        trial: its trial.
        state: state of the attempt; COMPLETE: the trial ran, and is barred.
        cause: reason, as recorded.
    """

    trial: int
    state: AttemptState
    cause: str

    @classmethod
    def of(cls, attempt: StoredAttempt) -> Self:
        """Return how an attempt ended."""
        return cls(attempt.trial, attempt.result.state, attempt.result.cause)

    def __post_init__(self) -> None:
        """Take a state from JSON."""
        object.__setattr__(self, "state", AttemptState(self.state))


@dataclass(frozen=True)
class Outcomes:
    """Ends of the attempts of a study that has measured nothing.

    Attributes:
        again: True if trials completed, but none could be measured again.
        ends: number of attempts by state.
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
        failed = [a for a in judged if a.result.cause and a.result.state not in _ENDED_WELL]
        return cls(again, dict(sorted(ends.items())), Failure.of(failed[0]) if failed else None)

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Self:
        """Return the outcomes that JSON holds."""
        first = body["first"]
        return cls(body["again"], dict(body["ends"]), Failure(**first) if first else None)


@dataclass(frozen=True)
class SearchBest:
    """Fastest trial of a search, which was seen once.

    Attributes:
        complete: True if any trial completed.
        knobs: its configuration; None if it or the baseline is not known.
        rate: throughput of the baseline, per second; None likewise.
        ratio: throughput of the trial over the baseline's; 1 for the baseline itself.
    """

    complete: bool
    knobs: dict[str, Any] | None = None
    rate: float | None = None
    ratio: float = 1.0

    @classmethod
    def of(cls, attempts: Attempts) -> Self:
        """Return the fastest trial, as if all had run on one node."""
        attempts = levelled(attempts)
        today = attempts.baseline()
        complete = attempts.searched().complete()
        best = max(complete, key=lambda a: a.result.throughput or 0.0, default=None)
        if today is None or best is None:
            return cls(complete=bool(complete))
        ratio = (best.result.throughput or 0.0) / (today.result.throughput or 1.0)
        same = best.knobs == today.knobs
        return cls(True, best.knobs, today.result.throughput or 0.0, 1.0 if same else ratio)


def baseline_failure(attempts: Attempts) -> Failure | None:
    """Return how the baseline failed in the search, or else when it was last measured again.

    None: it completed, or never ran.
    """
    own = attempts.of(Purpose.SEARCH).of_baseline().last
    if own is not None and own.result.state == AttemptState.COMPLETE:
        own = attempts.of(Purpose.CONFIRM).of_trial(own.trial).recorded().last
    return None if own is None or own.result.state in _ENDED_WELL else Failure.of(own)


def long_failure(attempts: Attempts, trial: int, knobs: Mapping[str, Any]) -> Failure | None:
    """Return how the long run of a configuration failed; None if it did not."""
    last = attempts.of(Purpose.LONG).of_trial(trial).with_knobs(knobs).recorded().last
    return None if last is None or last.result.state in _ENDED_WELL else Failure.of(last)
