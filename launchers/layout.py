"""Layout of a trial's ranks on nodes, and the number of trials that fit. Pure."""

import ctypes
import dataclasses
import importlib.util
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import LauncherError, NotHere, UnfitNodes
from autotune.worker.cgroup import usable_cpus
from autotune.worker.processes import NO_DEVICES, VISIBLE_DEVICES
from autotune.worker.rank_devices import devices_needed
from launchers.base import DEFAULT_CPU_WORKERS, Resources

_ROUNDING = 1e-6
"""Tolerance for shares such as 0.1, which have no exact binary form."""
VISIBLE = VISIBLE_DEVICES
_BY_ID = ("GPU-", "MIG-")
_DEVICE_NODE = re.compile(r"nvidia[0-9]+")
_NVIDIA = "0x10de"
"""Vendor of a PCI device."""
_DISPLAY = "0x03"
"""Beginning of the class of a PCI device that is a GPU, with or without a display."""
_NO_CUDA = re.compile(r"^cuda\b[^=\n]*=\s*None\s*$", re.MULTILINE)
"""Line of torch/version.py in a build without CUDA."""
_LIBRARY = "libcuda.so.1"
"""Library of the driver: a machine or container that has none is to train on the CPU."""


@dataclass(frozen=True)
class NodeCapacity:
    """Processors and devices of a node."""

    cpus: int
    gpus: int


@dataclass(frozen=True)
class Layout:
    """Shape of every slot; all have the same, so that their trials are comparable.

    Attributes:
        nodes: number of nodes per slot.
        ranks_per_node: number of ranks on each node.
        gpus_per_worker: CUDA devices per rank.
        bundle: Ray resources per node of a slot.
        slots: number of concurrent trials.
    """

    nodes: int
    ranks_per_node: int
    gpus_per_worker: float
    bundle: dict[str, float]
    slots: int

    def devices_of(self, slot: int, devices: int) -> range:
        """Return the indices of a slot's CUDA devices on a node with this many devices.

        Slots with a share of one device are dealt out over the devices.
        """
        amount = self.bundle.get("GPU", 0.0)
        if 0 < amount < 1:
            return range(slot % devices, slot % devices + 1)
        return range(slot * int(amount), (slot + 1) * int(amount))

    def notice(self) -> str:
        """Return a message if ranks share CPUs; empty if each rank has its own."""
        cpus = int(self.bundle["CPU"])
        if self.ranks_per_node <= cpus:
            return ""
        return (
            f"{self.ranks_per_node} ranks share {cpus} CPU{'s' if cpus > 1 else ''} of their node, "
            "as they do under the script's own launcher."
        )


def plan(resources: Resources, capacities: Sequence[NodeCapacity]) -> Layout:
    """Return the layout with the fewest nodes per trial.

    CPUs are shared by ranks only if they are allowed to, and fit on no number of nodes otherwise.
    Where the number of slots is not given, it is as many as fit on CUDA devices. On the CPU it is
    one per node, because trials on the same cores and memory disturb each other's figures.

    Raises:
        UnfitNodes: the nodes are too small.
    """
    workers = _workers(resources, capacities)
    gpus = _gpus_per_worker(resources, workers, capacities)
    counts = [
        nodes
        for nodes in range(1, len(capacities) + 1)
        if workers % nodes == 0 and nodes == (resources.nodes or nodes)
    ]
    for shares in sorted({False, resources.shares_cpus}):
        for nodes in counts:
            ranks = workers // nodes
            bundle = _bundle(ranks, resources.cpus_per_worker, gpus)
            if shares:
                bundle["CPU"] = min(bundle["CPU"], _cpus_of_each(nodes, capacities, bundle))
            if slots := _number_of_slots(bundle, nodes, capacities, resources.slots):
                return Layout(nodes, ranks, gpus, bundle, slots)
    raise UnfitNodes(
        f"{resources.slots or 1} trial(s) of {workers} workers with "
        f"{resources.cpus_per_worker} CPUs and {gpus:g} GPUs each do not fit"
        + (f" on {resources.nodes} nodes: " if resources.nodes else ": ")
        + ", ".join(f"{node.cpus} CPUs + {node.gpus} GPUs" for node in capacities)
        + "; lower resources.workers, cpus_per_worker, gpus_per_worker or max_concurrent_trials"
    )


