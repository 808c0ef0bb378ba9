"""Trials inside a Slurm allocation, without Ray: each agent is a step of the job, started by srun."""

import concurrent.futures
import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import ClusterAway, LauncherError, NotHere, UnfitNodes
from autotune.worker import processes, starters
from autotune.worker.files import make_private
from autotune.worker.node.agent_process import LinePipe
from autotune.worker.node.relay import AGENT_ENDED, BEAT, BEAT_SECONDS, LEFT_BEHIND, AgentOrder
from launchers.agents import Node, SlotGone, is_of_nodes
from launchers.base import Launcher, Link, Resources
from launchers.layout import Layout
from launchers.node_compat import device_kind, from_agent, kind_with_most_ranks
from launchers.placement import ClusterNode
from launchers.reservation import NO_HOLDER, Busy, Reservation
from launchers.slot import AgentSlot
from launchers.slurm_allocation import JOB, OUTSIDE, Allocation

OF_SLURM = ("SLURM_", "SRUN_")
"""Beginnings of the variables of a job and of a step, and of those that give srun options."""
_KEPT = "SLURM_CONF"
_BOOT = "from autotune.worker.node.relay import main; main()"
_SRUN = (
    *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--mpi=none"),
    "--immediate=30",
)
"""Step with all that the job has on its node, beside other steps. Seconds: a step that does not start
by then waits for a node that is away."""
_GOODBYE_SECONDS = 20.0
"""Time for the relay to end an agent that does not leave; together with the grace of srun it is less
than the half minute that a link may take."""
_SILENT_SECONDS = 4 * BEAT_SECONDS
"""Silence of a relay after which its node is lost."""
_TICK_SECONDS = 1.0
_LOOPBACK = "127.0.0.1"
_GROW_SECONDS = 15.0
"""Time between two looks for a lost slot's place; each is a query of slurmctld."""
_MOST_OPENING = 16
"""Agents that start at a time: each reads torch from the same file system."""


class SrunLink(Link):
    """Connection to an agent through the step that it is in."""

    def __init__(
        self, allocation: Allocation, node: ClusterNode, order: AgentOrder, log: Path
    ) -> None:
        """Start the step; what it prints goes to the log."""
        self.host, self.where = order.host, node.host
        self._avoided = allocation.avoided
        self._closed = False
        command = [*_SRUN, f"--jobid={allocation.job}", f"--nodelist={node.id}"]
        if devices := int(node.has["GPU"]):
            # A step that asks for none gets what the job has on all nodes, a task's share, or none.
            command.append(f"--gres=gpu:{devices}")
        inherited = processes.inherited(os.environ)
        # Options of the job and of its own steps are in variables: srun would take them for this one.
        env = {n: v for n, v in inherited.items() if not n.startswith(OF_SLURM) or n == _KEPT}
        make_private(log.parent)
        with log.open("ab") as file:
            self._pipe = LinePipe(
                [*starters.named(command), sys.executable, "-P", "-c", _BOOT], env, file
            )
        self._pipe.send(f"{order.to_text()}\n".encode())
        self._silence = 0.0
        """Seconds since the relay was heard last, as far as this process has run."""
        self._heard = False

    def send(self, line: bytes) -> bool:
        return self._pipe.send(line)

    def read(self) -> bytes:
        while (line := self._pipe.read()) == BEAT:
            self._hear()
        self._hear()
        if not line and not self._closed:
            self.mark_suspect()
        return line

    def _hear(self) -> None:
        self._silence = 0.0
        if not self._heard:
            self._heard = True
            threading.Thread(target=self._watch, name="relay", daemon=True).start()

    def _watch(self) -> None:
        """End srun once its step is silent: it does not notice that the node is lost."""
        while not self._closed and self._pipe.status() is None:
            time.sleep(_TICK_SECONDS)
            self._silence += _TICK_SECONDS  # not by the clock: this process may be suspended
            if self._silence > _SILENT_SECONDS:
                starters.end([self._pipe.pid()])
                return

    def loss_reason(self) -> str:
        if self._closed or self._pipe.status() in (None, AGENT_ENDED):
            return ""
        return f"node {self.where} was lost (status {self._pipe.status()} of srun, see agent.log)"

    def mark_suspect(self) -> None:
        self._avoided.add(self.where)

    def close(self) -> str:
        self._closed = True
        if not self._pipe.leave(_GOODBYE_SECONDS):
            starters.end([self._pipe.pid()])
        if self._pipe.status() == LEFT_BEHIND:
            return f"processes on node {self.where}, named in agent.log"
        return ""


