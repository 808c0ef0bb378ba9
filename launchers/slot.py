"""A slot over the agents of one or more nodes; the same for every launcher."""

import contextlib
import dataclasses
import itertools
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from autotune.errors import ClusterAway, LauncherError
from autotune.trial import failure
from autotune.trial.protocol import (
    PROTOCOL,
    Alive,
    BlockReport,
    Built,
    EndTrial,
    Hello,
    Message,
    NodeReport,
    Outcome,
    Placement,
    RankEnd,
    StartTrial,
    TrialReport,
    TrialRequest,
    from_line,
)
from launchers.base import Link, Slot, TrialWatch
from launchers.preloading import Preloading

_log = logging.getLogger(__name__)

START_SECONDS = 180.0
"""How long agents may take to import torch and look at their node."""
SILENT_SECONDS = 60.0
"""Then an agent is given up that runs a trial: it says every five seconds that it is there, unless it
clears away, for half a minute at most."""
STOOD_SECONDS = 12.0
"""Without a word of an agent, or a look of its own at its ranks: then they stood still as well, or their
messages did, and what was timed meanwhile is no measurement."""
_LISTEN_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Node:
    """One node of a slot: how to start its agent, and how many ranks it takes."""

    connect: Callable[[], Link]
    ranks: int


class AgentSlot(Slot):
    """Runs trials through one agent per node."""

    def __init__(self, name: str, nodes: Sequence[Node], *, gpus_per_worker: float) -> None:
        """Start the agents.

        Raises:
            LauncherError: one of them does not come up, or has too few CUDA devices.
        """
        self.name = name
        self._nodes = nodes
        self._agents: _Agents | None = None
        self._preloading = Preloading(len(nodes))
        self._run: _Run | None = None
        self._ending = False
        self._lock = threading.Lock()
        self._agents = _Agents(nodes, self._preloading)  # nothing is preloaded yet: they are fit
        self.environment = _of_all(self._agents.environments)
        self.devices_per_rank = gpus_per_worker
        self.device = "cuda" if gpus_per_worker else "cpu"
        self.nodes = len(nodes)
        taken = self._agents.cuda_devices if gpus_per_worker else ()
        self.cuda_devices = [f"CUDA device {uuid}" for uuid in taken]
        """Of the first node: names that no other device of the machine has."""
        self._check_devices()

    def run(self, request: TrialRequest, watch: TrialWatch) -> TrialReport:
        started = time.monotonic()
        with self._lock:
            self._ending = False
        if self.unusable:
            raise LauncherError(f"{self.name} is out of use: {self.unusable}")
        try:
            agents = self._living_agents()
        except AgentDied as error:
            return _lost_before_it_began(request.trial, error, started)
        except SlotGone as error:
            self.gone = str(error)
            return _lost_before_it_began(request.trial, error, started)
        run = _Run(request.trial, agents, watch)
        agents.start(request)
        with self._lock:
            self._run = run
            if self._ending:  # asked for before all agents had heard of the trial
                run.end()
        try:
            run.wait(None if request.seconds is None else started + request.seconds)
        finally:
            with self._lock:
                self._run = None
        if self._preloading.learn(run.built) or run.lost_agent or run.agent_leaves:
            self.close()
        self.unusable = run.stuck or self.unusable
        cause = failure.cause(run.ends)
        return TrialReport(
            trial=request.trial,
            outcome=cause.outcome if cause else None,
            cause=f"rank {cause.rank}: {cause.cause}" if cause and cause.rank >= 0 else run.loss,
            blocks=tuple(run.blocks),
            wall_seconds=time.monotonic() - started,
            log_tail=cause.log_tail if cause else "",
            lost_agent=run.lost_agent,
            not_its_own=run.not_its_own,
        )

    def end(self) -> None:
        with self._lock:
            self._ending = True
            if self._run:
                self._run.end()

    def close(self) -> None:
        """End the agents; what cannot be ended makes the slot unusable."""
        if self._agents:
            self.unusable = self._agents.close() or self.unusable
            self._agents = None

    def _check_devices(self) -> None:
        seen = len(self.environment["devices"])
        needed = self.devices_per_rank * self._nodes[0].ranks
        if needed > seen:
            self.close()
            raise LauncherError(
                f"{self.name}: {needed:g} CUDA devices are needed and PyTorch sees {seen}; check "
                "`python -c 'import torch; print(torch.cuda.device_count())'` and the driver, or "
                "set resources.gpus_per_worker: 0"
            )

    def _living_agents(self) -> "_Agents":
        if self._agents is not None and self._agents.lost:
            self.close()
        if self._agents is None:
            self._agents = self._new_agents()
            self.environment = _of_all(self._agents.environments)
            self._check_devices()
        return self._agents

    def _new_agents(self) -> "_Agents":
        if self._preloading.wanted:
            with contextlib.suppress(LauncherError):
                agents = _Agents(self._nodes, self._preloading)
                if agents.fit and _of_all(agents.environments) == self.environment:
                    return agents
                agents.close()
            self._preloading.give_up()
        return _Agents(self._nodes, self._preloading)


