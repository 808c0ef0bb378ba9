"""The ranks of one trial on one node: started, watched by their progress, and reaped."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from autotune.worker import failure, proc, processes
from autotune.worker.files import TrialFiles, make_private
from autotune.worker.inject import settings_copies
from autotune.worker.node.sandbox import Sandbox, Ticket, enter
from autotune.worker.observers.progress import Progress
from autotune.worker.protocol import (
    BlockReport,
    Configure,
    NodeReport,
    Outcome,
    Placement,
    RankEnd,
    TrialRequest,
    Turn,
    Waiting,
    WorkloadBuilt,
    from_line,
)

SETTLE_SECONDS = 0.5
"""Time in which other ranks may still report after the first failure. One may have the cause."""
_LOG_TAIL_BYTES = 6000
_DUMP_SECONDS = 0.3
_STARTUP, _STEP = "measurement.startup_timeout", "measurement.step_timeout"
_USUAL_REASONS = "; an evaluation or a checkpoint between two steps counts as well"
_JOIN_SECONDS = 30.0
"""Timeout for the fork server to tell the exit codes of dead ranks, which it does at once."""
_CUT_SECONDS = 1.0
"""Interval between two checks of the logs' sizes."""


@dataclass
class _Rank:
    number: int
    process: ForkServerProcess
    connection: Connection
    connected: bool = True
    exit_seen: bool = False
    waits: int | None = None
    """Number of the last turn of a rank that waits for the next one."""
    last_count: int = 0
    count_before: int = 0
    """Its counter when it was given its configuration."""
    last_progress: float = field(default_factory=time.monotonic)