class _Placement:
    """Places of a slot on nodes, chosen anew whenever its agents start."""

    def __init__(self, allocation: Allocation, layout: Layout) -> None:
        self._allocation = allocation
        self._layout = layout
        self.places: list[tuple[ClusterNode, int]] = []
        self.is_refused = False
        """True if the present nodes are not to be taken again."""

    @property
    def nodes(self) -> set[str]:
        """Names of the nodes."""
        return {node.id for node, _ in self.places}

    def renew(self) -> None:
        """Take places, after giving back those that were held.

        Raises:
            SlotGone: there is no room.
        """
        was = ", ".join(node.host for node, _ in self.places)
        why = "has other devices" if self.is_refused else "was lost"
        own = {} if self.is_refused else {node.id: place for node, place in self.places}
        self.release()
        self.places = self._allocation.take(self._layout, own)
        if not self.places:
            lost = f"{was} {why}, and " if was else ""
            raise SlotGone(f"{lost}no other node of Slurm job {self._allocation.job} has room")

    def release(self) -> None:
        """Give the places back."""
        for node, place in self.places:
            self._allocation.give_back(node.id, place)
        self.places, self.is_refused = [], False


class SlurmLauncher(Launcher):
    """Slots on the nodes of the Slurm job that this process is in."""

    slots: list[AgentSlot]
    is_remote = True

    def __init__(
        self, resources: Resources, log_dir: str, busy: Busy, env: Mapping[str, str]
    ) -> None:
        if JOB not in os.environ:
            raise NotHere(OUTSIDE)
        self._log = Path(log_dir) / "agent.log"
        batch = processes.inherited(os.environ)
        self._env = {n: v for n, v in batch.items() if n.startswith(OF_SLURM)} | dict(env)
        self._busy = busy
        self._resources = resources
        self._numbers = itertools.count()
        self._notices: list[str] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._growth = threading.Thread(target=self._grow, name="growth", daemon=True)
        self._kind = ""
        """Name of the devices, or of the processors, that all slots have."""
        self.slots = []
        self._placements: dict[str, _Placement] = {}
        """Placement of each slot, by its name."""
        self._reservation = Reservation(busy)
        try:
            job = os.environ[JOB]
            self._reservation.take([f"Slurm job {job}"])
            self._allocation = Allocation(job)
            self._layout = self._allocation.plan(resources)
            self._open()
            self.ranks = self._layout.nodes * self._layout.ranks_per_node
            self._notices += filter(None, [self._layout.notice()])
            self._refuse_idle_devices()
        except BaseException:
            self.close()
            raise
        self._growth.start()

    @property
    def planned(self) -> int:
        """Number of slots on the nodes that are not left out."""
        with contextlib.suppress(NotHere):
            return self._allocation.plan(self._resources).slots
        return len(self.slots)

    @property
    def several_nodes(self) -> bool:
        """True if the allocation has more than one node."""
        return self._allocation.size > 1

    def close(self) -> None:
        self._closing.set()
        try:
            if self._growth.ident is not None:
                self._growth.join()
            with concurrent.futures.ThreadPoolExecutor(_MOST_OPENING) as pool:
                list(pool.map(AgentSlot.close, self.slots))
        finally:
            self._reservation.close()

    def _open(self) -> None:
        """Open all slots side by side, without the nodes that turn out to have other devices.

        Raises:
            UnfitNodes: the nodes that are left hold none.
            LauncherError: none can be opened.
        """
        errors = self._add(self._layout.slots)
        known = 0
        while len(self._allocation.left_out) > known:
            known = len(self._allocation.left_out)
            if not self.slots:
                self._layout = self._on_nodes_left()
            errors += self._add(self._missing())
        if not self.slots:
            raise errors[0]

    def _on_nodes_left(self) -> Layout:
        """Return the layout on the nodes that are not left out: `workers: auto` takes all of these.

        Raises:
            UnfitNodes: they are too few for a trial.
        """
        try:
            return self._allocation.plan(self._resources)
        except NotHere:
            names, job = ", ".join(sorted(self._allocation.left_out)), self._allocation.job
            raise UnfitNodes(
                f"this study runs on {self._kind}, and of Slurm job {job} too few nodes have that (not "
                f"{names}): ask for such nodes (--constraint=FEATURE or --gres=gpu:TYPE:NUMBER), or "
                "change resources.device"
            ) from None

    def _refuse_idle_devices(self) -> None:
        """Refuse to train on processors because a job has forgotten to ask for devices.

        Raises:
            UnfitNodes: the study leaves the kind open, and the nodes have devices that the job has not.
        """
        wanted = self._resources
        if self._layout.gpus_per_worker or wanted.gpus_per_worker is not None or wanted.device:
            return
        if any(slot.environment["driver"] for slot in self.slots):
            raise UnfitNodes(
                f"Slurm job {self._allocation.job} has no GPU, and its nodes have the driver of NVIDIA: "
                "ask for GPUs (--gpus-per-node), or say resources.gpus_per_worker: 0 to train on the CPU"
            )

    def _missing(self) -> int:
        """Return how many of the planned slots are not there; those on nodes left out are none."""
        left_out = self._allocation.left_out
        there = [slot for slot in self.slots if not self._placements[slot.name].nodes & left_out]
        return self.planned - sum(slot.usable for slot in there)

    def _add(self, count: int) -> list[LauncherError]:
        """Open so many slots side by side; return why some of them were not opened."""
        with concurrent.futures.ThreadPoolExecutor(_MOST_OPENING) as pool:
            found = list(pool.map(lambda _: self._opened(), range(count)))
        return [error for error in found if error]

    def _opened(self) -> LauncherError | None:
        """Open one more slot; return why it was not opened."""
        placement = _Placement(self._allocation, self._layout)
        ranks = self._layout.ranks_per_node
        nodes = [Node(self._connecting(placement, n), ranks) for n in range(self._layout.nodes)]
        name = f"slurm-{next(self._numbers)}"
        try:
            slot = AgentSlot(
                name,
                nodes,
                gpus_per_worker=self._layout.gpus_per_worker,
                reads_energy=self._resources.reads_energy,
                on_wait=self._check,
            )
        except BaseException as error:
            self._pass_over(placement, error)
            placement.release()
            if isinstance(error, LauncherError):
                return error
            raise
        if differs := self._leave_out(slot.environment, placement):
            slot.close()
            placement.release()
            return ClusterAway(f"no slot is open: {differs}")
        slot.accepts = lambda environment: not self._leave_out(environment, placement)
        self._placements[name] = placement
        self.slots.append(slot)
        return None

    def _pass_over(self, placement: _Placement, error: BaseException) -> None:
        """Avoid the nodes of a slot that did not open, for now, if it is for them."""
        if not is_of_nodes(error):
            return
        nodes = [node.id for node, _ in placement.places]
        with self._lock:
            for node in self._allocation.avoided.first_failures(nodes):
                self._notices.append(f"Left out for now: node {node}: {error}.")

    def _check(self) -> None:
        """Raise if the launcher is no longer wanted while agents start."""
        if self._closing.is_set():
            raise ClusterAway("the launcher is closed")
        if not self._growth.is_alive():
            self._busy(NO_HOLDER)

    def _connecting(self, placement: _Placement, number: int) -> Callable[[], SrunLink]:
        """Return the function that starts the agent of a slot on its first, second or later node."""

        def connect() -> SrunLink:
            if number == 0:
                placement.renew()
            node, place = placement.places[number]
            host = _LOOPBACK if self._layout.nodes == 1 else node.address
            devices = self._layout.devices_of(place, int(node.has["GPU"]) or 1)
            chosen = list(devices) if self._layout.gpus_per_worker else []
            order = AgentOrder(host, self._env, chosen)
            return SrunLink(self._allocation, node, order, self._log)

        return connect

    def _leave_out(self, environment: dict[str, Any], placement: _Placement) -> str:
        """Leave out the nodes of a slot that have other devices than those before; return which.

        Empty: all are alike. Other slots stay on these nodes: a node may have devices of two kinds.

        Args:
            environment: environment of the slot's agents.
        """
        with self._lock:
            different = self._different(environment, placement)
            placement.is_refused = bool(different)
            for node, why in different.items():
                if node not in self._allocation.left_out:
                    self._allocation.left_out.add(node)
                    self._notices.append(f"Left out: {why}; resources.device says on which.")
        return ", ".join(different.values())

    def _different(self, environment: dict[str, Any], placement: _Placement) -> dict[str, str]:
        """Return why nodes of a slot are not of the study's kind, by node."""
        on_gpu = bool(self._layout.gpus_per_worker)
        told = [environment, *environment.get("others", ())]
        kinds = [device_kind(from_agent(one), on_gpu=on_gpu) for one in told]
        if not self._kind:
            self._kind = self._resources.device or kind_with_most_ranks(kinds, kinds.count)
        return {
            node.id: f"node {node.host} has {kind}, and this study runs on {self._kind}"
            for (node, _), kind in zip(placement.places, kinds, strict=True)
            if kind and kind != self._kind
        }

    def _grow(self) -> None:
        """Open slots again that were lost, once their nodes are well."""
        while not self._closing.wait(_GROW_SECONDS):
            if (missing := self._missing()) > 0:
                with contextlib.suppress(LauncherError):
                    self._add(missing)
