"""Executing attempts on slots: launch, watch, judge, record exactly once."""

import concurrent.futures
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.measurement import numerics
from autotune.measurement.noise import PRIOR_SIGMA
from autotune.measurement.watch import Limits, Seen
from autotune.runs import requests as plan
from autotune.runs.judging import LOST, Judge, TimedRun
from autotune.spec import StudySpec
from autotune.trial.protocol import Outcome, TrialReport, TrialRequest
from launchers import Slot
from storage import (
    TRAJECTORIES,
    AttemptResult,
    Lease,
    Purpose,
    Repository,
    StoredAttempt,
    StoredBlock,
    StoredNoise,
    StoredStudy,
)

MOST_LAUNCHES = 3
"""How often a trial is launched again when its agent dies under it."""

_END_AGAIN_SECONDS = 0.2
_POLL_SECONDS = 0.2
PROFILED_STEPS = 8
BASELINE = 0
"""Number of its trial."""


@dataclass(frozen=True)
class Job:
    """What every attempt of a study has in common."""

    study: StoredStudy
    spec: StudySpec
    lease: Lease
    repository: Repository
    log_dir: Path
    environment_id: int
    world_size: int

    def request(self, attempt: StoredAttempt, slot: Slot) -> TrialRequest:
        """The trial, ready to launch on this slot."""
        name = attempt.name
        timed = plan.request(
            self.spec,
            slot,
            self.world_size,
            name=f"{self.study.id}/{name}/{self.lease.epoch}",
            knobs=attempt.knobs,
            workdir=self.study.workdir,
            log_dir=self.log_dir / name,
        )
        if attempt.purpose == Purpose.FIT:
            return plan.few_steps(timed)
        return dataclasses.replace(
            timed,
            trajectory=numerics.STEPS if attempt.purpose in TRAJECTORIES else 0,
            profile=PROFILED_STEPS if attempt.purpose == Purpose.PROFILE else 0,
        )

    @property
    def workload(self) -> str:
        """Name of the workload with a digest of its arguments: what noise is known by."""
        spec = self.spec.workload
        arguments = json.dumps(spec.args, sort_keys=True).encode()
        return f"{spec.name[:200]} {hashlib.sha256(arguments).hexdigest()[:12]}"

    def known_sigma(self) -> float | None:
        """Run-to-run noise that an earlier study has found here."""
        found = self.repository.noise_before(
            self.study.id,
            self.environment_id,
            workload=self.workload,
            world_size=self.world_size,
        )
        return found.sigma_run if found else None

    def record_noise(self, noise: StoredNoise) -> None:
        """Keep what this study has found of run-to-run noise."""
        self.repository.record_noise(
            self.lease,
            self.study.id,
            self.environment_id,
            noise,
            workload=self.workload,
            world_size=self.world_size,
        )

    def limits(self, purpose: Purpose, incumbent_low: float, sigma_run: float) -> Limits:
        """How long to measure."""
        measurement = self.spec.measurement
        confirming = purpose in (Purpose.CONFIRM, Purpose.ATTRIBUTE)
        precision = measurement.confirm_precision if confirming else measurement.search_precision
        return plan.limits(self.spec, precision, incumbent_low=incumbent_low, sigma_run=sigma_run)


@dataclass(frozen=True)
class Finished:
    """A recorded attempt."""

    attempt: StoredAttempt
    result: AttemptResult


class Bench:
    """Slots that run attempts, one each at a time, and record what comes of them."""

    def __init__(self, job: Job, slots: Sequence[Slot]) -> None:
        self._job = job
        self._slots = list(slots)
        self._free = set(range(len(slots)))
        self._pool = ThreadPoolExecutor(len(slots), thread_name_prefix="slot")
        self.sigma_run = PRIOR_SIGMA
        """Relative standard deviation between runs, as far as it is known."""
        self._running: dict[Future[TrialReport], tuple[int, StoredAttempt, Judge]] = {}

    @property
    def idle(self) -> bool:
        """Nothing runs."""
        return not self._running

    @property
    def has_free_slot(self) -> bool:
        """Another attempt can be started."""
        return bool(self._free)

    def start(
        self,
        trial: int,
        knobs: dict[str, Any],
        purpose: Purpose = Purpose.SEARCH,
        *,
        round_: int = 0,
        incumbent_low: float = 0.0,
        judge: Judge | None = None,
    ) -> None:
        """Record an attempt as begun and launch it on a free slot.

        Args:
            judge: what the run is watched for; its speed if not given.
        """
        attempt = self._job.repository.begin_attempt(
            self._job.lease, self._job.study.id, trial, knobs, purpose, round_=round_
        )
        number = min(self._free)  # the same slot, hence the same devices, when one is wanted
        self._free.discard(number)
        slot = self._slots[number]
        judge = judge or TimedRun(self._job.limits(purpose, incumbent_low, self.sigma_run))
        future = self._pool.submit(slot.run, self._job.request(attempt, slot), judge)
        self._running[future] = (number, attempt, judge)

    def finished(self, timeout: float) -> Iterator[Finished]:
        """Attempts that end within so many seconds, each recorded before it is given out."""
        done, _ = concurrent.futures.wait(
            self._running, timeout, return_when=concurrent.futures.FIRST_COMPLETED
        )
        for future in done:
            number, attempt, judge = self._running.pop(future)
            self._free.add(number)
            result = judge.result(future.result())
            if result.state == LOST and attempt.attempt >= MOST_LAUNCHES:
                result = dataclasses.replace(result, state=Outcome.CRASH.value)
            self._job.repository.finish_attempt(
                self._job.lease,
                attempt.id,
                result,
                [_stored(seen) for seen in judge.seen],
                self._job.environment_id,
            )
            yield Finished(attempt, result)

    def wait(self, check: Callable[[], None]) -> None:
        """Until nothing runs; `check` is called again and again, and may raise."""
        while not self.idle:
            check()
            for _ in self.finished(_POLL_SECONDS):
                pass

    def abandon(self) -> None:
        """End what runs without recording it; wait until it is gone."""
        running = set(self._running)
        while running:
            # Again and again: a trial that is just being launched cannot be ended yet.
            for future in running:
                self._slots[self._running[future][0]].end()
            _, running = concurrent.futures.wait(running, _END_AGAIN_SECONDS)
        self._pool.shutdown()


def _stored(seen: Seen) -> StoredBlock:
    block = seen.block
    return StoredBlock(
        index=block.index,
        steps=block.steps,
        samples=block.samples,
        tokens=block.tokens,
        seconds=block.seconds,
        rank_seconds=list(block.rank_seconds),
        wait_seconds=block.wait_seconds,
        loss=block.loss,
        peak_bytes=block.peak_bytes,
        kept=seen.kept,
        contended=seen.contended,
        observed=dict(block.observed),
    )
