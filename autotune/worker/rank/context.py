"""Where a rank stands in its trial."""

from dataclasses import dataclass

import torch

from autotune.worker.rank.turns import ALONE, Turns


@dataclass(frozen=True)
class RankContext:
    """Where a rank stands in its trial, and what it computes on."""

    rank: int
    local_rank: int
    world_size: int
    devices: tuple[torch.device, ...]
    first_on_device: bool = True
    """No rank before it shares its device."""
    alone: bool = True
    """No other trial may be on its device, but what takes turns with this one."""
    turns: Turns = ALONE
    """Leave to train a block."""

    @property
    def device(self) -> torch.device:
        """The one that holds its model and takes its batches."""
        return self.devices[0]
