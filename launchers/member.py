"""A trial of a session, message by message, in new ranks or in those of a warm worker."""

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterable

from autotune.worker import failure
from autotune.worker.protocol import (
    BlockReport,
    Configure,
    EndTrial,
    Heartbeat,
    Knobs,
    Message,
    NodeReport,
    Observed,
    Outcome,
    RankEnd,
    TrialReport,
    TrialRequest,
    WorkloadBuilt,
)
from launchers.agents import Agents
from search_spaces.constraints import why_not_taken_over

OnBlock = Callable[[BlockReport], object]
"""Function that is called with each block of a trial."""


def describe_leftovers(left: str) -> str:
    """Return why nothing can run beside what is left; empty if nothing is left."""
    return left and f"{left} cannot be ended, and nothing can be measured beside it"


class Member:
    """A trial of a session, in ranks of its own that end with it."""

    def __init__(self, request: TrialRequest, agents: Agents, on_block: OnBlock) -> None:
        """Prepare a trial, which `start` launches."""
        self.request = request
        """Request of the trial."""
        self._launched = request
        """Request by which the ranks were launched."""
        self._agents = agents
        self._on_block = on_block
        self.nodes = agents.nodes_of(request)
        """Nodes that have not cleared the trial away yet."""
        self._several_nodes = len(self.nodes) > 1
        self._lock = threading.Lock()
        self._ending = False
        self._on_purpose = False
        self.blocks: list[BlockReport] = []
        self.ends: list[RankEnd] = []
        self.built: dict[int, WorkloadBuilt] = {}
        """Build reports by node."""
        self.lost_agent = False
        self.agent_leaves = False
        self.unfit = ""
        """Reason why nothing can run on these nodes any more; empty if all is well."""
        self.loss = ""
        self.not_its_own = ""
        """Reason why the result says nothing about the configuration; empty if there is none."""
        self._woke_at, self._stood_still = -math.inf, 0.0
        """Monotonic time at which a node went on after its latest suspension, and seconds of that."""

    def start(self) -> None:
        """Launch the ranks, and end them at once if the trial was ended meanwhile."""
        self._agents.start(self.request)
        if self._ending:
            self._agents.send(EndTrial(self.name, on_purpose=self._on_purpose))

    @property
    def waits_for_turns(self) -> bool:
        """True if its ranks train a block at a time, on request."""
        return self.request.interleaved

    def end(self) -> None:
        """End the trial on purpose: enough was seen, the time is up, or the study stops.

        Errors that ranks raise from now on are no result.
        """
        self._end(on_purpose=True)

    @property
    def name(self) -> str:
        """Name by which its ranks are addressed."""
        return self._launched.trial

    @property
    def awaited(self) -> set[int]:
        """Nodes of which a message is still expected."""
        return self.nodes

    def on_message(self, node: int, message: Message | None, stalled: str) -> None:
        """Take in a message of a node, which may belong to another trial; None: the node is lost.

        Args:
            stalled: description of what has stalled, so that figures say nothing; empty: nothing
                has.
        """
        if stalled and not (self._ending and isinstance(message, BlockReport)):
            self.not_its_own = stalled
        if message is None:
            self._lose(node)
        elif isinstance(message, Heartbeat) and message.still:
            self._woke_at, self._stood_still = time.monotonic(), message.still
        elif isinstance(message, BlockReport) and message.trial == self.request.trial:
            self._take(message)
        elif isinstance(message, WorkloadBuilt) and message.trial == self.name:
            self.built[node] = message
        elif isinstance(message, NodeReport) and message.trial == self.name:
            self.nodes.discard(node)
            self.agent_leaves |= message.agent_leaves
            if message.stuck:
                self.unfit = self.unfit or describe_leftovers(message.stuck)
            self._conclude([end for end in message.ends if self._counts(end)])

    def report(self, seconds: float) -> TrialReport:
        """Return the report of the trial, which took this many seconds."""
        cause = failure.cause(self.ends)
        return TrialReport(
            trial=self.request.trial,
            outcome=cause.outcome if cause else None,
            cause=f"rank {cause.rank}: {cause.cause}" if cause and cause.rank >= 0 else self.loss,
            blocks=tuple(self.blocks),
            wall_seconds=seconds,
            log_tail=cause.log_tail if cause else "",
            lost_agent=self.lost_agent,
            not_its_own=self.not_its_own,
            ended_after=cause.ended_after if cause else None,
            contradicted=bool(cause and cause.contradicted),
        )

    def _take(self, block: BlockReport) -> None:
        if self._ending:
            return
        if time.monotonic() - block.taken_seconds < self._woke_at:
            observed = Observed(**{**block.observed, "stood_still": self._stood_still})
            block = dataclasses.replace(block, observed=observed)
        self.blocks.append(block)
        self._on_block(block)

    def _counts(self, end: RankEnd) -> bool:
        """Return whether the end of a rank is evidence.

        Where the ranks of one node are ended first, those of the others lose their connections, and
        may report that before they are ended themselves. A single node knows what came first.
        """
        return not (self._on_purpose and self._several_nodes and failure.may_follow_from_end(end))

    def _conclude(self, ends: list[RankEnd]) -> None:
        self.ends.extend(ends)
        if broken := self._broken_device(ends):
            self.not_its_own = self.not_its_own or broken
            self.unfit = self.unfit or broken
        if any(end.outcome for end in ends):
            hangs = [end.cause for end in ends if end.outcome is Outcome.HANG]
            self._end(hung=hangs[0] if hangs else "")

    def _broken_device(self, ends: Iterable[RankEnd]) -> str:
        """Describe a device that has failed; return an empty text if none has."""
        if self.request.device == "cpu":
            return ""
        shared = not self.request.has_devices_alone
        return next(filter(None, (failure.broken_device(end, shared=shared) for end in ends)), "")

    def _lose(self, node: int) -> None:
        self.nodes.discard(node)
        self.lost_agent = True
        self.not_its_own = self.not_its_own or self._agents.not_its_own.get(node, "")
        died = self.not_its_own or f"the agent of {self._agents.name_of(node)} died"
        self.loss = self._agents.losses.get(node, died)
        self.ends.append(RankEnd(-1, Outcome.CRASH, self.loss, at=time.time()))
        self._end()

    def _end(self, *, hung: str = "", on_purpose: bool = False) -> None:
        with self._lock:
            if self._ending:
                return
            self._ending, self._on_purpose = True, on_purpose
        self._agents.send(EndTrial(self.name, hung, on_purpose))


