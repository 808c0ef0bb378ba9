"""The attempts of a study for the one who writes them, and so knows when to read them again."""

from collections.abc import Collection, Sequence
from typing import Any

from storage import (
    AttemptFeed,
    AttemptResult,
    Attempts,
    Lease,
    Purpose,
    Repository,
    StoredAttempt,
    StoredBlock,
)


class AttemptCache:
    """What whoever holds the lease has begun and finished. Nobody else writes meanwhile: who takes the
    lease away is noticed at the next write, not here."""

    def __init__(
        self,
        repository: Repository,
        lease: Lease,
        study_id: int,
        baseline: dict[str, Any],
        harmless: Collection[str],
    ) -> None:
        """Before anything is read.

        Args:
            baseline: a value for every knob.
            harmless: names of the study's own knobs that cannot change what is computed.
        """
        self._records = repository.attempts
        self._lease = lease
        self._study_id = study_id
        self._feed = AttemptFeed(repository.attempts, study_id)
        self._baseline = baseline
        self._harmless = harmless
        self._known: Attempts | None = None

    def all(self) -> Attempts:
        """What is recorded by now."""
        if self._known is None:
            self._known = Attempts(self._feed.read(), self._baseline, self._harmless)
        return self._known

    def begin(
        self, trial: int, knobs: dict[str, Any], purpose: Purpose, round_: int
    ) -> StoredAttempt:
        """Record that a trial is about to be launched."""
        self._known = None
        return self._records.begin(
            self._lease, self._study_id, trial, knobs, purpose, round_=round_
        )

    def finish(
        self,
        attempt: StoredAttempt,
        result: AttemptResult,
        blocks: Sequence[StoredBlock],
        environment_id: int | None,
    ) -> None:
        """Record what came of an attempt.

        Raises:
            LeaseLost: it is not this daemon's to record any more.
        """
        self._known = None
        self._records.finish(self._lease, attempt.id, result, blocks, environment_id)
