"""The contract of every launcher: open slots, run trial after trial on them, leave nothing behind."""

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from pydantic import BaseModel, ConfigDict

from autotune.worker.protocol import BlockReport, Knobs, TrialReport, TrialRequest
from launchers.reservation import Busy, refuse
from launchers.shares import Tenant
from launchers.site import Site

TrialWatch = Callable[[BlockReport], bool]
"""Called with each block as it arrives; True ends the trial, as enough blocks have come."""


class TurnSchedule(Protocol):
    """The order in which the trials of a session train, numbered from 0.

    Attributes:
        at_once: True if all trials are launched when the session begins, and build at the same time;
            False: each at its first turn.
    """

    at_once: bool

    def next(self) -> int | None:
        """Return the trial that trains the next block; None ends all of them."""

    def trained(self, member: int, block: BlockReport) -> None:
        """Take in the block of a turn."""

    def drop(self, member: int) -> None:
        """Drop a trial that has failed or is over."""


class SoloSchedule:
    """Schedule of a trial by itself, until its watch has seen enough."""

    at_once = False

    def __init__(self, watch: TrialWatch) -> None:
        self._watch = watch
        self._over = False

    def next(self) -> int | None:
        """Return 0, the only trial; None ends it."""
        return None if self._over else 0

    def trained(self, member: int, block: BlockReport) -> None:
        """Show a block to the watch."""
        if self._watch(block):
            self._over = True

    def drop(self, member: int) -> None:
        """End the schedule."""
        self._over = True


@dataclass(frozen=True)
class Resources:
    """Resources of one trial.

    Attributes:
        workers: number of ranks; None: one per visible CUDA device, or two on the CPU.
        gpus_per_worker: CUDA devices per rank; None: one each if the machine has enough, or any node
            of a cluster has one, else none.
        cpus_per_worker: threads per rank.
        slots: number of concurrent trials; None: as many as fit.
        device: name of the devices (on the CPU: of the processors) that all trials run on; None:
            the kind on which most ranks can run.
        nodes: number of nodes that the ranks are spread over; None: as few as they fit on.
        shares_cpus: whether a trial with more ranks than a node has CPUs runs all the same.
        reads_energy: whether the energy of a trial has to be readable.
    """

    workers: int | None
    gpus_per_worker: float | None
    cpus_per_worker: int
    slots: int | None
    device: str | None = None
    nodes: int | None = None
    shares_cpus: bool = False
    reads_energy: bool = False


DEFAULT_CPU_WORKERS = 2


class Link(ABC):
    """A connection to one agent. `read` blocks; both ends survive the death of the other."""

    host: str
    """Address at which ranks on other nodes reach the agent's store."""
    where: str = ""
    """Name of its node, where there are several."""

    @abstractmethod
    def send(self, line: bytes) -> bool:
        """Pass a command on; False if the agent is gone, or does not read within half a minute."""

    @abstractmethod
    def read(self) -> bytes:
        """Return the agent's next report; empty once it is gone and nothing of it is left."""

    def loss_reason(self) -> str:
        """Return why the node or the cluster of an ended agent was lost.

        Empty: only the agent ended.
        """
        return ""

    def fetch_files(self, folder: Path) -> None:
        """Copy a trial's files in a folder on another node to this machine."""
        return

    def mark_suspect(self) -> None:
        """Avoid the node of an agent that has been silent for too long, for now."""
        return

    @abstractmethod
    def close(self) -> str:
        """End the agent and everything that it started, within half a minute.

        Returns:
            Description of what cannot be ended; empty if nothing is left.
        """


class Slot(ABC):
    """Devices held for one trial after another."""

    name: str
    environment: dict[str, Any]
    """Fingerprint of the first node, see autotune.worker.node.environment; those of other nodes
    under `others`.

    It describes the agents that ran last: agents that replace them may be elsewhere."""
    energy_unreadable: str = ""
    """Reason why the energy of its trials cannot be read; empty if it can, or was not asked for."""
    device: str
    """'cpu' or 'cuda'."""
    devices_per_rank: float
    nodes: int
    unusable: str = ""
    """Reason why nothing can be measured here any more; empty as long as all is well.

    Something of an earlier trial is left and cannot be ended, or a device has failed."""
    gone: str = ""
    """Reason why the slot no longer exists: its nodes are lost or taken. The launcher may open
    another."""
    given_back: bool = False
    """True once the launcher has taken it out of use for another study."""

    @property
    def usable(self) -> bool:
        """True if trials can run on the slot."""
        return not self.unusable and not self.gone

    def unreachable(self) -> Sequence[str]:
        """Return descriptions of agents that are lost or silent at present; empty: all work.

        May be called from any thread.
        """
        return ()

    @property
    @abstractmethod
    def warm_knobs(self) -> dict[str, Any] | None:
        """Configuration of the warm worker that waits; None if there is none.

        To be read while nothing runs.
        """

    @abstractmethod
    def dismiss(self) -> None:
        """End the warm worker, if there is one, and wait until it is gone.

        To be called while nothing runs.
        """

    @abstractmethod
    def run(self, requests: Sequence[TrialRequest], schedule: TurnSchedule) -> list[TrialReport]:
        """Run the trials of a session to their end.

        One trial trains at a time, as `schedule` says, while all others are silent. A trial is
        launched at its first turn, or at once where the schedule says so. Several trials are
        interleaved, block by block: the first step after each change from one to another is not
        timed, and one that fails leaves the others as they are. A trial by itself trains on, and the
        schedule only ends it.

        On return no process of the trials is left, or the slot is `unusable` from then on.

        The processes of a trial that `stays` are left as a warm worker, silent, unless the trial
        has failed or was ended by `end` or its time limit. The trial in the same place of the next
        session takes them over if it stays as well and differs only in knobs that running processes
        can change (`search_spaces.constraints.why_not_taken_over`); all others are ended before anything
        else runs.

        To be called by one thread at a time. A dead agent is replaced before the next session.

        Args:
            requests: requests, all with the same hard time limit; with `interleaved` if several.

        Returns:
            A report per request, in order. Its `wall_seconds` are those of its turns, launch
            included.

        Raises:
            LauncherError: no agent can be started, or the slot is unusable.
        """

    def run_solo(self, request: TrialRequest, watch: TrialWatch) -> TrialReport:
        """Run a trial by itself until its watch has seen enough; raise as `run` does."""
        (report,) = self.run([request], SoloSchedule(watch))
        return report

    @abstractmethod
    def end(self) -> None:
        """End the running trials, if there are any, from another thread.

        `run` then returns.
        """


