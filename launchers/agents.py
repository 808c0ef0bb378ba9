"""The agents of a slot: starting them, sending commands, receiving messages."""

import contextlib
import dataclasses
import itertools
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from autotune.errors import ClusterAway, DevicesTaken, LauncherError
from autotune.worker.protocol import (
    PROTOCOL,
    BlockReport,
    Heartbeat,
    Hello,
    Message,
    Placement,
    Preload,
    StartTrial,
    TrialRequest,
    WorkloadBuilt,
    from_line,
)
from launchers.base import Link

_log = logging.getLogger(__name__)

START_SECONDS = 180.0
"""Timeout of an agent's start, which imports torch and inspects the node."""
SILENT_SECONDS = 60.0
"""Timeout after which a silent agent with a running trial is given up.

It sends a heartbeat every five seconds, except while it clears away, for half a minute at most."""
STALL_SECONDS = 12.0
"""Silence of an agent, or a gap in its own checks of its ranks, that counts as a stall.

The ranks or their messages stood still as well, so what was timed meanwhile is no measurement."""
_WORTH_NEW_AGENTS_SECONDS = 1.0
"""Seconds to build a workload, in every trial, that justify new agents. These take two or three,
once."""
_LISTEN_SECONDS = 1.0
_WAIT_POLL_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of a slot: how to start its agent, and the number of ranks that it takes."""

    connect: Callable[[], Link]
    ranks: int


def _link_to(number: int, node: Node) -> Link:
    """Start the agent of a node."""
    try:
        return node.connect()
    except OSError as error:
        raise LauncherError(f"the agent of node {number} cannot be started: {error}") from error


class AgentDied(LauncherError):
    """An agent that was gone before it was ready."""

    def __init__(self, cause: str, loss: str) -> None:
        super().__init__(cause)
        self.loss = loss
        """Reason why its node or its cluster was lost; empty: it was not."""


class StartCancelled(AgentDied):
    """Cancellation of a trial before its agents started."""


def is_of_nodes(error: BaseException) -> bool:
    """Return whether the nodes of a slot are the reason that it did not open: others may be sound."""
    elsewhere = (ClusterAway, DevicesTaken, StartCancelled)
    return isinstance(error, LauncherError) and not isinstance(error, elsewhere)


class SlotGone(ClusterAway):
    """Loss of the nodes of a slot, with no others available at present."""

    @property
    def loss(self) -> str:
        """Reason of the loss."""
        return str(self)


class Preloading:
    """Modules to preload: at first none, then those that building the workload imported.

    They are preloaded only if that saves time.
    """

    def __init__(self, nodes: int, energy_of: str = "") -> None:
        """Preload nothing yet.

        Args:
            nodes: number of agents.
            energy_of: devices whose energy has to be readable, 'cpu' or 'cuda'; the first agents tell
                whether it is. Empty: it is not asked for.
        """
        self.by_node = [Preload(energy_of=energy_of)] * nodes
        self._learnt = False

    @property
    def wanted(self) -> bool:
        """True if there are modules to import."""
        return any(preload.modules for preload in self.by_node)

    def learn(self, built: Mapping[int, WorkloadBuilt]) -> bool:
        """Take in what the nodes report of a trial; return whether new agents would save time."""
        if self._learnt or len(built) < len(self.by_node):
            return False
        self._learnt = True
        if max(report.seconds for report in built.values()) > _WORTH_NEW_AGENTS_SECONDS:
            self.by_node = [built[node].preload for node in range(len(self.by_node))]
        return self.wanted

    def disable(self) -> None:
        """Import nothing any more, because it does harm."""
        self.by_node = [Preload()] * len(self.by_node)


class Agents:
    """The agents of a slot, all ready; their messages arrive in one queue."""

    def __init__(
        self, nodes: Sequence[Node], preloading: Preloading, on_wait: Callable[[], object]
    ) -> None:
        """Start the agents and wait until all are ready.

        Args:
            on_wait: called repeatedly until they are ready; may raise.
        """
        self._nodes = nodes
        self._on_wait = on_wait
        self._inbox: queue.Queue[tuple[int, Message | None]] = queue.Queue()
        self.links: list[Link] = []
        self.lost = False
        """True if an agent is gone: a new trial needs new agents."""
        self.losses: dict[int, str] = {}
        """Reason of a loss by node, where more is known than that the agent died."""
        self.not_its_own: dict[int, str] = {}
        """Reason of a loss by node, where the node or its cluster was lost, or has stalled."""
        self.silent: frozenset[int] = frozenset()
        """Nodes with something running that have been silent for too long."""
        self.delays = [0.0] * len(nodes)
        """Seconds by which each node has delayed the latest command."""
        self._asked: dict[tuple[int, int], float] = {}
        """Monotonic start time of each pending command, by node and sending thread.

        A trial may be ended by another thread than its own."""
        self._ended: set[int] = set()
        """Nodes whose agents have ended by themselves."""
        self._closing = False
        hellos = self._connected(preloading)
        self.environments = [hello.environment for hello in hellos]
        self.energy_unreadable = [hello.energy_unreadable for hello in hellos]
        self.cuda_devices = hellos[0].devices
        self.fit = not any(hello.unfit for hello in hellos)
        """True if ranks can be forked from what the agents have imported."""
        self._store_port = hellos[0].store_port
        self._interfaces = [hello.interface for hello in hellos]

    def _connected(self, preloading: Preloading) -> list[Hello]:
        """Start the agents; return what they tell of themselves."""
        try:
            for number, node in enumerate(self._nodes):
                self.links.append(_link_to(number, node))
            for link, preload in zip(self.links, preloading.by_node, strict=True):
                there = dataclasses.replace(preload, host=self.links[0].host)
                link.send(there.to_line())
            for index, link in enumerate(self.links):
                threading.Thread(target=self._listen, args=(index, link), daemon=True).start()
            return self._hellos()
        except BaseException:
            self.close()
            raise

    def nodes_of(self, request: TrialRequest) -> set[int]:
        """Return the nodes that have ranks of a trial.

        A trial with fewer ranks than the slot uses the first nodes.
        """
        first_ranks = self._first_ranks()
        return {node for node, first in enumerate(first_ranks) if first < request.world_size}

    def _first_ranks(self) -> list[int]:
        """Return the first rank of each node."""
        return list(itertools.accumulate((node.ranks for node in self._nodes[:-1]), initial=0))

    def start(self, request: TrialRequest) -> None:
        """Start a trial's ranks, each on its node."""
        secret = secrets.token_hex(16)
        first_ranks = self._first_ranks()
        for index in sorted(self.nodes_of(request)):
            link, first = self.links[index], first_ranks[index]
            placement = Placement(
                node=index,
                first_rank=first,
                local_world_size=min(self._nodes[index].ranks, request.world_size - first),
                store_host=self.links[0].host,
                store_port=self._store_port,
                interface=self._interfaces[index],
                secret=secret,
            )
            with self._asking(index):
                link.send(StartTrial(request, placement).to_line())

    def send(self, message: Message) -> None:
        """Send the same command to all agents."""
        line = message.to_line()
        for node, link in enumerate(self.links):
            with self._asking(node):
                link.send(line)

    @contextlib.contextmanager
    def _asking(self, node: int) -> Iterator[None]:
        """Account for a command as pending while it is sent.

        A stalled node delays its commands, and meanwhile no messages are read.
        """
        waiting = node, threading.get_ident()
        began = self._asked[waiting] = time.monotonic()
        try:
            yield
        finally:
            del self._asked[waiting]
            self.delays[node] = time.monotonic() - began

    def receive(self, timeout: float | None = None) -> tuple[int, Message | None]:
        """Return (node, message); the message is None when that agent is gone.

        Raises:
            queue.Empty: no message came in time.
        """
        return self._inbox.get(timeout=timeout)

    def name_of(self, node: int) -> str:
        """Return the name of a node, for messages."""
        where = self.links[node].where
        return f"node {node}, {where}," if where else f"node {node}"

    def fetch_files(self, folders: Collection[Path]) -> None:
        """Copy the files of trials in these folders from nodes that do not share them."""
        asking = [
            threading.Thread(target=self._fetch_files, args=(index, folders), daemon=True)
            for index, link in enumerate(self.links)
            if link.where and index not in self._ended and index not in self.silent
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()

    def _fetch_files(self, node: int, folders: Collection[Path]) -> None:
        for folder in folders:
            with self._asking(node):
                self.links[node].fetch_files(folder)

    def unreachable(self) -> list[str]:
        """Return descriptions of the agents that are lost or silent at present."""
        since = time.monotonic() - STALL_SECONDS
        asked = self._asked.copy().items()
        silent = self.silent | {node for (node, _), began in asked if began < since}
        return [
            f"{link.where or f'node {index}'} {'lost' if index in self._ended else 'fell silent'}"
            for index, link in enumerate(self.links)
            if index in self._ended or index in silent
        ]

    def close(self) -> str:
        """End all agents; return a description of what is left of them."""
        self._closing = True
        return ", ".join(filter(None, [link.close() for link in self.links]))

    def _listen(self, index: int, link: Link) -> None:
        try:
            while line := link.read():
                self._inbox.put((index, from_line(line)))
        except ValueError as error:
            self.losses[index] = (
                f"the agent of {self.name_of(index)} sent a message that this version does not "
                f"understand ({error}): "
                "autotune was upgraded under a running daemon, or is not the same on all nodes; restart "
                "the daemon, and upgrade the node with the older version"
            )
            _log.warning("%s", self.losses[index])
            link.close()
        finally:
            if loss := link.loss_reason():
                self.not_its_own[index] = loss
            if not self._closing:
                self._ended.add(index)
            self.lost = True
            self._inbox.put((index, None))

    def _hellos(self) -> list[Hello]:
        ready: dict[int, Hello] = {}
        give_up = time.monotonic() + START_SECONDS
        while len(ready) < len(self.links):
            self._on_wait()
            left = give_up - time.monotonic()
            try:
                index, message = self.receive(timeout=max(0.0, min(left, _WAIT_POLL_SECONDS)))
            except queue.Empty:
                if left <= 0:
                    raise self._too_late(ready) from None
                continue
            if not isinstance(message, Hello):
                there = " on that node" if self.links[index].where else ""
                died = (
                    f"the agent of {self.name_of(index)} died while it started; its messages are in "
                    f"agent.log in the study's log folder{there} (`autotune logs`)"
                )
                loss = self.not_its_own.get(index, "")
                raise AgentDied(self.losses.get(index, loss or died), loss)
            _check_protocol(self.name_of(index), message)
            if message.cannot_start:
                why = f"the agent of {self.name_of(index)} cannot start: {message.cannot_start}"
                raise AgentDied(why, "")
            ready[index] = message
        return [ready[index] for index in sorted(ready)]

    def _too_late(self, ready: Collection[int]) -> LauncherError:
        late = [index for index in range(len(self.links)) if index not in ready]
        for index in late:
            self.links[index].mark_suspect()
        names = " and ".join(map(self.name_of, late))
        return LauncherError(f"the agent of {names} was not ready after {START_SECONDS:g} s")


def _check_protocol(node: str, hello: Hello) -> None:
    """Check that an agent and this side speak the same protocol.

    Raises:
        LauncherError: the protocols differ; the message says which side to upgrade.
    """
    if hello.protocol == PROTOCOL:
        return
    mend = "upgrade autotune there"
    if hello.protocol > PROTOCOL:
        mend = "restart the daemon, under which autotune was upgraded, or upgrade autotune here"
    raise LauncherError(
        f"the agent of {node} speaks protocol {hello.protocol} and this side {PROTOCOL}: {mend}"
    )


class MessagePump:
    """Reader of the agents' messages while something runs on their slot."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._silence = [0.0] * len(agents.links)
        """Seconds since each node was heard last, as far as this process has listened."""
        self.stalled = ""
        """Description of what has stalled until the last message came; empty: nothing."""

    def follow(
        self,
        nodes: Callable[[], Collection[int]],
        on_message: Callable[[int, Message | None, str], None],
        deadline: Callable[[], float],
        on_timeout: Callable[[], None],
    ) -> None:
        """Pass on the agents' messages until no more are expected.

        Args:
            nodes: nodes of which a message is still expected.
            on_message: takes a message (None: the agent is lost) and what has stalled until then.
            deadline: monotonic time at which `on_timeout` is called.
        """
        while waited_for := nodes():
            end = deadline()
            heard = self.listen(waited_for, end - time.monotonic())
            if heard is not None:
                on_message(*heard, self.stalled)
            elif end <= time.monotonic():
                on_timeout()

    def listen(self, nodes: Collection[int], patience: float) -> tuple[int, Message | None] | None:
        """Return the next message; None if none comes for a moment.

        A node that has been silent for too long is lost: its agent sends a heartbeat every few
        seconds.

        Args:
            nodes: nodes of which a message is still expected.
            patience: longest wait in seconds, if shorter than a moment.
        """
        silent = [node for node in sorted(nodes) if self._silence[node] > SILENT_SECONDS]
        if silent:
            return self._given_up(silent[0])
        began, heard = time.monotonic(), None
        with contextlib.suppress(queue.Empty):
            heard = self._agents.receive(max(0.0, min(_LISTEN_SECONDS, patience)))
        # If this process itself was suspended, the others may have been, too.
        listened = min(time.monotonic() - began, 2 * _LISTEN_SECONDS)
        self._silence = [silence + listened for silence in self._silence]
        self.stalled = self._stalled(*heard, nodes) if heard else ""
        self._agents.silent = frozenset(n for n in nodes if self._silence[n] > STALL_SECONDS)
        return heard

    def _stalled(self, node: int, message: Message | None, nodes: Collection[int]) -> str:
        """Return a description of the node that has stalled; empty if none has.

        That is this node, by its own clock or its silence, or another node that was to take its
        part in this block. A node that clears away is silent, too.
        """
        silence, still = self._silence[node], {}
        self._silence[node] = 0.0
        if isinstance(message, Heartbeat):
            still[node] = max(silence, message.still)
        elif isinstance(message, BlockReport):
            # While a node delays a command, no messages are read.
            silences = map(max, self._silence, self._agents.delays)
            still = {other: long for other, long in enumerate(silences) if other in nodes}
            still.pop(node, None)
        longest = max(still, key=still.__getitem__, default=node)
        if still.get(longest, 0.0) <= STALL_SECONDS:
            return ""
        name = self._agents.name_of(longest)
        return f"{name} stood still, or was cut off, for {still[longest]:.0f} s"

    def _given_up(self, node: int) -> tuple[int, None]:
        link = self._agents.links[node]
        self._agents.lost = True
        link.mark_suspect()
        self._agents.losses[node] = (
            f"the agent of {self._agents.name_of(node)} has not said anything for "
            f"{SILENT_SECONDS:g} s: it is frozen, or waits for a disk or a file system "
            "that does not answer"
        )
        if link.where:
            self._agents.not_its_own[node] = self._agents.losses[node]
        return node, None
