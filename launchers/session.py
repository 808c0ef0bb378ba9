"""A trial on the agents of a slot, message by message."""

import threading
import time

from autotune.worker import failure
from autotune.worker.protocol import (
    BlockReport,
    EndTrial,
    Message,
    NodeReport,
    Outcome,
    RankEnd,
    TrialReport,
    TrialRequest,
    WorkloadBuilt,
)
from launchers.agents import Agents, MessagePump
from launchers.base import TrialWatch


def describe_leftovers(left: str) -> str:
    """Return why nothing can run beside what is left; empty if nothing is left."""
    return left and f"{left} cannot be ended, and nothing can be measured beside it"


class TrialSession:
    """A trial, followed by its messages."""

    def __init__(self, request: TrialRequest, agents: Agents, watch: TrialWatch) -> None:
        self._trial = request.trial
        self._agents = agents
        self._watch = watch
        self._pump = MessagePump(agents)
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
        """Reason why the result says nothing about the configuration; empty if it does."""

    def end(self) -> None:
        """End the trial, as enough blocks have come.

        Errors that ranks raise from now on are no result.
        """
        self._end(on_purpose=True)

    def wait(self, until: float | None = None) -> None:
        """Wait until every node has cleared the trial away, also when the watch raises.

        Args:
            until: monotonic time at which the trial is ended if it still runs.
        """
        try:
            self._wait(until)
        except BaseException:
            self._watch = lambda _: True
            self.end()
            self._wait()
            raise

    def _wait(self, until: float | None = None) -> None:
        # An ended trial is waited for, however long it takes.
        self._pump.follow(
            lambda: self.awaited, self.on_message, lambda: None if self._ending else until, self.end
        )

    @property
    def name(self) -> str:
        """Name by which its ranks are addressed."""
        return self._trial

    @property
    def awaited(self) -> set[int]:
        """Nodes of which a message is still expected."""
        return self.nodes

    def is_of(self, block: BlockReport) -> bool:
        """Return whether the block is this trial's."""
        return block.trial == self._trial

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
        elif isinstance(message, BlockReport) and self.is_of(message):
            self._take(message)
        elif isinstance(message, WorkloadBuilt) and message.trial == self._trial:
            self.built[node] = message
        elif isinstance(message, NodeReport) and message.trial == self._trial:
            self.nodes.discard(node)
            self.agent_leaves |= message.agent_leaves
            if message.stuck:
                self.unfit = self.unfit or describe_leftovers(message.stuck)
            self._conclude([end for end in message.ends if self._counts(end)])

    def report(self, seconds: float) -> TrialReport:
        """Return the report of the trial, which took this many seconds."""
        cause = failure.cause(self.ends)
        return TrialReport(
            trial=self._trial,
            outcome=cause.outcome if cause else None,
            cause=f"rank {cause.rank}: {cause.cause}" if cause and cause.rank >= 0 else self.loss,
            blocks=tuple(self.blocks),
            wall_seconds=seconds,
            log_tail=cause.log_tail if cause else "",
            lost_agent=self.lost_agent,
            not_its_own=self.not_its_own,
        )

    def _take(self, block: BlockReport) -> None:
        if self._ending:
            return
        self.blocks.append(block)
        if self._watch(block):
            self.end()

    def _counts(self, end: RankEnd) -> bool:
        """Return whether the end of a rank is evidence.

        Where the ranks of one node are ended first, those of the others lose their connections, and
        may report that before they are ended themselves. A single node knows what came first.
        """
        return not (self._on_purpose and self._several_nodes and failure.may_follow_from_end(end))

    def _conclude(self, ends: list[RankEnd]) -> None:
        self.ends.extend(ends)
        if broken := next(filter(None, map(failure.broken_device, ends)), ""):
            self.not_its_own = self.not_its_own or broken
            self.unfit = self.unfit or broken
        if any(end.outcome for end in ends):
            hangs = [end.cause for end in ends if end.outcome is Outcome.HANG]
            self._end(hung=hangs[0] if hangs else "")

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
        self._agents.send(EndTrial(self._trial, hung, on_purpose))
