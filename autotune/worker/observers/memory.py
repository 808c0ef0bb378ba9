"""Peak memory of a rank, and its memory limit."""

import ctypes
import resource
from collections.abc import Iterable
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK_RESIDENT = "5"
_CONTEXT = 512 << 20
"""Allowance for a CUDA context with torch's kernels, which takes 300 to 600 MiB on recent devices.
"""


def reset_peak(device: torch.device) -> None:
    """Reset the peak: a forked rank starts with its parent's."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK_RESIDENT)
    except OSError:
        return  # a kernel without it counts the parent's pages too: a little high, never low


def give_back(device: torch.device) -> None:
    """Return unused memory of this process to the system."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def peak_bytes(device: torch.device, *, alone: bool = True) -> int:
    """Return the peak memory of this process, bytes.

    It is resident memory on the CPU; on CUDA it is what the allocator has reserved, and what the
    process has of the device besides.

    Args:
        alone: whether no other rank shares the device.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device)) + beside_allocator(device, alone=alone)
    return peak_resident(_STATUS)


def allocation_failures(devices: Iterable[torch.device]) -> int:
    """Return how often this process has run out of memory on CUDA devices."""
    used = [device for device in devices if device.type == "cuda"]
    return sum(int(torch.cuda.memory_stats(device).get("num_ooms", 0)) for device in used)


def peak_resident(status: Path) -> int:
    """Return the peak resident memory of a process, bytes; 0 for a zombie.

    Args:
        status: /proc/PID/status.

    Raises:
        OSError: the process is gone.
    """
    for line in status.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def beside_allocator(device: torch.device, *, alone: bool) -> int:
    """Return this process's memory of a CUDA device outside its allocator, bytes.

    It holds the context, the code of kernels, NCCL's buffers and CUDA graphs. The device reports
    the sum over all processes: memory of other users counts as well, as the allocator cannot have
    it either. On a device that ranks share, an allowance is returned.
    """
    if not alone:
        return _CONTEXT
    free, total = torch.cuda.mem_get_info(device)
    return max(0, total - free - torch.cuda.memory_reserved(device))


def limit(device: torch.device, limit_bytes: int, *, alone: bool = True) -> None:
    """Limit this process's memory: beyond the limit an allocation fails as out of memory.

    On CUDA the limit includes what is outside the allocator by now; NCCL's buffers come on top
    later.
    """
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        own = max(0, limit_bytes - beside_allocator(device, alone=alone))
        torch.cuda.set_per_process_memory_fraction(min(1.0, own / total), device)
    else:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
