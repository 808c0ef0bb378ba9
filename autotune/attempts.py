"""Executing attempts on slots: launch, watch, judge, record exactly once."""

import concurrent.futures
import dataclasses
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.measurement.watch import Limits, Watch
from autotune.spec import StudySpec
from autotune.trial.protocol import (
    BlockPlan,
    BlockReport,
    Deadlines,
    Outcome,
    TrialReport,
    TrialRequest,
)
from launchers import Slot
from storage import AttemptResult, Lease, Repository, StoredAttempt, StoredBlock, StoredStudy

LOST = "LOST"
MOST_LAUNCHES = 3
"""How often a trial is launched again when its agent dies under it."""


_END_AGAIN_SECONDS = 0.2


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
        spec, measurement = self.spec, self.spec.measurement
        name = f"{attempt.trial}-{attempt.purpose}{attempt.round or ''}-{attempt.attempt}"
        return TrialRequest(
            trial=f"{self.study.id}/{name}/{self.lease.epoch}",
            factory=spec.workload.factory,
            args=spec.workload.args,
            knobs=attempt.knobs,
            world_size=self.world_size,
            seed=spec.seed,
            device=slot.device,
            devices_per_rank=slot.devices_per_rank,
            cpus_per_rank=spec.resources.cpus_per_worker,
            memory_per_rank=spec.resources.memory_per_worker,
            blocks=BlockPlan(measurement.block_seconds, measurement.min_steps),
            deadlines=Deadlines(measurement.startup_deadline, measurement.step_deadline),
            workdir=self.study.workdir,
            import_paths=(self.study.workdir,),
            env=spec.env,
            log_dir=str(self.log_dir / name),
        )

    def limits(self, *, confirming: bool, incumbent_low: float) -> Limits:
        """How long to measure."""
        plan = self.spec.measurement
        return Limits(
            warmup=plan.warmup,
            longest=plan.longest,
            precision=plan.confirm_precision if confirming else plan.search_precision,
            tokens=self.spec.objective.metric == "tokens_per_second",
            incumbent_low=incumbent_low,
        )


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
        self._running: dict[Future[TrialReport], tuple[int, StoredAttempt, Watch]] = {}

    @property
    def idle(self) -> bool:
        """Nothing runs."""
        return not self._running

    @property
    def has_free_slot(self) -> bool:
        """Another attempt can be started."""
        return bool(self._free)

    def start(
        self, trial: int, knobs: dict[str, Any], *, round_: int = 0, incumbent_low: float = 0.0
    ) -> None:
        """Record an attempt as begun and launch it on a free slot."""
        attempt = self._job.repository.begin_attempt(
            self._job.lease, self._job.study.id, trial, knobs, round_=round_
        )
        number = min(self._free)  # the same slot, hence the same devices, when one is wanted
        self._free.discard(number)
        slot = self._slots[number]
        watch = Watch(self._job.limits(confirming=round_ > 0, incumbent_low=incumbent_low))
        future = self._pool.submit(slot.run, self._job.request(attempt, slot), watch)
        self._running[future] = (number, attempt, watch)

    def finished(self, timeout: float) -> Iterator[Finished]:
        """Attempts that end within so many seconds, each recorded before it is given out."""
        done, _ = concurrent.futures.wait(
            self._running, timeout, return_when=concurrent.futures.FIRST_COMPLETED
        )
        for future in done:
            number, attempt, watch = self._running.pop(future)
            self._free.add(number)
            report = future.result()
            result = judge(report, watch)
            if result.state == LOST and attempt.attempt >= MOST_LAUNCHES:
                result = dataclasses.replace(result, state=Outcome.CRASH.value)
            self._job.repository.finish_attempt(
                self._job.lease,
                attempt.id,
                result,
                [*_blocks(watch.warmup, kept=False), *_blocks(watch.kept, kept=True)],
                self._job.environment_id,
            )
            yield Finished(attempt, result)

    def abandon(self) -> None:
        """End what runs without recording it; wait until it is gone."""
        running = set(self._running)
        while running:
            # Again and again: a trial that is just being launched cannot be ended yet.
            for future in running:
                self._slots[self._running[future][0]].end()
            _, running = concurrent.futures.wait(running, _END_AGAIN_SECONDS)
        self._pool.shutdown()


def judge(report: TrialReport, watch: Watch) -> AttemptResult:
    """What a trial's report means. A figure that is no positive finite number is an ERROR."""
    common: dict[str, Any] = {
        "peak_bytes": max((block.peak_bytes for block in report.blocks), default=0),
        "wall_seconds": report.wall_seconds,
        "log_tail": report.log_tail,
    }
    if report.lost_agent:
        return AttemptResult(LOST, report.cause, **common)
    if report.outcome is not None:
        return AttemptResult(report.outcome.value, report.cause, **common)
    if watch.problem:
        return AttemptResult("ERROR", watch.problem, **common)
    if not watch.kept:
        return AttemptResult("ERROR", "ended before a block could be timed", **common)
    found = watch.estimate()
    return AttemptResult(
        state=(Outcome.PRUNED if watch.lost else Outcome.COMPLETE).value,
        cause="cannot catch up with the best" if watch.lost else "",
        throughput=found.rate,
        half_width=found.half_width if math.isfinite(found.half_width) else 1.0,
        steady=watch.steady,
        **common,
    )


def _blocks(blocks: Sequence[BlockReport], *, kept: bool) -> list[StoredBlock]:
    return [
        StoredBlock(
            index=block.index,
            steps=block.steps,
            samples=block.samples,
            tokens=block.tokens,
            seconds=block.seconds,
            rank_seconds=list(block.rank_seconds),
            wait_seconds=block.wait_seconds,
            loss=block.loss,
            peak_bytes=block.peak_bytes,
            kept=kept,
        )
        for block in blocks
    ]
