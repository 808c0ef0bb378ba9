"""Executing attempts on slots: launch, watch, judge, record exactly once."""

import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from autotune.analysis.wording import counted
from autotune.errors import ClusterAway, DiskFull, LauncherError, StorageUnreachable
from autotune.measurement.noise import run_noise
from autotune.measurement.stop_rule import ObservedBlock
from autotune.runs.interleaved import InterleavedSchedule, interleaved
from autotune.runs.monitors import RunMonitor, TimedMonitor
from autotune.runs.paired import PairedSchedule
from autotune.study.alive import Alive
from autotune.study.job import BASELINE, Allowance, Job
from autotune.study.taking_over import TakingOver, needs_its_own
from autotune.worker.protocol import Outcome, TrialReport, TrialRequest
from launchers import Slot
from storage import (
    AttemptResult,
    AttemptState,
    Fault,
    Purpose,
    StoredAttempt,
    StoredBlock,
    disk,
)

MOST_LAUNCHES = 3
"""How often in a row a run may lose its agent, when it counts as a crash of its own, or its daemon: then
it is not launched again."""

_MOST_SLOTS = 10_000
"""Threads are started one by one, as trials are."""
_END_AGAIN_SECONDS = 0.2
_POLL_SECONDS = 0.2
_TELL_SECONDS = 2.0
_MOST_TOLD = 3
"""Runs at a time of which is said how far they have come."""


@dataclass(frozen=True)
class Finished:
    """A recorded attempt."""

    attempt: StoredAttempt
    result: AttemptResult


class _Running(NamedTuple):
    slot: int
    attempt: StoredAttempt
    judge: RunMonitor
    suspect: bool
    """Its daemon died when it was launched last: nothing else is to share that fate."""


Audience = Callable[[int], None]
"""Told whenever it has been looked whether something has ended: how many attempts have been recorded."""


