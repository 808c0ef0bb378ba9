"""Place of a rank in its trial."""

from dataclasses import dataclass

import torch

from autotune.worker.rank.turns import ALONE, Turns


@dataclass(frozen=True)
class RankContext:
    """Place of a rank in its trial, and the devices it computes on."""

    rank: int
    local_rank: int
    world_size: int
    devices: tuple[torch.device, ...]
    first_on_device: bool = True
    """True if no rank before it shares its device."""
    alone: bool = True
    """True if no other trial may be on its device, except those interleaved with this one."""
    turns: Turns = ALONE
    """Source of permission to train a block."""

    @property
    def device(self) -> torch.device:
        """Return the device that holds the rank's model and takes its batches."""
        return self.devices[0]
