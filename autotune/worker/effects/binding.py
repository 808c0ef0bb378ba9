"""Binding of a rank to processors: those near its device, or a share of its own."""

import contextlib
import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from autotune.worker.protocol import Knobs

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_PROCESSORS = Path("/sys/devices/system/cpu")
_ADDRESS_BYTES = 32


def near_device(knobs: Knobs, device: torch.device) -> None:
    """Bind this process to the processors of its device's NUMA node (numa_binding).

    Raises:
        ValueError: they are not known, or none of them may be used.
    """
    if knobs["numa_binding"]:
        bind(pci_address(device.index))


def bind(address: str, devices: Path = _PCI_DEVICES) -> None:
    """Bind all threads of this process, and those to come, to processors near a PCI device.

    Args:
        address: of the device, as in 0000:3b:00.0.
        devices: folder in which Linux describes them.

    Raises:
        ValueError: they are not known, or none of them may be used.
    """
    source = devices / address / "local_cpulist"
    try:
        listed = source.read_text()
    except OSError as error:
        raise ValueError(f"numa_binding: no processors are known to be near: {error}") from error
    near = _numbers(listed) & os.sched_getaffinity(0)
    if not near:
        raise ValueError(
            f"numa_binding: none of the processors near the device ({listed.strip()}) may be used here"
        )
    _bind_threads(near)


def own_share(knobs: Knobs, local_rank: int, ranks: int) -> None:
    """Bind this process and its children to its rank's share of the node's processors (cpu_affinity).

    They are divided evenly among the ranks, in the order of sockets and cores. Where there are
    fewer than ranks, the system goes on scheduling them.

    Args:
        knobs: of the trial.
        local_rank: of this process, from 0.
        ranks: of its training on this node.
    """
    if knobs["cpu_affinity"] != "share":
        return
    usable = in_order(os.sched_getaffinity(0))
    if each := len(usable) // ranks:
        _bind_threads(set(usable[local_rank * each : (local_rank + 1) * each]))


def share_of_job(knobs: Knobs) -> bool:
    """Bind a rank of the user's own job to its share; return whether that was possible.

    It is not where the launcher sets no rank, or has bound the rank to processors already.
    """
    local_rank, ranks = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    if not (local_rank.isdecimal() and ranks.isdecimal() and int(local_rank) < int(ranks)):
        return False
    if os.sched_getaffinity(os.getppid()) != os.sched_getaffinity(0):
        return False
    own_share(knobs, int(local_rank), int(ranks))
    return True


def in_order(numbers: Iterable[int], processors: Path = _PROCESSORS) -> list[int]:
    """Sort processors by socket, die, core and number.

    Args:
        numbers: of the processors.
        processors: folder in which Linux describes them; a missing value counts as 0.
    """

    def level_of(number: int, what: str) -> int:
        try:
            return int((processors / f"cpu{number}" / "topology" / what).read_text())
        except (OSError, ValueError):
            return 0

    levels = ("physical_package_id", "die_id", "core_id")
    return sorted(numbers, key=lambda n: (*(level_of(n, level) for level in levels), n))


def _bind_threads(numbers: set[int]) -> None:
    """Bind all threads of this process, and those to come, to some processors."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), numbers)


def _numbers(listed: str) -> set[int]:
    """Parse a list as in 0-3,8,10-11."""
    found: set[int] = set()
    for part in filter(None, listed.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def pci_address(ordinal: int) -> str:
    """Return the PCI address of a visible device, by the driver, as older versions of torch lack it.

    Raises:
        ValueError: the driver does not know it.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_int()
    address = ctypes.create_string_buffer(_ADDRESS_BYTES)
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(handle), ordinal)
        or driver.cuDeviceGetPCIBusId(address, _ADDRESS_BYTES, handle)
    )
    if failed:
        raise ValueError(f"numa_binding: CUDA does not tell where device {ordinal} is ({failed})")
    return address.value.decode().lower()