def demand_of(resources: Resources) -> tuple[list[dict[str, float]], str]:
    """Return the Ray bundles of a slot on nodes that are not known yet, and Ray's strategy for them.

    That is a bundle per node where their number is given, and else one per rank, on as few nodes as
    there can be. A trial that takes as many ranks as there are devices asks for one.
    """
    ranks, nodes = resources.workers or 1, resources.nodes
    gpus = resources.gpus_per_worker
    if gpus is None:
        gpus = float(resources.workers is None)
    if nodes:
        bundle = _bundle(max(1, ranks // nodes), resources.cpus_per_worker, gpus)
        return [bundle] * nodes, "STRICT_SPREAD" if nodes > 1 else "STRICT_PACK"
    return [_bundle(1, resources.cpus_per_worker, gpus)] * ranks, "PACK"


def _workers(resources: Resources, capacities: Sequence[NodeCapacity]) -> int:
    if resources.workers is not None:
        return resources.workers
    gpus = 0 if resources.gpus_per_worker == 0 else sum(node.gpus for node in capacities)
    fitting = sum(node.cpus // resources.cpus_per_worker for node in capacities)
    return gpus or max(1, min(DEFAULT_CPU_WORKERS, fitting))


def _gpus_per_worker(
    resources: Resources, workers: int, capacities: Sequence[NodeCapacity]
) -> float:
    if resources.gpus_per_worker is not None:
        return resources.gpus_per_worker
    return 1.0 if sum(node.gpus for node in capacities) >= workers else 0.0


def devices_of_others(environment: Mapping[str, Any], layout: Layout) -> str:
    """Return why an agent would use devices that Ray has not given it; empty if it would not.

    Args:
        environment: environment of the agent.
    """
    seen, given = len(environment["devices"]), math.ceil(layout.bundle.get("GPU", 0.0))
    if seen <= given:
        return ""
    return (
        f"its agent sees {seen} CUDA devices, and Ray has given it {given}; start Ray there without "
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
    )


def on_devices(resources: Resources, capacities: Sequence[NodeCapacity]) -> Resources:
    """Return resources that ask for a CUDA device per rank where any node has one, unless told.

    Nodes of a cluster come and go. One that is away must not turn a study into one of the CPU.
    """
    if resources.gpus_per_worker is not None or not any(node.gpus for node in capacities):
        return resources
    return dataclasses.replace(resources, gpus_per_worker=1.0)


def _bundle(ranks: int, cpus: int, gpus: float) -> dict[str, float]:
    """Return the Ray resources of ranks that have so many CPUs and devices each."""
    bundle = {"CPU": float(ranks * cpus)}
    return bundle | {"GPU": _devices(ranks, gpus)} if gpus else bundle


def _cpus_of_each(
    nodes: int, capacities: Sequence[NodeCapacity], bundle: Mapping[str, float]
) -> float:
    """Return the CPUs that each of so many nodes with enough devices has; at least one."""
    there = [node.cpus for node in capacities if node.gpus >= bundle.get("GPU", 0.0)]
    return float(max([1, *sorted(there, reverse=True)[nodes - 1 : nodes]]))


def _number_of_slots(
    bundle: dict[str, float], nodes: int, capacities: Sequence[NodeCapacity], wanted: int | None
) -> int:
    """Return the number of slots of so many nodes each; 0 if fewer fit than are wanted."""
    fitting = [_times(bundle, capacity) for capacity in capacities]
    usable = [times for times in fitting if times]
    most = slots_on(usable, nodes)
    by_default = most if "GPU" in bundle else len(usable) // nodes
    slots = wanted or by_default
    return slots if slots <= most else 0


def _devices(ranks: int, share: float) -> float:
    """Return the devices of a bundle: a share of one, or whole ones."""
    return ranks * share if ranks * share < 1 else float(devices_needed(ranks, share))


def _times(bundle: dict[str, float], capacity: NodeCapacity) -> int:
    by_cpus = int(capacity.cpus // bundle["CPU"])
    amount = bundle.get("GPU", 0)
    if not amount:
        return by_cpus
    if amount < 1:  # a share lies on one device
        return min(by_cpus, capacity.gpus * math.floor(1 / amount + _ROUNDING))
    return min(by_cpus, int(capacity.gpus // amount))


def slots_on(fitting: Sequence[int], nodes: int) -> int:
    """Return how many slots of this many different nodes fit, if node i holds fitting[i] bundles."""
    slots = 0
    while sum(min(times, slots + 1) for times in fitting) >= nodes * (slots + 1):
        slots += 1
    return slots


def visible_devices(
    environment: Mapping[str, str] = os.environ, folder: Path = Path("/dev")
) -> list[str]:
    """Return names of the CUDA devices that this process may use, as for CUDA_VISIBLE_DEVICES.

    CUDA numbers the devices that it can open from 0, whatever the numbers in the file names are: a
    container that holds /dev/nvidia3 alone has device 0. Names after an invalid one are ignored.

    Raises:
        NotHere: CUDA_VISIBLE_DEVICES names a device that this machine does not have.
    """
    present = [str(number) for number in range(sum(map(_is_device, folder.iterdir())))]
    asked = environment.get(VISIBLE)
    if asked is None or not present:
        return present
    named = [name.strip() for name in asked.split(",")]
    valid = itertools.takewhile(lambda name: name in present or name.startswith(_BY_ID), named)
    usable = list(valid)
    if not usable and named[0] not in NO_DEVICES:
        raise NotHere(
            f"{VISIBLE}={asked} names no device of this machine, which has {len(present)}, numbered "
            "from 0: mend it, or set it to -1 to train on the CPU"
        )
    return usable


def refuse_lost_devices(
    resources: Resources,
    environment: Mapping[str, str] = os.environ,
    folder: Path = Path("/dev"),
    bus: Path = Path("/sys/bus/pci/devices"),
    library: str = _LIBRARY,
) -> None:
    """Refuse to take a machine that has lost its GPUs for one of the CPU, unless the CPU is asked for.

    So it is after a boot without the driver's module, or before its devices are made. A torch that was
    built without CUDA would use none of them.

    Raises:
        LauncherError: NVIDIA's driver is installed and shows none of the GPUs on the PCI bus.
    """
    hides = environment.get(VISIBLE, "0").split(",")[0].strip() in NO_DEVICES
    on_cpu = resources.gpus_per_worker == 0 or hides or lacks_cuda()
    if on_cpu or any(map(_is_device, folder.iterdir())):
        return
    lost = sorted(entry.name for entry in bus.glob("*") if _is_gpu(entry))
    if lost and _loads(library):
        raise LauncherError(
            f"NVIDIA's driver shows no GPU, and {', '.join(lost)} on the PCI bus is one: see what "
            "`nvidia-smi` says; to train on the CPU say resources.gpus_per_worker: 0, or set "
            f"{VISIBLE}= where autotune is started"
        )


def lacks_cuda() -> bool:
    """Return whether torch was built without CUDA; it is not imported, as that takes seconds."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        told = (Path(found.origin).parent / "version.py").read_text()
    except OSError:
        return False
    return _NO_CUDA.search(told) is not None


def this_machine() -> NodeCapacity:
    """Return the processors that this process has time on, and the devices that it may use."""
    return NodeCapacity(cpus=usable_cpus(), gpus=len(visible_devices()))


def processors() -> list[str]:
    """Return names of the processors that this process may use; studies can only share them."""
    return [f"processor {number}" for number in sorted(os.sched_getaffinity(0))]


def _is_gpu(entry: Path) -> bool:
    """Return whether an entry of the PCI bus is a GPU of NVIDIA."""
    try:
        told = [(entry / name).read_text().strip() for name in ("vendor", "class")]
    except OSError:  # off the bus by now
        return False
    return told[0] == _NVIDIA and told[1].startswith(_DISPLAY)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _is_device(entry: Path) -> bool:
    return _DEVICE_NODE.fullmatch(entry.name) is not None