class Bench:
    """Slots that run attempts, one each at a time, and record what comes of them."""

    def __init__(
        self, job: Job, check: Callable[[], None], audience: Audience = lambda _: None
    ) -> None:
        """Take the slots of the job's launcher.

        Args:
            check: raises when the study is to stop; called while something is waited for.
            audience: of what is recorded.
        """
        self._job = job
        self._check = check
        self._audience = audience
        self._slots = list(job.plan.launcher.slots)
        self._taking_over = TakingOver(self._slots)
        self._free = {number for number, slot in enumerate(self._slots) if slot.usable}
        self._pool = ThreadPoolExecutor(_MOST_SLOTS, thread_name_prefix="slot")
        self.noise = run_noise([])
        """Between runs, as far as it is known."""
        self._running: dict[Future[TrialReport], _Running] = {}
        self._alive = Alive(job)
        self._alive.tell()
        self._told, self._told_text = time.monotonic(), ""
        first = self._slots[0].environment
        self._environments: list[tuple[dict[str, Any], int]] = [(dict(first), job.environment_id)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    @property
    def idle(self) -> bool:
        """Nothing runs."""
        return not self._running

    @property
    def has_free_slot(self) -> bool:
        """Another attempt can be started."""
        self._take_new_slots()
        return bool(self._free) and not any(run.suspect for run in self._running.values())

    @property
    def environments(self) -> list[int | None]:
        """Ids of those of all slots that can be used, slot by slot."""
        return [self._environment_of(slot) for slot in self._slots if slot.usable]

    def where_runs(self, knobs: dict[str, Any]) -> list[int | None]:
        """Environments of the slots on which this configuration runs."""
        running = (run for run in self._running.values() if run.attempt.knobs == knobs)
        return [self._environment_of(self._slots[run.slot]) for run in running]

    def has_free_slot_in(self, environment: int | None) -> bool:
        """Another attempt can be started there."""
        return self.has_free_slot and bool(self._free_in(environment))

    def _free_in(self, environment: int | None) -> set[int]:
        slots = self._slots
        return {n for n in self._free if self._environment_of(slots[n]) == environment}

    @property
    def resident(self) -> dict[str, Any] | None:
        """The configuration of processes that wait on a free slot; None: none do."""
        return self._taking_over.waiting(self._free)

    def start(
        self,
        trial: int,
        knobs: dict[str, Any],
        purpose: Purpose = Purpose.SEARCH,
        *,
        round_: int = 0,
        incumbent_low: Callable[[int | None], float] = lambda _: 0.0,
        judge: RunMonitor | None = None,
        allowed: Allowance | None = None,
    ) -> None:
        """Record an attempt as begun and launch it on a free slot.

        Args:
            incumbent_low: lower bound of the best rate so far, as it would be in an environment.
            judge: what the run is watched for; its speed if not given.
            allowed: time that it may take, from its launch to its end; None: no limit.

        Raises:
            DiskFull: it could not even print what goes wrong.
            LauncherError: the study's folder is gone.
        """
        attempt = self._begin(trial, knobs, purpose, round_)
        number = self._take_slot(attempt, self._free)
        low = incumbent_low(self._environment_of(self._slots[number]))
        live = self._is_live(attempt, number)
        judge = judge or self._timed(purpose, allowed, low, live=live)
        self._launch(attempt, number, judge, allowed, live=live)

    def start_in(
        self,
        environment: int | None,
        trial: int,
        knobs: dict[str, Any],
        purpose: Purpose,
        *,
        allowed: Allowance | None = None,
    ) -> None:
        """The same on a free slot in an environment, where there is one."""
        attempt = self._begin(trial, knobs, purpose, 0)
        number = self._take_slot(attempt, self._free_in(environment))
        live = self._is_live(attempt, number)
        judge = self._timed(purpose, allowed, 0.0, live=live)
        self._launch(attempt, number, judge, allowed, live=live)

    def _timed(
        self, purpose: Purpose, allowed: Allowance | None, low: float, *, live: bool
    ) -> TimedMonitor:
        return TimedMonitor(self._job.limits(purpose, low, self.noise, allowed, live=live))

    def _is_live(self, attempt: StoredAttempt, number: int) -> bool:
        """Whether it will take over the processes that wait on the slot."""
        alone = needs_its_own(attempt, self._job.attempts())
        return not alone and self._taking_over.could(attempt, number)

    def _launch(
        self,
        attempt: StoredAttempt,
        number: int,
        judge: RunMonitor,
        allowed: Allowance | None,
        *,
        live: bool,
    ) -> None:
        slot = self._slots[number]
        attempts = self._job.attempts()
        if not self._is_to_blame([one.result for one in attempts.lost_in_vain(attempt)]):
            request = self._job.request(attempt, slot, allowed, live=live)
            self._taking_over.launched(request, attempt, number)
            alone = needs_its_own(attempt, attempts)
            future = self._pool.submit(_run, slot, request, judge, alone=alone)
        else:
            future = _not_launched(attempt)
        suspect = attempts.saw_daemon_die(attempt)
        self._running[future] = _Running(number, attempt, judge, suspect)

    def _begin(
        self, trial: int, knobs: dict[str, Any], purpose: Purpose, round_: int
    ) -> StoredAttempt:
        """Record that an attempt begins; raises as `start` does."""
        folder = Path(self._job.study.workdir)
        check_there(folder)
        if disk.is_full(folder):
            raise DiskFull(disk.full(folder))
        return self._job.own_attempts.begin(trial, knobs, purpose, round_)

    def _take_slot(self, attempt: StoredAttempt, free: Collection[int]) -> int:
        number = self._taking_over.slot_for(attempt, free)
        self._free.discard(number)
        return number

    def start_in_turn(
        self,
        members: Sequence[tuple[int, dict[str, Any]]],
        purpose: Purpose,
        *,
        round_: int,
        allowed: Allowance | None = None,
    ) -> None:
        """Record an attempt of each as begun, and launch them on a free slot, on which they take turns.

        Args:
            members: trial and knobs of each, in the order in which they go forth.
            allowed: time that they may take together.

        Raises:
            DiskFull, LauncherError: as for `start`.
        """
        attempts = [self._begin(trial, knobs, purpose, round_) for trial, knobs in members]
        each = _share(allowed, len(members))
        group = InterleavedSchedule(
            [self._job.limits(purpose, 0.0, self.noise, each)] * len(members)
        )
        self._launch_in_turn(attempts, self._take_slot(attempts[0], self._free), group, each)

    def start_paced(
        self,
        trial: int,
        knobs: dict[str, Any],
        level: float,
        *,
        incumbent_low: float = 0.0,
        allowed: Allowance | None = None,
    ) -> None:
        """Record a trial of the search as begun, and launch it on a free slot beside the baseline, with
        which it takes turns.

        Args:
            level: units per second of the baseline, at which the trial is to compare with others.
            incumbent_low: lower bound of the best rate so far.
            allowed: time that both may take together.

        Raises:
            DiskFull, LauncherError: as for `start`.
        """
        pacer = self._begin(BASELINE, self._job.plan.baseline, Purpose.PAIRED, trial)
        attempt = self._begin(trial, knobs, Purpose.SEARCH, 0)
        each = _share(allowed, 2)
        number = self._take_slot(attempt, self._free)
        live = self._taking_over.could(attempt, number, in_turn=True)
        own = self._job.limits(Purpose.SEARCH, incumbent_low, self.noise, each, live=live)
        beside = self._job.limits(Purpose.PAIRED, 0.0, self.noise, each, live=live)
        self._launch_in_turn([attempt, pacer], number, PairedSchedule(own, beside, level), each)

    def _launch_in_turn(
        self,
        attempts: Sequence[StoredAttempt],
        number: int,
        group: InterleavedSchedule,
        each: Allowance | None,
    ) -> None:
        slot = self._slots[number]
        requests = [interleaved(self._job.request(one, slot, each)) for one in attempts]
        for request, attempt in zip(requests, attempts, strict=True):
            self._taking_over.launched(request, attempt, number)
        futures: list[Future[TrialReport]] = [Future() for _ in attempts]
        self._pool.submit(_settle, futures, lambda: slot.run_interleaved(requests, group))
        for future, attempt, judge in zip(futures, attempts, group.monitors, strict=True):
            self._running[future] = _Running(number, attempt, judge, suspect=False)

    def finished(self, timeout: float) -> Iterator[Finished]:
        """Attempts that end within so many seconds, each recorded before it is given out."""
        done, _ = concurrent.futures.wait(
            self._running, timeout, return_when=concurrent.futures.FIRST_COMPLETED
        )
        self._alive.tell()
        self._audience(0)
        if not done and time.monotonic() - self._told > _TELL_SECONDS:
            self._tell()
        for future in sorted(done, key=lambda one: self._running[one].attempt.id):
            number, attempt, judge, _ = self._running.pop(future)
            # Of several that have taken turns, the last.
            last = all(run.slot != number for run in self._running.values())
            if last and self._slots[number].usable:
                self._free.add(number)
            report = future.result()
            result = self._suspected(attempt, judge.result(report))
            result = self._taking_over.judged(attempt, report, result)
            blocks = [_stored(seen) for seen in judge.seen]
            environment = self._environment_of(self._slots[number])
            self._job.own_attempts.finish(attempt, result, blocks, environment)
            self._job.tidy_up(attempt, result)
            self._audience(1)
            yield Finished(dataclasses.replace(attempt, environment=environment), result)
            if last:
                self._quarantine(number)

    def _quarantine(self, number: int) -> None:
        """Leave a slot alone that cannot be cleared, or has lost a device; the others go on.

        Raises:
            LauncherError: there is no other.
        """
        slot = self._slots[number]
        if slot.usable:
            return
        self._take_new_slots()
        left = [one for one in self._slots if one.usable]
        self._job.say(
            f"Nothing more runs on {slot.name}: {slot.gone or slot.unusable}. "
            f"{counted(len(left), 'slot')} left."
        )
        if not left and slot.gone:
            raise ClusterAway(slot.gone)
        if not left:
            raise LauncherError(f"{slot.name} is out of use: {slot.unusable}")

    def _take_new_slots(self) -> None:
        """Use those that the launcher has opened since."""
        known = len(self._slots)
        for slot in self._job.plan.launcher.slots[known:]:
            self._free.add(len(self._slots))
            self._slots.append(slot)
            usable = sum(slot.usable for slot in self._slots)
            self._job.say(f"There is room for {slot.name}: {counted(usable, 'trial')} at a time.")

    def _environment_of(self, slot: Slot) -> int:
        """Where the trial has run that has just ended: a slot's agents are replaced now and then."""
        for body, known in self._environments:
            if body == slot.environment:
                return known
        found = self._job.repository.environments.record(self._job.lease, slot.environment)
        self._environments.append((dict(slot.environment), found))
        return found

    def _tell(self) -> None:
        """Say how far what runs has come, if that is not where it was."""
        running = [(run.attempt.trial, list(run.judge.seen)) for run in self._running.values()]
        texts = [f"trial {trial}: {_how_far(seen)}" for trial, seen in running[:_MOST_TOLD]]
        job, text, self._told = self._job, "; ".join(texts), time.monotonic()
        if text == self._told_text:
            return
        with contextlib.suppress(StorageUnreachable):  # what runs does not need it
            job.repository.messages.set_status(job.lease, job.study.id, text)
            self._told_text = text

    def _suspected(self, attempt: StoredAttempt, result: AttemptResult) -> AttemptResult:
        """A run that loses its agent, or fails for want of room, is repeated; one that does so again and
        again is the cause of it."""
        if disk.has_failed(result, Path(self._job.study.workdir)):
            cause = f"a disk was full: {result.cause}"
            result = dataclasses.replace(
                result, state=AttemptState.LOST, cause=cause, fault=Fault.DISK
            )
        if result.state != AttemptState.LOST or result.fault.excuses:
            return result
        before = [one.result for one in self._job.attempts().lost_in_vain(attempt)]
        lost = [*before, result]
        causes = [one.cause for one in lost]
        if not self._is_to_blame(lost):
            return result
        self._job.say(
            f"Trial {attempt.trial} is suspected: whatever it was launched on lost its agent, "
            f"{len(causes)} times: {'; '.join(sorted(set(causes)))}."
        )
        return dataclasses.replace(result, state=AttemptState.CRASH)

    def _is_to_blame(self, lost: Sequence[AttemptResult]) -> bool:
        """Return whether a run that lost its agent or its daemon so often in a row is the cause.

        Among several nodes it must have been on more than one; the causes name the nodes.
        """
        daemon_died = any(one.fault == Fault.DAEMON for one in lost)
        elsewhere = daemon_died or len({one.cause for one in lost}) > 1
        one_node = not self._job.plan.launcher.several_nodes
        return len(lost) >= MOST_LAUNCHES and (one_node or elsewhere)

    def run(
        self,
        trial: int,
        knobs: dict[str, Any],
        purpose: Purpose,
        *,
        round_: int = 0,
        judge: RunMonitor | None = None,
        allowed: Allowance | None = None,
    ) -> None:
        """The same, alone on the bench, and wait for its end."""
        self.start(trial, knobs, purpose, round_=round_, judge=judge, allowed=allowed)
        self._finish()

    def run_interleaved(
        self,
        members: Sequence[tuple[int, dict[str, Any]]],
        purpose: Purpose,
        *,
        round_: int,
        allowed: Allowance | None = None,
    ) -> None:
        """The same as `start_in_turn`, and wait for the end of all of them."""
        self.start_in_turn(members, purpose, round_=round_, allowed=allowed)
        self._finish()

    def _finish(self) -> None:
        while not self.idle:
            self._check()
            for _ in self.finished(_POLL_SECONDS):
                pass

    def abandon(self) -> None:
        """End what runs without recording it; wait until it is gone."""
        running = set(self._running)
        while running:
            # Again and again: a trial that is just being launched cannot be ended yet.
            for future in running:
                self._slots[self._running[future].slot].end()
            _, running = concurrent.futures.wait(running, _END_AGAIN_SECONDS)
        self._pool.shutdown()
        for slot in self._slots:
            slot.dismiss()


def check_there(workdir: Path) -> None:
    """A study's folder is never made anew: what is gone may be on a disk that is not mounted.

    Raises:
        LauncherError: it is not there.
    """
    if not workdir.is_dir():
        raise LauncherError(
            f"the study's folder {workdir} is gone; mount its disk, or put it back; if it has moved, "
            "autotune start there goes on with it"
        )


def _not_launched(attempt: StoredAttempt) -> Future[TrialReport]:
    """What comes of a run that has been the end of its daemon each time."""
    cause = f"its daemon or its agent died each of the {MOST_LAUNCHES} times that it was launched"
    future: Future[TrialReport] = Future()
    future.set_result(TrialReport(attempt.name, Outcome.CRASH, cause, (), 0.0))
    return future


def _run(slot: Slot, request: TrialRequest, judge: RunMonitor, *, alone: bool) -> TrialReport:
    if alone:
        slot.dismiss()
    return slot.run(request, judge)


def _share(allowed: Allowance | None, count: int) -> Allowance | None:
    """Of so many that have a time together, that of each."""
    return allowed and Allowance(allowed.wanted / count, allowed.most)


def _settle(
    futures: Sequence[Future[TrialReport]], run: Callable[[], Sequence[TrialReport]]
) -> None:
    """Run several trials at once, and give each its report, or all what was raised."""
    try:
        reports = run()
    except BaseException as error:
        for future in futures:
            future.set_exception(error)
        return
    # The baseline that sets the pace is the last one: no trial is recorded without it.
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
