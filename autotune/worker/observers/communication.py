"""Communication that the backward pass does not hide, from what DDP itself logs of sampled steps."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_EVERY = 10
_NEVER = 2**31 - 1
"""Steps; of the first ten DDP times each, whatever it is told."""
_SETTLING_BLOCKS = 3
"""In which a block finds its length: they belong to the warm-up."""
_NANOSECONDS = 1e-9


def sample(model: nn.Module, block: int, device: torch.device) -> None:
    """Have DDP time one backward pass in ten; its own default of one in a hundred is too rare.

    To read its timers on CUDA, DDP waits for the device, which then has nothing to do for a while: that
    is for blocks that do not count.

    Args:
        model: of this rank.
        block: index of the one that begins.
        device: of this rank.
    """
    if isinstance(model, DistributedDataParallel):
        times = device.type == "cpu" or block < _SETTLING_BLOCKS
        model._set_ddp_runtime_logging_sample_rate(_EVERY if times else _NEVER)


def exposed_seconds(model: nn.Module) -> float:
    """Seconds that this rank waited for collectives after its backward pass had computed all, in the
    last step that DDP timed; NaN before there is one, and without DDP."""
    if not isinstance(model, DistributedDataParallel):
        return math.nan
    logged = model._get_ddp_logging_data()
    communication = logged.get("backward_comm_time", 0)
    if not communication:
        return math.nan
    hidden = logged.get("backward_compute_comm_overlap_time", 0)
    return float(max(0, communication - hidden)) * _NANOSECONDS


def collectives() -> int:
    """How many this process has begun so far, in all of its process groups; 0 where it has joined none.
    A group whose backend does not count them tells nothing."""
    if not dist.is_initialized():
        return 0
    total = 0
    for group in list(dist.distributed_c10d._world.pg_map):
        try:
            total += group._get_sequence_number_for_group()  # type: ignore[attr-defined]
        except RuntimeError:
            continue
    return total
