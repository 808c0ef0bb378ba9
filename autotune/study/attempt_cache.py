"""Write-through cache of the attempts of the running study."""

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
    """Write-through cache of a study's attempts.

    It is valid because only the lease holder writes; losing the lease surfaces at the next write.
    """

    def __init__(
        self,
        repository: Repository,
        lease: Lease,
        study_id: int,
        baseline: dict[str, Any],
        harmless: Collection[str],
    ) -> None:
        """Prepare the cache, before anything is read.

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
        self._blocks: dict[int, list[StoredBlock]] = {}

    def all(self) -> Attempts:
        """Return the attempts recorded so far."""
        if self._known is None:
            self._known = Attempts(self._feed.read(), self._baseline, self._harmless)
        return self._known

    def blocks(self, attempt_id: int) -> list[StoredBlock]:
        """Return the blocks of an attempt, which are recorded once, with its result."""
        if attempt_id not in self._blocks:
            found = self._records.blocks(attempt_id)
            if not found:
                return []
            self._blocks[attempt_id] = found
        return self._blocks[attempt_id]

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
        """Record the result of an attempt.

        Raises:
            StaleLease: another daemon has the study.
        """
        self._known = None
        self._records.finish(self._lease, attempt.id, result, blocks, environment_id)
