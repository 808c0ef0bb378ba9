"""Several trials on the agents of a slot, of which one at a time trains."""

import functools
import math
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from autotune.worker.protocol import BlockReport, Knobs, Message, TrialReport, TrialRequest, Turn
from launchers.agents import Agents, MessagePump
from launchers.base import TrialWatch, TurnSchedule
from launchers.session import TrialSession
from launchers.warm_session import WarmMember

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


class InterleavedSession:
    """Several trials resident on the same agents; exactly one trains at a time.

    When the schedule is done, trials that stay wait as warm workers until the next interleaved
    group claims them.
    """

    def __init__(
        self,
        requests: Sequence[TrialRequest],
        agents: Agents,
        schedule: TurnSchedule,
        waiting: Mapping[int, WarmMember] | None = None,
        given: int = 0,
    ) -> None:
        """Take in the trials before any of them trains.

        Args:
            waiting: warm workers that take over a request, by its number.
            given: number of turns that they have had before.
        """
        self._requests = requests
        self.agents = agents
        self._schedule = schedule
        self._pump = MessagePump(agents)
        self._runs: dict[int, TrialSession] = {
            number: WarmMember(requests[number], agents, self._watch(number), before)
            for number, before in (waiting or {}).items()
        }
        """Sessions of the launched trials, by number."""
        self._steps: dict[int, float] = {}
        """Seconds of a step of each trial, by its latest block."""
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
        """True if the schedule is done and warm workers wait."""
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
                return self.idle
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
    def _is_idle(run: TrialSession) -> TypeGuard[WarmMember]:
        return isinstance(run, WarmMember) and run.idle

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
        """End all trials, as enough blocks have come."""
        with self._lock:
            self._ending = True
            for run in self._runs.values():
                run.end()

    def wait(self, until: float = math.inf) -> None:
        """Wait until every node has cleared all trials away, also when the schedule raises.

        Args:
            until: monotonic time at which the trials that still run are ended.
        """
        try:
            if not self._begun:
                self._begun = True
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
            self._schedule.lost(number)
            if number == self._trains:
                self._go_on()

    def _take(self, member: int, block: BlockReport) -> bool:
        """Take in the block of a turn and give the next turn.

        The trial goes on, so return False.
        """
        self._steps[member] = block.seconds / block.steps
        self._schedule.trained(member, block)
        if block.index + 1 == self._requests[member].blocks.max_blocks:
            self._schedule.lost(member)
        self._go_on()
        return False

    def _go_on(self) -> None:
        """Give the next turn, unless the schedule is done."""
        member = self._schedule.next()
        if self.lost_agent:
            self.end()
        elif member is None:
            self._enough()
        else:
            self._give(member)

    def _give(self, member: int) -> None:
        self._account()
        with self._lock:
            if self._ending:
                return
            self.given += 1
            if member not in self._runs:
                self._runs[member] = self._launched(member)
            rested = member in self._steps and member != self._trains
            untimed = untimed_steps(self._steps[member]) if rested else 0
            self._trains = member
            self.agents.send(Turn(self._runs[member].name, self.given, rested, untimed))

    def _launched(self, member: int) -> TrialSession:
        request, watch = self._requests[member], self._watch(member)
        if request.stays:
            return WarmMember(request, self.agents, watch)
        run = TrialSession(request, self.agents, watch)
        self.agents.start(request)
        return run

    def _watch(self, member: int) -> TrialWatch:
        return functools.partial(self._take, member)

    def _enough(self) -> None:
        """End all trials, or let them rest as warm workers."""
        with self._lock:
            self._over = True
            for run in self._runs.values():
                if isinstance(run, WarmMember):
                    run.become_idle()
                else:
                    run.end()

    def _account(self) -> None:
        """Charge the time since the last call to the trial that has trained."""
        now = time.monotonic()
        if self._trains is not None:
            self._seconds[self._trains] += now - self._since
        self._since = now
