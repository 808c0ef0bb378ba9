"""Several trials on the agents of a slot, which take turns."""

import functools
import threading
import time
from collections.abc import Sequence

from autotune.trial.protocol import BlockReport, Message, TrialReport, TrialRequest, Turn
from launchers.agents import Agents, Ear
from launchers.base import Turns
from launchers.running import Run

_NOTICEABLE = 0.05
"""Seconds of a step: in a longer one it hardly shows that another trial has had the caches. On two
cores, after ranks have waited for others, a step of 70 ms takes 1.4 ms more than usual, in the median,
and one of 370 ms takes 5 ms more: 1 to 2 %, of all that take turns alike."""


def left_out(step: float) -> int:
    """Steps that are not timed of a turn that follows that of another trial.

    Args:
        step: seconds of one, by the latest block of the trial whose turn it is.
    """
    return int(step <= _NOTICEABLE)


class Residents:
    """Several trials on the same agents, of which one at a time trains."""

    def __init__(self, requests: Sequence[TrialRequest], agents: Agents, turns: Turns) -> None:
        self._requests = requests
        self._agents = agents
        self._turns = turns
        self._ear = Ear(agents)
        self._runs: dict[int, Run] = {}
        """By number, those that were launched."""
        self._steps: dict[int, float] = {}
        """Seconds of a step of each, by its latest block."""
        self._trains: int | None = None
        self._given = 0
        """Turns so far."""
        self._since = time.monotonic()
        self._seconds = [0.0] * len(requests)
        self._ending = False
        self._lock = threading.Lock()

    @property
    def lost_agent(self) -> bool:
        """An agent has died."""
        return any(run.lost_agent for run in self._runs.values())

    @property
    def agent_leaves(self) -> bool:
        """An agent cannot go on."""
        return any(run.agent_leaves for run in self._runs.values())

    @property
    def unfit(self) -> str:
        """Why nothing can be run on these nodes any more, in words."""
        return "; ".join(filter(None, [run.unfit for run in self._runs.values()]))

    def end(self) -> None:
        """Enough has been seen of all."""
        with self._lock:
            self._ending = True
            for run in self._runs.values():
                run.end()

    def wait(self, until: float | None = None) -> None:
        """Until every node has cleared all of them away; also when whoever says whose turn it is raises.

        Args:
            until: by the monotonic clock, when all are ended that still run.
        """
        try:
            self._go_on()
            self._wait(until)
        except BaseException:
            self.end()
            self._wait()
            raise
        finally:
            self._account()

    def reports(self) -> list[TrialReport]:
        """Of each request. One that never had a turn is lost if an agent was."""
        return [
            self._runs[number].report(self._seconds[number])
            if number in self._runs
            else TrialReport(request.trial, None, "", (), 0.0, lost_agent=self.lost_agent)
            for number, request in enumerate(self._requests)
        ]

    def _wait(self, until: float | None = None) -> None:
        self._ear.follow(
            lambda: {node for run in self._runs.values() for node in run.nodes},
            self._hear,
            lambda: None if self._ending else until,
            self.end,
        )

    def _hear(self, node: int, message: Message | None, stood: str) -> None:
        for number, run in list(self._runs.items()):
            if not run.nodes:
                continue
            run.hear(node, message, stood)
            if run.nodes or self._ending:
                continue
            self._turns.lost(number)
            if number == self._trains:
                self._go_on()

    def _take(self, member: int, block: BlockReport) -> bool:
        """A turn is over. Its trial goes on, whoever is next."""
        self._steps[member] = block.seconds / block.steps
        self._turns.trained(member, block)
        self._go_on()
        return False

    def _go_on(self) -> None:
        """Give the next turn, or end all."""
        member = self._turns.next()
        if member is None or self.lost_agent:
            self.end()
            return
        self._account()
        with self._lock:
            if self._ending:
                return
            self._given += 1
            request, returns = self._requests[member], member in self._runs
            if not returns:
                watch = functools.partial(self._take, member)
                self._runs[member] = Run(request, self._agents, watch)
                self._agents.start(request)
            rested = returns and member != self._trains
            untimed = left_out(self._steps[member]) if rested else 0
            self._trains = member
            self._agents.send(Turn(request.trial, self._given, rested, untimed))

    def _account(self) -> None:
        """Charge the time since this was last called to whoever has had its turn."""
        now = time.monotonic()
        if self._trains is not None:
            self._seconds[self._trains] += now - self._since
        self._since = now