class WarmMember(Member):
    """A trial in ranks that stay as a warm worker.

    They train block by block, each block on request, so that between two blocks all ranks are at
    the same place.
    """

    def __init__(
        self,
        request: TrialRequest,
        agents: Agents,
        on_block: OnBlock,
        before: "WarmMember | None" = None,
    ) -> None:
        """Prepare a trial, in new ranks or in the waiting ranks of an earlier one."""
        super().__init__(request, agents, on_block)
        self._taken_over = before is not None
        if before:
            self._launched = before._launched
        self._idle = False

    def start(self) -> None:
        """Launch the ranks, or give the waiting ranks their new configuration."""
        if self._taken_over:
            self._agents.send(Configure(self.name, self.request))
        else:
            super().start()

    @property
    def waits_for_turns(self) -> bool:
        return True

    @property
    def idle(self) -> bool:
        """True if the trial is over and its ranks wait for the next one."""
        return self._idle and not self._ending and bool(self.nodes)

    @property
    def complete(self) -> bool:
        """True if the ranks of all nodes are still there."""
        return self.nodes == self._agents.nodes_of(self._launched)

    @property
    def awaited(self) -> set[int]:
        return set() if self.idle else self.nodes

    @property
    def knobs(self) -> Knobs:
        """Configuration of the ranks."""
        return self.request.knobs

    def accepts(self, request: TrialRequest) -> bool:
        """Return whether the waiting ranks can measure this request next."""
        return _as_launched(request) == _as_launched(self._launched) and not why_not_taken_over(
            self.knobs, request.knobs
        )

    def become_idle(self) -> None:
        """Let the ranks wait for the next trial, as enough blocks have come."""
        self._idle = True

    def report(self, seconds: float) -> TrialReport:
        report = super().report(seconds)
        return dataclasses.replace(report, resident_of=self.name if self._taken_over else "")


def _as_launched(request: TrialRequest) -> TrialRequest:
    """Return a request without what ranks can still change."""
    return dataclasses.replace(
        request,
        trial="",
        knobs={},
        profile=0,
        limit=_ANY.limit,
        blocks=_ANY.blocks,
        timeouts=_ANY.timeouts,
        log_dir="",
    )


_ANY = TrialRequest("", "", {}, {}, 1, 0, "")
