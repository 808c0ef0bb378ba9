"""A session on the agents of a slot: one trial, or several of which one at a time trains."""

import functools
import math
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from autotune.worker.protocol import (
    BlockReport,
    Knobs,
    Message,
    TrialReport,
    TrialRequest,
    Turn,
    WorkloadBuilt,
)
from launchers.agents import Agents, MessagePump
from launchers.base import TurnSchedule
from launchers.member import Member, OnBlock, WarmMember

_NOTICEABLE = 0.05
"""Longest step, in seconds, in which the loss of the caches to another trial shows.

On two cores, after ranks have waited for others, a step of 70 ms takes 1.4 ms more than usual, in
the median, and one of 370 ms takes 5 ms more: 1 to 2 %, for all interleaved trials alike."""


def untimed_steps(step: float) -> int:
    """Return the number of steps that are not timed after a change from another trial.

    Args:
        step: seconds of a step, by the latest block of the trial that trains next.
    """
    return int(step <= _NOTICEABLE)


class Session:
    """Trials resident on the same agents; exactly one trains at a time.

    A trial by itself is a session of one. When the schedule is done, trials that stay wait as warm
    workers until the next session claims them.
    """

    def __init__(
        self,
        requests: Sequence[TrialRequest],
        agents: Agents,
        schedule: TurnSchedule,
        waiting: Mapping[int, WarmMember] | None = None,
        given: int = 0,
    ) -> None:
        """Take in the trials before any of them trains."""
        self._requests = requests
        self.agents = agents
        self._schedule = schedule
        self._pump = MessagePump(agents)
        self._runs: dict[int, Member] = {}
        """Launched trials, by number."""
        for number, before in (waiting or {}).items():
            own = WarmMember(requests[number], agents, self._on_block(number), before)
            own.start()
            self._runs[number] = own
        self._steps: dict[int, float] = {}
        """Seconds of a step of each interleaved trial, by its latest block."""
        self._trains: int | None = None
        self.given = given
        """Number of turns so far."""
        self._begun = False
        self._since = time.monotonic()
        self._seconds = [0.0] * len(requests)
        self._ending = False
        self._over = False
        """True once no more turns are given."""
        self._lock = threading.Lock()

    @property
    def idle(self) -> bool:
        """True if the schedule is done and a warm worker waits."""
        return self._over and any(self._is_idle(run) for run in self._runs.values())

    @property
    def knobs(self) -> Knobs | None:
        """Configuration of the first warm worker that waits; None if there is none."""
        idle = (run.knobs for _, run in sorted(self._runs.items()) if self._is_idle(run))
        return next(idle, None)

    def is_alive(self) -> bool:
        """Return whether warm workers still wait, as far as is known."""
        while not self.agents.lost:
            try:
                self._on_message(*self.agents.receive(timeout=0.0), stalled="")
            except queue.Empty:
                idle = [run for run in self._runs.values() if self._is_idle(run)]
                return self._over and bool(idle) and all(run.complete for run in idle)
        return False

    def claim(self, requests: Sequence[TrialRequest]) -> dict[int, WarmMember]:
        """Return the warm workers that can take these requests, by number of the request.

        All others are ended.
        """
        for number, run in self._runs.items():
            if not (
                self._is_idle(run) and number < len(requests) and run.accepts(requests[number])
            ):
                run.end()
        self._wait()
        return {number: run for number, run in self._runs.items() if self._is_idle(run)}

    @staticmethod
    def _is_idle(run: Member) -> TypeGuard[WarmMember]:
        return isinstance(run, WarmMember) and run.idle

    @property
    def built(self) -> dict[int, WorkloadBuilt]:
        """Build reports by node, of the trial that has built last."""
        return {node: report for run in self._runs.values() for node, report in run.built.items()}

    @property
    def sound(self) -> bool:
        """True if the agents can go on, and nothing is left that cannot be ended."""
        return not (self.lost_agent or self.agent_leaves or self.unfit)

    @property
    def lost_agent(self) -> bool:
        """True if an agent has died."""
        return any(run.lost_agent for run in self._runs.values())

    @property
    def agent_leaves(self) -> bool:
        """True if an agent cannot continue."""
        return any(run.agent_leaves for run in self._runs.values())

    @property
    def unfit(self) -> str:
        """Reason why nothing can run on these nodes any more; empty if all is well."""
        return "; ".join(filter(None, [run.unfit for run in self._runs.values()]))

    def end(self) -> None:
        """End all trials on purpose: enough was seen, the time is up, or the study stops.

        Errors that ranks raise from now on are no result.
        """
        with self._lock:
            self._ending = True
            runs = list(self._runs.values())
        for run in runs:
            run.end()

    def wait(self, until: float = math.inf) -> None:
        """Wait until every node has cleared all trials away, also when the schedule raises.

        Args:
            until: monotonic time at which the trials that still run are ended.
        """
        try:
            if not self._begun:
                self._begun = True
                self._launch_at_once()
                self._go_on()
            self._wait(until)
        except BaseException:
            self.end()
            self._wait()
            raise
        finally:
            self._account()

    def reports(self) -> list[TrialReport]:
        """Return a report per request.

        A trial that never had a turn is lost if an agent was.
        """
        return [
            self._runs[number].report(self._seconds[number])
            if number in self._runs
            else TrialReport(request.trial, None, "", (), 0.0, lost_agent=self.lost_agent)
            for number, request in enumerate(self._requests)
        ]

    def _wait(self, until: float = math.inf) -> None:
        self._pump.follow(
            lambda: {node for run in self._runs.values() for node in run.awaited},
            self._on_message,
            lambda: math.inf if self._ending else until,
            self.end,
        )

    def _on_message(self, node: int, message: Message | None, stalled: str) -> None:
        for number, run in list(self._runs.items()):
            if not run.nodes:
                continue
            run.on_message(node, message, stalled)
            if run.nodes or self._ending or self._over:
                continue
            self._schedule.drop(number)
            if number == self._trains:
                self._go_on()

    def _take(self, member: int, block: BlockReport) -> None:
        """Take in the block of a turn and give the next turn."""
        request = self._requests[member]
        if request.interleaved:
            self._steps[member] = block.seconds / block.steps
        self._schedule.trained(member, block)
        # Ranks that wait for no turn end by themselves after their last block.
        is_last = block.index + 1 == request.blocks.max_blocks
        if is_last and self._runs[member].waits_for_turns:
            self._schedule.drop(member)
        self._go_on()

    def _go_on(self) -> None:
        """Give the next turn, unless the schedule is done."""
        member = self._schedule.next()
        if self.lost_agent:
            self.end()
        elif member is None:
            self._finish()
        else:
            self._give(member)

    def _give(self, member: int) -> None:
        self._account()
        with self._lock:
            if self._ending:
                return
            self.given += 1
            is_new = member not in self._runs
            run = self._new(member) if is_new else self._runs[member]
        rested = member in self._steps and member != self._trains
        untimed = untimed_steps(self._steps[member]) if rested else 0
        self._trains = member
        # Not under the lock: a stalled node delays commands, and the session may be ended meanwhile.
        if is_new:
            run.start()
        if run.waits_for_turns:
            self.agents.send(Turn(run.name, self.given, rested, untimed))

    def _launch_at_once(self) -> None:
        """Launch all trials where the schedule wants them to build at the same time."""
        with self._lock:
            wanted = self._schedule.at_once and not self._ending
            new = [n for n in range(len(self._requests)) if wanted and n not in self._runs]
            runs = [self._new(number) for number in new]
        for run in runs:
            run.start()

    def _new(self, member: int) -> Member:
        """Return the run of a trial that has none yet."""
        request = self._requests[member]
        kind = WarmMember if request.stays else Member
        run = self._runs[member] = kind(request, self.agents, self._on_block(member))
        return run

    def _on_block(self, member: int) -> OnBlock:
        return functools.partial(self._take, member)

    def _finish(self) -> None:
        """End all trials, or let their ranks wait as warm workers."""
        self._over = True
        for run in self._runs.values():
            if isinstance(run, WarmMember):
                run.become_idle()
            elif run.nodes:
                run.end()

    def _account(self) -> None:
        """Charge the time since the last call to the trial that has trained."""
        now = time.monotonic()
        if self._trains is not None:
            self._seconds[self._trains] += now - self._since
        self._since = now
