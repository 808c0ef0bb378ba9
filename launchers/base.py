"""The contract of every launcher: open slots, run trial after trial on them, leave nothing behind."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from autotune.worker.protocol import BlockReport, Knobs, TrialReport, TrialRequest

TrialWatch = Callable[[BlockReport], bool]
"""Called with each block as it arrives; True ends the trial: enough has been seen."""


class Turns(Protocol):
    """Who trains when, of several trials that are resident on a slot at once, numbered from 0."""

    def next(self) -> int | None:
        """The one that trains the next block. None: enough has been seen of all."""

    def trained(self, member: int, block: BlockReport) -> None:
        """Take in the block that has come of a turn."""

    def lost(self, member: int) -> None:
        """One has failed, or is over: it has no turn any more."""


@dataclass(frozen=True)
class Resources:
    """What one trial takes.

    Attributes:
        workers: ranks; None: one per visible CUDA device, or two on the CPU.
        gpus_per_worker: CUDA devices per rank; None: one each if the machine has enough, else none.
        cpus_per_worker: threads per rank.
        slots: trials at a time; None: as many as fit.
        device: name of the devices, or on the CPU of the processors, that all trials run on; None: of
            several kinds, that on which most ranks can run.
        nodes: that the ranks are spread over; None: as few as they fit on.
    """

    workers: int | None
    gpus_per_worker: float | None
    cpus_per_worker: int
    slots: int | None
    device: str | None = None
    nodes: int | None = None


DEFAULT_CPU_WORKERS = 2


class Link(ABC):
    """A line to one agent. `read` blocks; both ends survive the death of the other."""

    host: str
    """Address at which ranks elsewhere reach the agent's store."""
    where: str = ""
    """Name of its node, where there are others."""

    @abstractmethod
    def send(self, line: bytes) -> bool:
        """Pass a command on; False if the agent is gone, or does not read within half a minute."""

    @abstractmethod
    def read(self) -> bytes:
        """The agent's next report; empty once it is gone and nothing of it is left."""

    def loss(self) -> str:
        """Why it ended by itself, in words, where its node or its cluster did; empty: it alone."""
        return ""

    def bring(self, folder: Path) -> None:
        """Bring what a trial has left in its folder on another node to this machine."""
        return

    def give_up(self) -> None:
        """It has not said anything for too long: it is not to be tried there again for now."""
        return

    @abstractmethod
    def close(self) -> str:
        """End the agent and everything that it started, within half a minute.

        Returns:
            What cannot be ended, in words; empty if nothing is left.
        """


class Slot(ABC):
    """Devices held for one trial after another."""

    name: str
    environment: dict[str, Any]
    """Fingerprint of the first node, see autotune.worker.node.environment; where there are several
    nodes, those of the others under `others`. Of the agents that ran last: those that replace them
    may be elsewhere."""
    device: str
    """'cpu' or 'cuda'."""
    devices_per_rank: float
    nodes: int
    unusable: str = ""
    """Why nothing can be measured here any more, in words: something of an earlier trial is there still,
    and nobody can end it, or a device has failed. Empty as long as all is well."""
    gone: str = ""
    """Why it is no more, in words: its nodes are lost or taken. The launcher may open another."""

    @property
    def usable(self) -> bool:
        """Whether anything can be run on it."""
        return not self.unusable and not self.gone

    def away(self) -> Sequence[str]:
        """What of it is lost or silent at present, in words; empty: it works. From any thread."""
        return ()

    @property
    @abstractmethod
    def resident(self) -> dict[str, Any] | None:
        """The configuration of processes that wait for another one; None: there are none. To be asked
        while nothing runs."""

    @abstractmethod
    def dismiss(self) -> None:
        """End the processes that wait, if any do, and wait until they are gone. While nothing runs."""

    @abstractmethod
    def run(self, request: TrialRequest, watch: TrialWatch) -> TrialReport:
        """Run a trial to its end. When it returns no process of the trial is left, or the slot is
        `unusable` from then on.

        Of a trial that `stays` the processes are left, silent, unless it has failed or was ended by
        `end` or its `seconds`. They take over the next one if that stays as well and differs in nothing
        but what acts on a step; before anything else runs they are ended.

        Called by one thread at a time. A dead agent is replaced before the next trial.

        Raises:
            LauncherError: no agent can be started, or the slot is unusable.
        """

    @abstractmethod
    def run_in_turn(self, requests: Sequence[TrialRequest], turns: Turns) -> list[TrialReport]:
        """Run several trials that are resident at once, of which one at a time trains: block by block,
        as `turns` says, while all others are silent. One is launched when it has its first turn. The
        first step after each change from one to another is not timed.

        One that fails leaves the others as they are. Those that stay wait for the next ones that take
        turns, of which that in the same place takes them over where it can; the others of them are
        ended. All else is as for `run`, the time included that all of them have together.

        Args:
            requests: each `takes_turns`, all with the same `seconds`.
            turns: asked after every block.

        Returns:
            Of each request, in order. Its `wall_seconds` are those of its turns, launch included.

        Raises:
            LauncherError: no agent can be started, or the slot is unusable.
        """

    @abstractmethod
    def end(self) -> None:
        """End whatever runs, if anything does, from another thread: `run` then returns, or
        `run_in_turn`."""


class Launcher(ABC):
    """Holds slots until it is closed."""

    slots: Sequence[Slot]
    """There may be more as time goes on, behind those that were there."""
    workers: int
    """Ranks of a trial."""
    is_remote: bool = False
    """What it closes is elsewhere, and may take long: what came of a study is written before that."""

    @abstractmethod
    def close(self) -> None:
        """Give back all resources; no process, actor or placement group is left."""

    @property
    def planned(self) -> int:
        """How many slots there are once all that is lost or taken is back."""
        return len(self.slots)

    def news(self) -> list[str]:
        """What there is to say since this was last asked: nodes that are left out, and why."""
        return []

    @property
    def several_nodes(self) -> bool:
        """Whether a trial that loses its agent can be launched on another node."""
        return False

    def clock(self) -> float:
        """Seconds since some moment, in the time in which trials run; never less than before."""
        return time.monotonic()

    def refusal(self, knobs: Knobs) -> str:
        """Why this configuration cannot run here, whatever constraints say of it; empty: it can."""
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