class Launcher(ABC):
    """Holder of slots until it is closed."""

    slots: Sequence[Slot]
    """Slots that are added later come behind the earlier ones."""
    ranks: int
    """Number of ranks of a trial."""
    _notices: Sequence[str] = ()
    is_remote: bool = False
    """True if closing acts on other machines and may take long; a study's result is written before
    that."""

    @abstractmethod
    def close(self) -> None:
        """Give back all resources; no process, actor or placement group is left."""

    @functools.cached_property
    def site(self) -> Site:
        """Place of the trials, as it is when it is asked for first."""
        first = self.slots[0]
        shape = (first.device, self.ranks, first.nodes, first.devices_per_rank)
        return Site(*shape, first.environment, first.energy_unreadable)

    @property
    def planned(self) -> int:
        """Number of slots once everything that is lost or taken is back."""
        return sum(not slot.given_back for slot in self.slots)

    @property
    def surplus(self) -> int:
        """Number of slots that studies below their share of a cluster wait for."""
        return 0

    def retire(self, slot: Slot) -> None:
        """Give a slot back on which nothing runs; it is `gone` from then on.

        Call it only while there is a surplus.
        """
        raise NotImplementedError

    def notices(self) -> list[str]:
        """Return messages since the last call, such as which nodes are left out and why."""
        found, self._notices = [*self._notices], []
        return found

    @property
    def several_nodes(self) -> bool:
        """True if a trial that loses its agent can be launched on another node."""
        return False

    def clock(self) -> float:
        """Return seconds since a fixed moment, in the time in which trials run.

        It never decreases.
        """
        return time.monotonic()

    def refusal(self, knobs: Knobs) -> str:
        """Return why this configuration cannot run here; empty if it can.

        This is independent of the constraints.
        """
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LauncherSection(BaseModel, ABC):
    """Section of a study file for one launcher: its settings, and what follows of its kind.

    Subclasses have a field `kind`, the word for the launcher, and are listed in
    `launchers.sections`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    kind: str
    package: ClassVar[str] = ""
    """Package that the launcher needs besides those of autotune."""
    spans_nodes: ClassVar[bool] = False
    """True if the ranks of a trial can be on several nodes."""

    @property
    def is_shared(self) -> bool:
        """Return whether it may have nodes with several kinds of devices, and jobs of others."""
        return False

    @property
    def place(self) -> str | None:
        """Return the name of a cluster whose studies have a queue of their own.

        None: they are in the queue of this machine.
        """
        return None

    @property
    def meeting_host(self) -> str:
        """Return the address at which ranks meet; empty if it is not known."""
        return "127.0.0.1"

    def file_problems(self) -> dict[str, str]:
        """Return mistakes by field, for which a file is refused and an older record is not."""
        return {}

    def security(self, environment: Mapping[str, str]) -> tuple[bool, str] | None:
        """Return whether only the user's processes reach the launcher, with advice; None: they do."""
        return None

    def open(
        self,
        resources: Resources,
        log_dir: str,
        busy: Busy = refuse,
        env: Mapping[str, str] | None = None,
        tenant: Tenant | None = None,
    ) -> Launcher:
        """Return the opened launcher; closing it gives everything back.

        Args:
            log_dir: folder on each node for the agents' own messages.
            busy: called repeatedly while another study measures on this machine; may raise.
            env: variables for the agents. TORCHINDUCTOR_* and PYTORCH_CUDA_ALLOC_CONF are read when
                torch is imported there. No knob needs an agent of its own for that, because the
                allocator takes its settings at run time as well.
            tenant: study that other studies on a cluster are to know of; None: it is no study.

        Raises:
            NotHere: this machine lacks the resources, or a package is not installed.
            LauncherError: the resources are not available at present.
        """
        return self._launcher(tenant)(resources, log_dir, busy, env or {})

    @abstractmethod
    def _launcher(
        self, tenant: Tenant | None
    ) -> Callable[[Resources, str, Busy, Mapping[str, str]], Launcher]:
        """Import what the launcher needs; return what opens it, with the other arguments of `open`."""
