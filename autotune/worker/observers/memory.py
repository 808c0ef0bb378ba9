"""Peak memory of a rank, and the limit that it is held to."""

import ctypes
import resource
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK_RESIDENT = "5"
_CONTEXT = 512 << 20
"""An allowance for a CUDA context with torch's kernels, which takes 300 to 600 MiB on recent devices."""


def reset_peak(device: torch.device) -> None:
    """Forget the peak so far: a forked rank starts with its parent's."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK_RESIDENT)
    except OSError:
        return  # a kernel without it counts the parent's pages too: a little high, never low


def give_back(device: torch.device) -> None:
    """Return to the system what this process holds and does not use."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def peak_bytes(device: torch.device, *, alone: bool = True) -> int:
    """Peak memory of this process, bytes: resident on the CPU; on CUDA what its allocator has reserved,
    and what it has of the device beside that.

    Args:
        device: of the process.
        alone: no other rank shares the device.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device)) + beside_allocator(device, alone=alone)
    return peak_resident(_STATUS)


def peak_resident(status: Path) -> int:
    """Peak resident memory of a process, bytes; 0 of one that has ended and is not cleared away.

    Args:
        status: /proc/PID/status.

    Raises:
        OSError: it is gone.
    """
    for line in status.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def beside_allocator(device: torch.device, *, alone: bool) -> int:
    """What this process has of a CUDA device without its allocator, bytes: the context, the code of
    kernels, NCCL's buffers, CUDA graphs.

    The device tells what is left of it, for all processes together: strangers' memory counts as well, as
    it is not there for the allocator either. Of a device that ranks share, none can tell its own.
    """
    if not alone:
        return _CONTEXT
    free, total = torch.cuda.mem_get_info(device)
    return max(0, total - free - torch.cuda.memory_reserved(device))


def limit(device: torch.device, limit_bytes: int, *, alone: bool = True) -> None:
    """Hold this process to so many bytes: beyond it an allocation fails as out of memory. On CUDA what
    is beside the allocator by now is among them; NCCL's buffers come later, on top."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        own = max(0, limit_bytes - beside_allocator(device, alone=alone))
        torch.cuda.set_per_process_memory_fraction(min(1.0, own / total), device)
    else:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