def _of_all(environments: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Where the trials of a slot run: its first node, and the others below that."""
    first, *others = environments
    return {**first, "others": others} if others else dict(first)


class AgentDied(LauncherError):
    """An agent was gone before it was ready."""

    def __init__(self, cause: str, loss: str) -> None:
        super().__init__(cause)
        self.loss = loss
        """Why its node, or its cluster, was lost; empty: it was not."""


class SlotGone(ClusterAway):
    """The nodes of a slot are lost or taken, and there are no others for it at present."""


def _lost_before_it_began(trial: str, error: AgentDied | SlotGone, started: float) -> TrialReport:
    loss = error.loss if isinstance(error, AgentDied) else str(error)
    return TrialReport(
        trial,
        Outcome.CRASH,
        str(error),
        (),
        time.monotonic() - started,
        lost_agent=True,
        not_its_own=loss,
    )


class _Agents:
    """The agents of a slot, all ready; their messages arrive in one queue."""

    def __init__(self, nodes: Sequence[Node], preloading: Preloading) -> None:
        self._nodes = nodes
        self._inbox: queue.Queue[tuple[int, Message | None]] = queue.Queue()
        self.links: list[Link] = []
        self.lost = False
        """One of them is gone: a new trial needs new ones."""
        self.losses: dict[int, str] = {}
        """Why, by node, where more is known than that it died."""
        self.not_its_own: dict[int, str] = {}
        """The same, where its node or its cluster was lost, or has stood still."""
        try:
            for node in nodes:
                self.links.append(node.connect())
            for link, preload in zip(self.links, preloading.by_node, strict=True):
                link.send(preload.to_line())
            for index, link in enumerate(self.links):
                threading.Thread(target=self._listen, args=(index, link), daemon=True).start()
            hellos = self._hellos()
        except BaseException:
            self.close()
            raise
        self.environments = [hello.environment for hello in hellos]
        self.cuda_devices = hellos[0].devices
        self.fit = not any(hello.unfit for hello in hellos)
        """Ranks can be forked from what they have imported."""
        self._store_port = hellos[0].store_port
        self._interfaces = [hello.interface for hello in hellos]

    def start(self, request: TrialRequest) -> None:
        """Start a trial's ranks on all nodes."""
        secret = secrets.token_hex(16)
        first_ranks = itertools.accumulate((node.ranks for node in self._nodes), initial=0)
        for index, (link, node, first) in enumerate(
            zip(self.links, self._nodes, first_ranks, strict=False)
        ):
            placement = Placement(
                node=index,
                first_rank=first,
                local_world_size=min(node.ranks, request.world_size),
                store_host=self.links[0].host,
                store_port=self._store_port,
                interface=self._interfaces[index],
                secret=secret,
            )
            link.send(StartTrial(request, placement).to_line())

    def send(self, message: Message) -> None:
        """The same command to all."""
        for link in self.links:
            link.send(message.to_line())

    def receive(self, timeout: float | None = None) -> tuple[int, Message | None]:
        """(node, message); the message is None when that agent is gone.

        Raises:
            queue.Empty: nothing came in time.
        """
        return self._inbox.get(timeout=timeout)

    def name_of(self, node: int) -> str:
        """For people."""
        where = self.links[node].where
        return f"node {node}, {where}," if where else f"node {node}"

    def close(self) -> str:
        """End all agents; what is left of them, in words."""
        return ", ".join(filter(None, [link.close() for link in self.links]))

    def _listen(self, index: int, link: Link) -> None:
        try:
            while line := link.read():
                self._inbox.put((index, from_line(line)))
        except ValueError as error:
            self.losses[index] = (
                f"the agent of {self.name_of(index)} says what this version does not understand "
                f"({error}): "
                "autotune was upgraded under a running daemon, or is not the same on all nodes; restart "
                "the daemon, and upgrade whichever node is behind"
            )
            _log.warning("%s", self.losses[index])
            link.close()
        finally:
            if loss := link.loss():
                self.not_its_own[index] = loss
            self.lost = True
            self._inbox.put((index, None))

    def _hellos(self) -> list[Hello]:
        ready: dict[int, Hello] = {}
        give_up = time.monotonic() + START_SECONDS
        while len(ready) < len(self.links):
            try:
                index, message = self.receive(timeout=max(0.0, give_up - time.monotonic()))
            except queue.Empty:
                late = [index for index in range(len(self.links)) if index not in ready]
                for index in late:
                    self.links[index].give_up()
                names = " and ".join(map(self.name_of, late))
                raise LauncherError(
                    f"the agent of {names} was not ready after {START_SECONDS:g} s"
                ) from None
            if not isinstance(message, Hello):
                died = (
                    f"the agent of {self.name_of(index)} died while it started; its messages are in "
                    "agent.log in the study's log folder (`autotune logs`)"
                )
                loss = self.not_its_own.get(index, "")
                raise AgentDied(self.losses.get(index, loss or died), loss)
            _check_protocol(self.name_of(index), message)
            ready[index] = message
        return [ready[index] for index in sorted(ready)]


def _check_protocol(node: str, hello: Hello) -> None:
    """Whether an agent and this side understand each other.

    Raises:
        LauncherError: they do not; which of them is to be mended.
    """
    if hello.protocol == PROTOCOL:
        return
    mend = "upgrade autotune there"
    if hello.protocol > PROTOCOL:
        mend = "restart the daemon, under which autotune was upgraded, or upgrade autotune here"
    raise LauncherError(
        f"the agent of {node} speaks protocol {hello.protocol} and this side {PROTOCOL}: {mend}"
    )


class _Run:
    """One trial as its messages come in."""

    def __init__(self, trial: str, agents: _Agents, watch: TrialWatch) -> None:
        self._trial = trial
        self._agents = agents
        self._watch = watch
        self._open = set(range(len(agents.links)))
        self._several_nodes = len(agents.links) > 1
        self._lock = threading.Lock()
        self._ending = False
        self._on_purpose = False
        self.blocks: list[BlockReport] = []
        self.ends: list[RankEnd] = []
        self.built: dict[int, Built] = {}
        """By node."""
        self.lost_agent = False
        self.agent_leaves = False
        self.stuck = ""
        """What cannot be ended, in words."""
        self.loss = ""
        self.not_its_own = ""
        """Why it says nothing of the configuration, in words."""
        self._silence = [0.0] * len(agents.links)
        """Seconds since each node was heard last, as far as this process has listened."""

    def end(self) -> None:
        """Enough has been seen. What ranks raise from now on is no result."""
        self._end(on_purpose=True)

    def wait(self, until: float | None = None) -> None:
        """Until every node has cleared the trial away; also when the watch raises.

        Args:
            until: by the monotonic clock, when the trial is ended if it still runs.
        """
        try:
            self._wait(until)
        except BaseException:
            self._watch = lambda _: True
            self.end()
            self._wait()
            raise

    def _wait(self, until: float | None = None) -> None:
        while self._open:
            # What has been ended is waited for, however long it takes.
            patience = None if until is None or self._ending else until - time.monotonic()
            heard = self._listen(patience)
            if heard is None:
                if patience is not None and until is not None and until <= time.monotonic():
                    self.end()
                continue
            node, message = heard
            if message is None:
                self._lose(node)
            elif isinstance(message, BlockReport) and message.trial == self._trial:
                self._take(message)
            elif isinstance(message, Built) and message.trial == self._trial:
                self.built[node] = message
            elif isinstance(message, NodeReport) and message.trial == self._trial:
                self._open.discard(node)
                self.agent_leaves |= message.agent_leaves
                self.stuck = self.stuck or message.stuck
                self._conclude([end for end in message.ends if self._counts(end)])

    def _listen(self, patience: float | None) -> tuple[int, Message | None] | None:
        """What comes next; None if that is nothing for a moment. A node that has been silent for too
        long is lost: its agent says every few seconds that it is there."""
        silent = [node for node in sorted(self._open) if self._silence[node] > SILENT_SECONDS]
        if silent:
            return self._given_up(silent[0])
        began, heard = time.monotonic(), None
        with contextlib.suppress(queue.Empty):
            shortest = _LISTEN_SECONDS if patience is None else min(_LISTEN_SECONDS, patience)
            heard = self._agents.receive(max(0.0, shortest))
        # Where this process was stopped itself, so may have been the others.
        listened = min(time.monotonic() - began, 2 * _LISTEN_SECONDS)
        self._silence = [silence + listened for silence in self._silence]
        if heard:
            self._hear(*heard)
        return heard

    def _hear(self, node: int, message: Message | None) -> None:
        """Whether anything stood still meanwhile: this node by its own clock or its silence, or another
        one while it was to take its part in this block. One that clears away says nothing, either."""
        silence, still = self._silence[node], {}
        self._silence[node] = 0.0
        if isinstance(message, Alive):
            still[node] = max(silence, message.still)
        elif isinstance(message, BlockReport) and not self._ending:
            still = {other: self._silence[other] for other in self._open - {node}}
        for other, seconds in still.items():
            if seconds > STOOD_SECONDS:
                name = self._agents.name_of(other)
                self.not_its_own = f"{name} stood still, or was cut off, for {seconds:.0f} s"

    def _given_up(self, node: int) -> tuple[int, None]:
        self._agents.lost = True
        self._agents.links[node].give_up()
        self._agents.losses[node] = (
            f"the agent of {self._agents.name_of(node)} has not said anything for "
            f"{SILENT_SECONDS:g} s: it is frozen, or waits for a disk or a file system "
            "that does not answer"
        )
        if self._agents.links[node].where:
            self.not_its_own = self._agents.losses[node]
        return node, None

    def _take(self, block: BlockReport) -> None:
        if self._ending:
            return
        self.blocks.append(block)
        if self._watch(block):
            self.end()

    def _counts(self, end: RankEnd) -> bool:
        """Where the ranks of one node are ended first, those of the others lose their connections, and
        may say so before they are ended themselves. A node alone tells by itself what came first."""
        return not (self._on_purpose and self._several_nodes and failure.may_come_of_the_end(end))

    def _conclude(self, ends: list[RankEnd]) -> None:
        self.ends.extend(ends)
        if any(end.outcome for end in ends):
            hangs = [end.cause for end in ends if end.outcome is Outcome.HANG]
            self._end(hung=hangs[0] if hangs else "")

    def _lose(self, node: int) -> None:
        self._open.discard(node)
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
