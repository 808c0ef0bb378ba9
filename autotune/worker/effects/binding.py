"""Where a rank runs: on the processors that are near its device, or on a share of its own."""

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
    """numa_binding: all threads of this process, and those to come, on the processors of the device's
    NUMA node.

    Raises:
        ValueError: which those are is not known, or none of them may be used.
    """
    if knobs["numa_binding"]:
        bind(pci_address(device.index))


def bind(address: str, devices: Path = _PCI_DEVICES) -> None:
    """All threads of this process, on those of its processors that are near a PCI device.

    Args:
        address: of the device, as in 0000:3b:00.0.
        devices: the folder in which Linux describes them.

    Raises:
        ValueError: which those are is not known, or none of them may be used.
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
    """cpu_affinity: all threads of this process, and processes to come, on this rank's share of the
    node's processors: they are divided among the ranks, evenly, in the order of sockets and cores.
    Where there are fewer than ranks, the system goes on dividing them.

    Args:
        local_rank: of this process, from 0.
        ranks: of its training on this node.
    """
    if knobs["cpu_affinity"] != "share":
        return
    usable = in_order(os.sched_getaffinity(0))
    if each := len(usable) // ranks:
        _bind_threads(set(usable[local_rank * each : (local_rank + 1) * each]))


def share_of_job(knobs: Knobs) -> bool:
    """The same for a rank of the user's own job; whether it was done: not where the launcher does not
    say which rank this is, or has given it processors already."""
    local_rank, ranks = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    if not (local_rank.isdecimal() and ranks.isdecimal() and int(local_rank) < int(ranks)):
        return False
    if os.sched_getaffinity(os.getppid()) != os.sched_getaffinity(0):
        return False
    own_share(knobs, int(local_rank), int(ranks))
    return True


def in_order(numbers: Iterable[int], processors: Path = _PROCESSORS) -> list[int]:
    """Of processors: by socket, die, core and number.

    Args:
        processors: the folder in which Linux describes them; what it does not tell counts as 0.
    """

    def told(number: int, what: str) -> int:
        try:
            return int((processors / f"cpu{number}" / "topology" / what).read_text())
        except (OSError, ValueError):
            return 0

    levels = ("physical_package_id", "die_id", "core_id")
    return sorted(numbers, key=lambda n: (*(told(n, level) for level in levels), n))


def _bind_threads(numbers: set[int]) -> None:
    """All threads of this process, and those to come, on these processors."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), numbers)


def _numbers(listed: str) -> set[int]:
    """From a list as in 0-3,8,10-11."""
    found: set[int] = set()
    for part in filter(None, listed.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def pci_address(ordinal: int) -> str:
    """Of a visible device; older versions of torch do not tell it, the driver does."""
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
