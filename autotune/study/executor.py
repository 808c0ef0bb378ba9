"""Executor of run plans: launch, watch, judge, and record each attempt exactly once."""

import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from autotune.errors import DiskFull, LauncherError, StorageUnreachable
from autotune.measurement.stop_rule import ObservedBlock
from autotune.runs.monitors import NOT_ITS_OWN, RunMonitor
from autotune.study.context import StudyContext
from autotune.study.policy import STUDY
from autotune.study.run_planner import Mode, RunPlan
from autotune.study.slot_pool import SlotPool
from autotune.worker.protocol import Outcome, TrialReport, TrialRequest
from launchers import Slot
from storage import (
    AttemptResult,
    AttemptState,
    Fault,
    StoredAttempt,
    StoredBlock,
    disk,
)

_MOST_SLOTS = 10_000
"""Most threads; they are started one by one, as runs are."""
_END_AGAIN_SECONDS = 0.2
_POLL_SECONDS = 0.2
_OUTAGE_SECONDS = 60.0
"""Time for which a result is kept while the storage is away. Then its run is repeated."""
_TELL_SECONDS = 2.0
_MOST_TOLD = 3
"""Most running attempts whose progress is shown."""


@dataclass(frozen=True)
class Finished:
    """A recorded attempt."""

    attempt: StoredAttempt
    result: AttemptResult


class _Running(NamedTuple):
    slot: int
    attempt: StoredAttempt
    monitor: RunMonitor
    suspect: bool
    """True if its daemon died at its latest launch: nothing else is to share that fate."""


Audience = Callable[[bool], None]
"""Called after each look at what runs; True: an attempt has been recorded since."""