class NodeTrial:
    """A running trial, as the agent of one node knows it."""

    def __init__(
        self,
        request: TrialRequest,
        placement: Placement,
        context: ForkServerContext,
        spare: set[int],
    ) -> None:
        self.request = request
        """Request that is measured now."""
        self.name = request.trial
        """Name under which the trial was launched."""
        self._placement = placement
        self._spare = spare
        self._files = TrialFiles(Path(request.log_dir))
        make_private(self._files.folder)
        for copy in request.copies:
            settings_copies.write(copy)
        self._progress = Progress.create(
            self._files.progress(placement.first_rank), placement.local_world_size
        )
        self._kernel_kills = failure.kernel_oom_kills()
        self._ends: list[RankEnd] = []
        self._failed_at: float | None = None
        self._logs_cut = time.monotonic()
        self._ended_by_request = False
        self._ended_on_purpose = False
        self._turn = 0
        self._sandbox = None if request.may_write else Sandbox(request)
        others = range(1, placement.local_world_size)
        try:
            self._ranks = [self._start_first(context), *(self._start(context, r) for r in others)]
        except BaseException:
            if self._sandbox:
                self._sandbox.close()
            raise

    def _start_first(self, context: ForkServerContext) -> _Rank:
        """Start the rank that sets up the sandbox, if the trial has one.

        Raises:
            OSError: the sandbox cannot be set up.
        """
        first = self._start(context, 0)
        if self._sandbox is None:
            return first
        try:
            problem = first.connection.recv_bytes().decode()
        except EOFError:
            problem = "the process that was to mount overlays has died"
        if self._sandbox.settle(first.process.pid or 0, problem):
            return first
        first.process.join()
        first.connection.close()
        return self._start(context, 0)

    def _start(self, context: ForkServerContext, local_rank: int) -> _Rank:
        ours, theirs = context.Pipe()
        ticket = self._sandbox.ticket if self._sandbox else None
        process = context.Process(
            target=_become_a_rank, args=(self.request, self._placement, local_rank, theirs, ticket)
        )
        process.start()
        theirs.close()
        return _Rank(self._placement.first_rank + local_rank, process, ours)

    def waitables(self) -> list[Connection | int]:
        """Return handles that become ready when a rank has a message or has died."""
        connections: list[Connection | int] = [r.connection for r in self._ranks if r.connected]
        return connections + [r.process.sentinel for r in self._ranks if not r.exit_seen]

    def pump(self) -> Iterator[BlockReport | WorkloadBuilt]:
        """Read the ranks' messages; yield those that the launcher must have at once."""
        for rank in self._ranks:
            exited = not rank.exit_seen and rank.process.exitcode is not None
            yield from self._read(rank)
            if exited:
                rank.exit_seen = True
                self._note_exit(rank)

    def end(self, *, hung: str, on_purpose: bool) -> None:
        """Mark the trial as ended.

        Args:
            hung: hang that another node has found; empty if there is none.
            on_purpose: no rank has failed; errors that the end itself causes are not reported.
        """
        if hung and self._failed_at is None:
            self._note_hang(hung)
        self._ended_by_request = True
        self._ended_on_purpose = on_purpose

    def take_turn(self, turn: Turn) -> None:
        """Let the ranks train for a block."""
        self._turn = turn.number
        for rank in self._ranks:
            rank.last_progress = time.monotonic()
            with contextlib.suppress(OSError):  # a dead rank is noticed elsewhere
                rank.connection.send_bytes(turn.to_line())

    def configure(self, command: Configure) -> None:
        """Give the waiting ranks a request that they measure from the next turn on."""
        self.request = command.request
        self._files = TrialFiles(Path(command.request.log_dir))
        self._kernel_kills = failure.kernel_oom_kills()
        try:
            make_private(self._files.folder)
        except OSError as error:
            first, cause = self._placement.first_rank, f"ranks cannot be configured: {error}"
            self._note(RankEnd(first, Outcome.ERROR, cause, at=time.time()))
            return
        for local_rank, rank in enumerate(self._ranks):
            rank.count_before = self._progress[local_rank]
            with contextlib.suppress(OSError):  # a dead rank is noticed elsewhere
                rank.connection.send_bytes(command.to_line())

    @property
    def rests(self) -> bool:
        """Return whether a warm worker's ranks all wait, so that there is nothing to watch."""
        waits = all(rank.waits == self._turn for rank in self._ranks)
        return self.request.stays and waits and not self._ends

    @property
    def roots(self) -> list[int]:
        """Return the process ids of the ranks; every process of the trial here descends from them."""
        return [rank.process.pid for rank in self._ranks if rank.process.pid]

    def forgive(self, seconds: float) -> None:
        """Extend all timeouts by the time for which this node was suspended."""
        for rank in self._ranks:
            rank.last_progress += seconds
        if self._failed_at is not None:
            self._failed_at += seconds

    def over(self) -> bool:
        """Return whether all ranks have ended, or the trial was ended, has failed or hangs."""
        if self._ended_by_request or len(self._ends) == len(self._ranks):
            return True
        now = time.monotonic()
        self._cut_logs(now)
        if self._failed_at is None:
            self._judge_progress(now)
        return self._failed_at is not None and now - self._failed_at >= SETTLE_SECONDS

    def clear(self, keep: Collection[int] = ()) -> NodeReport:
        """Kill every process left of the trial; report how it went and what survives.

        Args:
            keep: ranks of other trials, which go on.
        """
        stuck = ""
        try:
            processes.kill_descendants(self._spare, keep=keep)
        except processes.Survivors as survivors:
            stuck = str(survivors)
        stuck = stuck or self._join()
        for rank in self._ranks:
            rank.connection.close()
            self._files.cut(rank.number)
        if self._sandbox and not stuck:
            self._sandbox.close()
        ends = tuple(self._ends)
        return NodeReport(self.name, self._placement.node, ends, stuck=stuck)

    def _join(self) -> str:
        """Await the exit codes of ranks, which are dead; return those that have none, in words."""
        give_up = time.monotonic() + _JOIN_SECONDS
        for rank in self._ranks:
            rank.process.join(max(0.0, give_up - time.monotonic()))
        left = [rank.process for rank in self._ranks if rank.process.exitcode is None]
        return processes.described(process.pid or 0 for process in left)

    def _read(self, rank: _Rank) -> Iterator[BlockReport | WorkloadBuilt]:
        while rank.connected and rank.connection.poll():
            try:
                line = rank.connection.recv_bytes()
            except (EOFError, OSError):
                rank.connected = False
                return
            message = from_line(line)
            if isinstance(message, BlockReport | WorkloadBuilt):
                yield message
            elif isinstance(message, Waiting):
                rank.waits = message.after
            elif isinstance(message, RankEnd):
                self._note(message)

    def _note(self, end: RankEnd) -> None:
        if any(known.rank == end.rank for known in self._ends):
            return
        if self._ended_on_purpose and failure.may_follow_from_end(end):
            return
        if end.outcome is not None:
            self._failed_at = self._failed_at or time.monotonic()
            tail = self._log_tail(end.rank)
            advice = self._sandbox.advice(end.cause + tail) if self._sandbox else ""
            advice += failure.advice(end.cause)
            end = dataclasses.replace(end, cause=end.cause + advice, log_tail=tail)
        self._ends.append(end)

    def _note_exit(self, rank: _Rank) -> None:
        status = rank.process.exitcode
        assert status is not None
        outcome, cause = failure.outcome_of_exit(
            status,
            self._log_tail(rank.number),
            kernel_killed=failure.kernel_oom_kills() > self._kernel_kills,
        )
        self._note(RankEnd(rank.number, outcome, cause, at=time.time()))

    def _judge_progress(self, now: float) -> None:
        timeouts = self.request.timeouts
        going = self._going()
        for local_rank, rank in enumerate(self._ranks):
            if rank not in going or rank.waits == self._turn:
                continue
            count = self._progress[local_rank]
            if count != rank.last_count:
                rank.last_count, rank.last_progress = count, now
            limit = timeouts.step if count > rank.count_before else timeouts.startup
            if now - rank.last_progress > limit:
                begun = any(self._progress[r] > m.count_before for r, m in enumerate(self._ranks))
                self._note_hang(self._too_long(limit, begun=begun))
                return

    def _too_long(self, limit: float, *, begun: bool) -> str:
        """Return what took longer than allowed, and by which setting."""
        if not begun:
            return f"start-up took more than {limit:g} s ({_STARTUP}, the first step included)"
        usual = _USUAL_REASONS if self.request.script else ""
        return f"a step took more than {limit:g} s ({_STEP}{usual})"

    def _going(self) -> list[_Rank]:
        ended = {end.rank for end in self._ends}
        return [rank for rank in self._ranks if rank.number not in ended]

    def _note_hang(self, what: str) -> None:
        at = time.time()
        hung = [
            RankEnd(
                rank.number,
                Outcome.HANG,
                what,
                at=at,
                stopped=proc.state(rank.process.pid or 0) == "T",
                progress=self._progress[rank.number - self._placement.first_rank],
            )
            for rank in self._going()
        ]
        for rank in self._ranks:
            if rank.process.pid and not rank.exit_seen:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(rank.process.pid, processes.DUMP_SIGNAL)
        time.sleep(_DUMP_SECONDS)
        for end in hung:
            self._note(end)

    def _log_tail(self, number: int) -> str:
        return self._files.tail(number, _LOG_TAIL_BYTES)

    def _cut_logs(self, now: float) -> None:
        if now - self._logs_cut >= _CUT_SECONDS:
            self._logs_cut = now
            for rank in self._ranks:
                self._files.cut(rank.number)


def _become_a_rank(
    request: TrialRequest,
    placement: Placement,
    local_rank: int,
    connection: Connection,
    ticket: Ticket | None,
) -> None:
    # What the rank leaves in shared memory is removed as its trial ends, not as the agent does.
    resource_tracker._resource_tracker._fd = None  # type: ignore[attr-defined]
    # Before a second thread exists: only a single-threaded process may enter a user namespace.
    if ticket:
        enter(ticket, connection)
    # Imported in the fork server; the agent itself does without torch.
    from autotune.worker.rank.main import main

    main(request, placement, local_rank, connection)
