"""Trials whose ranks stay as a warm worker and take the configuration of the next trial."""

import dataclasses
import queue

from autotune.worker.protocol import (
    BlockReport,
    Configure,
    Knobs,
    TrialReport,
    TrialRequest,
    Turn,
)
from launchers.agents import Agents
from launchers.base import TrialWatch
from launchers.session import TrialSession
from search_spaces.residency import why_not_live


class WarmSession(TrialSession):
    """A trial in ranks that stay.

    They train block by block, each block on request, so that between two blocks all ranks are at
    the same place.
    """

    def __init__(
        self,
        request: TrialRequest,
        agents: Agents,
        watch: TrialWatch,
        before: "WarmSession | None" = None,
    ) -> None:
        """Launch new ranks, or give the waiting ranks of an earlier trial their new configuration."""
        launched = before.launched if before else request
        super().__init__(launched, agents, watch)
        self.launched: TrialRequest = launched
        """Request by which the ranks were launched."""
        self._request = request
        self._taken_over = before is not None
        self._given: int = before._given if before else 0
        self._idle = False
        if before:
            agents.send(Configure(launched.trial, request))
        else:
            agents.start(request)
        self._go_on()

    @property
    def idle(self) -> bool:
        """True if the trial is over and its ranks wait for the next one."""
        return self._idle and not self._ending and bool(self.nodes)

    @property
    def awaited(self) -> set[int]:
        return set() if self.idle else self.nodes

    @property
    def knobs(self) -> Knobs:
        """Configuration of the ranks."""
        return self._request.knobs

    @property
    def agents(self) -> Agents:
        """Agents of the ranks."""
        return self._agents

    def accepts(self, request: TrialRequest) -> bool:
        """Return whether the waiting ranks can measure this request next."""
        return _as_launched(request) == _as_launched(self.launched) and not why_not_live(
            self._request.knobs, request.knobs
        )

    def is_alive(self) -> bool:
        """Return whether all ranks still wait, as far as is known."""
        while not self._agents.lost:
            try:
                self.on_message(*self._agents.receive(timeout=0.0), stalled="")
            except queue.Empty:
                return self.nodes == self._agents.nodes_of(self.launched)
        return False

    def is_of(self, block: BlockReport) -> bool:
        return block.trial == self._request.trial

    def report(self, seconds: float) -> TrialReport:
        report = super().report(seconds)
        launched = self.launched.trial if self._taken_over else ""
        return dataclasses.replace(report, trial=self._request.trial, resident_of=launched)

    def _take(self, block: BlockReport) -> None:
        if self._ending:
            return
        self.blocks.append(block)
        if self._watch(block) or len(self.blocks) == self._request.blocks.max_blocks:
            self.become_idle()
        else:
            self._go_on()

    def become_idle(self) -> None:
        """Let the ranks wait for the next trial, as enough blocks have come."""
        self._idle = True

    def _go_on(self) -> None:
        self._given += 1
        self._agents.send(Turn(self.launched.trial, self._given))


class WarmMember(WarmSession):
    """A warm session as a member of an interleaved group."""

    def _go_on(self) -> None:
        """Do nothing: the interleaved session gives the next turn."""


def _as_launched(request: TrialRequest) -> TrialRequest:
    """Return a request without what ranks can still change."""
    return dataclasses.replace(
        request,
        trial="",
        knobs={},
        profile=0,
        blocks=_ANY.blocks,
        deadlines=_ANY.deadlines,
        limit=_ANY.limit,
        log_dir="",
    )


_ANY = TrialRequest("", "", {}, {}, 1, 0, "")