class TrialExecutor:
    """Executor of run plans on the slots of a study, one plan per slot at a time."""

    def __init__(
        self,
        context: StudyContext,
        pool: SlotPool,
        check: Callable[[], None],
        audience: Audience = lambda _: None,
    ) -> None:
        """Prepare to run plans.

        Args:
            pool: slots of the study.
            check: raises when the study is to stop; called while something is waited for.
            audience: told after each look whether an attempt has been recorded.
        """
        self._context = context
        self._check = check
        self._audience = audience
        self._pool = pool
        self._threads = ThreadPoolExecutor(_MOST_SLOTS, thread_name_prefix="slot")
        self._running: dict[Future[TrialReport], _Running] = {}
        self._pool.report_health()
        self._told, self._told_text = time.monotonic(), ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    @property
    def idle(self) -> bool:
        """True if nothing runs."""
        return not self._running

    @property
    def has_free_slot(self) -> bool:
        """True if another plan can be submitted."""
        self._pool.open_new()
        self._pool.give_surplus_back()
        return bool(self._pool.free) and not any(run.suspect for run in self._running.values())

    def where_runs(self, knobs: dict[str, Any]) -> list[int | None]:
        """Return the environments of the slots on which a configuration runs."""
        running = (run for run in self._running.values() if run.attempt.knobs == knobs)
        return [self._pool.environment_of(run.slot) for run in running]

    def submit(self, plan: RunPlan) -> None:
        """Record the attempts of a plan as begun, and launch them on its slot.

        Raises:
            DiskFull: it could not even print what goes wrong.
            LauncherError: the study's folder is gone.
        """
        attempts = self._begin(plan)
        self._pool.take(plan.slot, searching=plan.searching)
        futures: list[Future[TrialReport]] = [Future() for _ in attempts]
        known, suspect = self._context.attempts(), False
        if plan.mode is Mode.SOLO:
            suspect = known.saw_daemon_die(attempts[0])
            losses = [one.result for one in known.lost_in_vain(attempts[0])]
            if self._is_to_blame(losses):
                futures[0].set_result(_not_launched(attempts[0]))
        if not futures[0].done():
            requests = [self._request(plan, attempt) for attempt in attempts]
            self._pool.launched(plan.slot, requests, attempts)
            self._threads.submit(_run, self._pool[plan.slot], plan, requests, futures)
        for future, attempt, monitor in zip(futures, attempts, plan.monitors, strict=True):
            self._running[future] = _Running(plan.slot, attempt, monitor, suspect)

    def run(self, plan: RunPlan) -> None:
        """Submit a plan, and wait until everything that runs is recorded."""
        self.submit(plan)
        while not self.idle:
            self._check()
            for _ in self.finished(_POLL_SECONDS):
                pass

    def _begin(self, plan: RunPlan) -> list[StoredAttempt]:
        """Record that the attempts of a plan begin; raise as `submit` does."""
        folder = Path(self._context.study.workdir)
        check_there(folder)
        if disk.lacks_room(folder):
            raise DiskFull(disk.full(folder))
        # In a pair the baseline comes first: no trial is recorded without it.
        paired = plan.mode is Mode.PAIRED
        ordered = plan.attempts[::-1] if paired else plan.attempts
        cache = self._context.attempt_cache
        begun = [cache.begin(one.trial, one.knobs, one.purpose, one.number) for one in ordered]
        return begun[::-1] if paired else begun

    def _request(self, plan: RunPlan, attempt: StoredAttempt) -> TrialRequest:
        """Return the request of an attempt, ready to launch on the slot of its plan."""
        context = self._context
        timed = context.setup.request(
            self._pool[plan.slot],
            attempt.knobs,
            name=f"{context.study.id}/{attempt.name}/{context.lease.epoch}",
            workdir=Path(context.study.workdir),
            log_dir=context.study.paths.attempt(attempt.name).folder,
        )
        return plan.request(timed)

    def finished(self, timeout: float) -> Iterator[Finished]:
        """Yield the attempts that end within this many seconds, each after it is recorded."""
        done, _ = concurrent.futures.wait(
            self._running, timeout, return_when=concurrent.futures.FIRST_COMPLETED
        )
        self._pool.give_surplus_back()
        self._pool.report_health()
        self._audience(False)
        if not done and time.monotonic() - self._told > _TELL_SECONDS:
            self._tell()
        for future in sorted(done, key=lambda one: self._running[one].attempt.id):
            number, attempt, monitor, _ = self._running.pop(future)
            is_last = all(run.slot != number for run in self._running.values())
            if is_last:
                self._pool.give_back(number)
            report = future.result()
            result = self._suspected(attempt, monitor.result(report))
            result = self._pool.with_host(attempt, report, result)
            blocks = [_stored(seen) for seen in monitor.seen]
            environment = self._pool.environment_of(number)
            self._record(attempt, result, blocks, environment)
            self._context.tidy_up(attempt, result)
            self._audience(True)
            yield Finished(dataclasses.replace(attempt, environment=environment), result)
            if is_last:
                self._pool.quarantine(number)

    def _record(
        self,
        attempt: StoredAttempt,
        result: AttemptResult,
        blocks: Sequence[StoredBlock],
        environment: int | None,
    ) -> None:
        """Record a result, also where the storage is away for a moment, as in a fail-over."""
        cache, give_up = self._context.attempt_cache, time.monotonic() + _OUTAGE_SECONDS
        again = False
        while True:
            try:
                cache.finish(attempt, result, blocks, environment, again=again)
            except StorageUnreachable:
                if time.monotonic() >= give_up:
                    raise
            else:
                return
            self._check()
            time.sleep(_POLL_SECONDS)
            again = True

    def _tell(self) -> None:
        """Show the progress of what runs, if it has changed."""
        running = [(run.attempt.trial, list(run.monitor.seen)) for run in self._running.values()]
        texts = [f"trial {trial}: {_how_far(seen)}" for trial, seen in running[:_MOST_TOLD]]
        context, text, self._told = self._context, "; ".join(texts), time.monotonic()
        if text == self._told_text:
            return
        with contextlib.suppress(StorageUnreachable):  # what runs does not need it
            context.repository.messages.set_status(context.lease, context.study.id, text)
            self._told_text = text

    def _suspected(self, attempt: StoredAttempt, result: AttemptResult) -> AttemptResult:
        """Return the result of a run that may be the cause of its losses.

        A run that loses its agent or its node, or fails for want of disk space, is LOST and repeated.
        A run that does so again and again is to blame: it is a CRASH.
        """
        if disk.has_failed(result, Path(self._context.study.workdir)):
            cause = f"a disk was full: {result.cause}"
            result = dataclasses.replace(
                result, state=AttemptState.LOST, cause=cause, fault=Fault.DISK
            )
        if result.state != AttemptState.LOST or result.fault in (Fault.WORKER, Fault.INTERLEAVED):
            return result
        lost = self._blamed_for(attempt, result)
        if not lost:
            return result
        causes = [one.cause.removeprefix(NOT_ITS_OWN) for one in lost]
        what = "node" if result.fault == Fault.NODE else "agent"
        self._context.say(
            f"Trial {attempt.trial} is suspected: whatever it was launched on lost its {what}, "
            f"{len(causes)} times: {'; '.join(sorted(set(causes)))}."
        )
        return dataclasses.replace(result, state=AttemptState.CRASH, cause=causes[-1])

    def _blamed_for(self, attempt: StoredAttempt, latest: AttemptResult) -> list[AttemptResult]:
        """Return the losses that a run is to blame for, the latest included; none if it is not."""
        known = self._context.attempts()
        lost = [*(one.result for one in known.lost_in_vain(attempt)), latest]
        if self._is_to_blame(lost):
            return lost
        with_node = [*(one.result for one in known.lost_with_node(attempt)), latest]
        always = latest.fault == Fault.NODE and len(with_node) >= STUDY.most_node_losses
        return with_node if always else []

    def _is_to_blame(self, lost: Sequence[AttemptResult]) -> bool:
        """Return whether a run that has lost agent, node or daemon this often in a row is the cause.

        Among several nodes it must have been on more than one, which the causes name.
        """
        daemon_died = any(one.fault == Fault.DAEMON for one in lost)
        elsewhere = daemon_died or len({one.cause for one in lost}) > 1
        one_node = not self._context.setup.launcher.several_nodes
        return len(lost) >= STUDY.most_launches and (one_node or elsewhere)

    def abandon(self) -> None:
        """End what runs without recording it, and wait until it is gone."""
        running = set(self._running)
        while running:
            # Again and again: a trial that is just being launched cannot be ended yet.
            for future in running:
                self._pool[self._running[future].slot].end()
            _, running = concurrent.futures.wait(running, _END_AGAIN_SECONDS)
        self._threads.shutdown()
        for slot in self._pool:
            slot.dismiss()


