"""Place of this process among the ranks of a job."""

import contextlib
import os

import torch.distributed as dist


def place() -> tuple[int, int]:
    """Return rank and world size."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    with contextlib.suppress(ValueError):
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    return 0, 1


def is_first() -> bool:
    """Return whether this process is rank 0, which says what holds for all of them."""
    return place()[0] == 0
