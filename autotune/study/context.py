"""Context of a running study: its setup, its records and its clock."""

import functools
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.analysis.barred import Barred
from autotune.analysis.costs import CostRecords, Costs
from autotune.analysis.provenance import attempts_of
from autotune.analysis.run_digest import run_digest
from autotune.analysis.standing import StoredStanding
from autotune.config import StudySpec
from autotune.runs.study_setup import StudySetup
from search_spaces.constraints import why_not_taken_over
from storage import (
    AttemptFeed,
    AttemptResult,
    Attempts,
    FinalistChoice,
    Lease,
    NewMessage,
    Purpose,
    Repository,
    StoredAttempt,
    StoredBlock,
    StoredNoise,
    StoredStudy,
)

BASELINE = 0
"""Number of its trial."""


class AttemptCache:
    """Write-through cache of a study's attempts.

    It is valid because only the lease holder writes; losing the lease surfaces at the next write.
    """

    def __init__(
        self, repository: Repository, lease: Lease, study_id: int, spec: StudySpec
    ) -> None:
        """Prepare the cache, before anything is read."""
        self._records = repository.attempts
        self._lease = lease
        self._study_id = study_id
        self._feed = AttemptFeed(repository.attempts, study_id)
        self._last = attempts_of((), spec)
        self._current = False
        self._blocks: dict[int, list[StoredBlock]] = {}

    def all(self) -> Attempts:
        """Return the attempts recorded so far."""
        if not self._current:
            self._last = self._last.followed_by(self._feed.read())
            self._current = True
        return self._last

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
        self._current = False
        return self._records.begin(
            self._lease, self._study_id, trial, knobs, purpose, round_=round_
        )

    def finish(
        self,
        attempt: StoredAttempt,
        result: AttemptResult,
        blocks: Sequence[StoredBlock],
        environment_id: int | None,
        *,
        again: bool = False,
    ) -> None:
        """Record the result of an attempt.

        Args:
            again: True if that was tried before.

        Raises:
            StaleLease: another daemon has the study.
        """
        self._current = False
        digest = run_digest(blocks)
        self._records.finish(
            self._lease, attempt.id, result, blocks, environment_id, digest, again=again
        )


@dataclass(frozen=True)
class StudyContext:
    """Running study: its setup, and the records that it is read from and written to."""

    study: StoredStudy
    setup: StudySetup
    lease: Lease
    repository: Repository
    environment_id: int

    def attempts(self) -> Attempts:
        """Return the attempts recorded so far."""
        return self.attempt_cache.all()

    def blocks(self, attempt_id: int) -> list[StoredBlock]:
        """Return the blocks of an attempt; none while it runs."""
        return self.attempt_cache.blocks(attempt_id)

    @functools.cached_property
    def attempt_cache(self) -> AttemptCache:
        """Cache of the attempts, through which they are written."""
        return AttemptCache(self.repository, self.lease, self.study.id, self.setup.spec)

    def say(self, message: str | NewMessage) -> None:
        """Leave a message for the user."""
        self.repository.messages.say(self.lease, self.study.id, message)

    def record_choice(self, several: Sequence[FinalistChoice]) -> None:
        """Record which trials are measured again, and which are not."""
        self.repository.choices.record(self.lease, self.study.id, several)

    def end_search(self, reason: str, messages: Sequence[NewMessage]) -> None:
        """Record why the search has ended, and say so."""
        self.repository.claims.end_search(self.lease, self.study, reason, messages)

    @property
    def profile_stays(self) -> bool:
        """True if the baseline's own trial takes over the ranks in which the baseline was profiled.

        What the profiler leaves behind on a CUDA device has not been measured: there it launches.
        """
        baseline = self.setup.baseline
        reusable = self.setup.spec.workload.reusable
        return reusable and not self.on_device and not why_not_taken_over(baseline, baseline)

    @property
    def on_device(self) -> bool:
        """True if trials run on CUDA devices."""
        return self.setup.launcher.site.on_device

    def tidy_up(self, attempt: StoredAttempt, result: AttemptResult) -> None:
        """Drop the output of a run, unless a user may want it.

        Kept is that of the baseline, and of runs that failed or were profiled.
        """
        asked_for = attempt.purpose == Purpose.PROFILE or (
            attempt.purpose == Purpose.SEARCH and attempt.trial == BASELINE
        )
        failed = not result.state.ended_well
        if not (failed or asked_for or self.setup.spec.logs == "all"):
            shutil.rmtree(self.study.paths.attempt(attempt.name).folder, ignore_errors=True)

    @property
    def workload(self) -> str:
        """Name of the workload with a digest of its arguments, the key of recorded noise.

        Noise of rates per joule is another one.
        """
        spec = self.setup.spec.workload
        arguments = json.dumps(spec.given, sort_keys=True).encode()
        energy = " J" if self.setup.spec.of_energy else ""
        return f"{spec.label[:200]} {hashlib.sha256(arguments).hexdigest()[:12]}{energy}"

    def known_sigma(self) -> float | None:
        """Return the run-to-run noise that an earlier study has found here."""
        known = self.repository.noise.of_others(
            self.study.id,
            self.environment_id,
            workload=self.workload,
            world_size=self.setup.launcher.ranks,
        )
        return known.sigma_run if known else None

    def record_noise(self, noise: StoredNoise) -> None:
        """Record the run-to-run noise that this study has found."""
        self.repository.noise.record(
            self.lease,
            self.study.id,
            self.environment_id,
            noise,
            workload=self.workload,
            world_size=self.setup.launcher.ranks,
        )

    def record_standing(self) -> None:
        """Store where the study stands, so that commands need not read all attempts."""
        spec, noise = self._as_stored, self.repository.noise.of(self.study.id)
        attempts = attempts_of(self.attempts(), spec)
        found = StoredStanding.of(attempts, spec.full_baseline(), noise)
        self.repository.claims.record_standing(self.lease, self.study.id, found.as_dict())

    @functools.cached_property
    def _as_stored(self) -> StudySpec:
        """Settings as commands read them: without what is withheld or was found out."""
        return StudySpec.model_validate(self.study.spec)

    def costs(self) -> Costs:
        """Return what runs cost, as far as known by now."""
        return self._cost_records.by(self.attempts())

    def barred(self) -> Barred:
        """Return which configurations may not be recommended, as far as known by now."""
        return self.attempts().derived(self._barred_by)

    def _barred_by(self, attempts: Attempts) -> Barred:
        return Barred.of_study(attempts, self.blocks, self.setup.spec)

    @functools.cached_property
    def _cost_records(self) -> CostRecords:
        return CostRecords(self.blocks, self.setup.launcher.site.device)