def check_there(workdir: Path) -> None:
    """Check that a study's folder is there.

    It is never made anew: a folder that is gone may be on a disk that is not mounted.

    Raises:
        LauncherError: it is not there.
    """
    if not workdir.is_dir():
        raise LauncherError(
            f"the study's folder {workdir} is gone; mount its disk, or put it back; if it has moved, "
            "autotune start there goes on with it"
        )


def _not_launched(attempt: StoredAttempt) -> TrialReport:
    """Return the report of an attempt that has been the end of its daemon each time."""
    times = STUDY.most_launches
    cause = f"its daemon or its agent died each of the {times} times that it was launched"
    return TrialReport(attempt.name, Outcome.CRASH, cause, (), 0.0)


def _run(
    slot: Slot,
    plan: RunPlan,
    requests: Sequence[TrialRequest],
    futures: Sequence[Future[TrialReport]],
) -> None:
    """Run a plan, and give each attempt its report, or all the error that was raised."""
    try:
        if not plan.reuse:
            slot.dismiss()
        reports = slot.run(requests, plan.schedule)
    except BaseException as error:
        for future in futures:
            future.set_exception(error)
        return
    # In a pair the baseline is last, and recorded first.
    for future, report in reversed(list(zip(futures, reports, strict=True))):
        future.set_result(report)


def _how_far(seen: Sequence[ObservedBlock]) -> str:
    if not seen:
        return "starting, no step is done"
    steps, kept = sum(one.block.steps for one in seen), sum(one.kept for one in seen)
    warm_up = "" if kept else ", still warming up"
    return f"block {len(seen)} done, {steps} steps{warm_up}"


def _stored(seen: ObservedBlock) -> StoredBlock:
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
