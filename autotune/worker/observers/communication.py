"""Communication that the backward pass does not hide, from DDP's own log of sampled steps."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_EVERY = 10
_NEVER = 2**31 - 1
"""Sampling interval in steps. DDP times each of the first ten steps nevertheless."""
_SETTLING_BLOCKS = 3
"""Number of first blocks, which find their length and belong to the warm-up."""
_NANOSECONDS = 1e-9


def sample(model: nn.Module, block: int, device: torch.device) -> None:
    """Let DDP time one backward pass in ten; its own default of one in a hundred is too rare.

    To read its timers on CUDA, DDP waits for the device, which is idle for a while: that happens in
    blocks that do not count.

    Args:
        block: index of the block that begins.
    """
    if isinstance(model, DistributedDataParallel):
        times = device.type == "cpu" or block < _SETTLING_BLOCKS
        model._set_ddp_runtime_logging_sample_rate(_EVERY if times else _NEVER)


def exposed_seconds(model: nn.Module) -> float:
    """Return the seconds that this rank waited for collectives after computing its backward pass.

    DDP timed it in its last sampled step; NaN before there is one, and without DDP.
    """
    if not isinstance(model, DistributedDataParallel):
        return math.nan
    logged = model._get_ddp_logging_data()
    communication = logged.get("backward_comm_time", 0)
    if not communication:
        return math.nan
    hidden = logged.get("backward_compute_comm_overlap_time", 0)
    return float(max(0, communication - hidden)) * _NANOSECONDS


def collectives() -> int:
    """Return the number of collectives that this process has begun, in all of its process groups.

    It is 0 where the process has joined none. A group whose backend does not count is left out.
    """
    if not dist.is_initialized():
        return 0
    total = 0
    for group in list(dist.distributed_c10d._world.pg_map):
        try:
            total += group._get_sequence_number_for_group()  # type: ignore[attr-defined]
        except RuntimeError:
            continue
    return total
