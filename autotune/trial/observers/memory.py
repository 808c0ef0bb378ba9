"""Peak memory of a rank, and the limit that it is held to."""

import resource
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK_RESIDENT = "5"


def reset_peak(device: torch.device) -> None:
    """Forget the peak so far: a forked rank starts with its parent's."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK_RESIDENT)
    except OSError:
        return  # a kernel without it counts the parent's pages too: a little high, never low


def peak_bytes(device: torch.device) -> int:
    """Peak memory reserved by the allocator (CUDA) or resident in the process (CPU), bytes."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def limit(device: torch.device, limit_bytes: int) -> None:
    """Hold this process to so many bytes: beyond it an allocation fails as out of memory."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), device)
    else:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
