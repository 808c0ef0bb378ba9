"""Variation of the speed of a replayed machine."""

import dataclasses
import math
import random
from dataclasses import dataclass

from autotune.worker.protocol import BlockReport


@dataclass(frozen=True)
class SpeedVariation:
    """Variation of a machine's speed, alike for everything that runs on it.

    Attributes:
        sigma: relative standard deviation of the speed.
        seconds: correlation time, after which two thirds of a deviation are gone.
    """

    sigma: float = 0.0
    seconds: float = 10.0


class MachineSpeed:
    """Speed of one machine: an Ornstein-Uhlenbeck process in the logarithm."""

    def __init__(self, variation: SpeedVariation, seed: str) -> None:
        self._variation = variation
        self._draw = random.Random(seed)
        self._now = self._draw.gauss(0.0, variation.sigma) if variation.sigma else 0.0

    def go_on(self, seconds: float) -> None:
        """Advance the time by this many seconds."""
        if not self._variation.sigma:
            return
        kept = math.exp(-seconds / self._variation.seconds)
        news = self._variation.sigma * math.sqrt(1.0 - kept**2)
        self._now = kept * self._now + self._draw.gauss(0.0, news)

    def of(self, block: BlockReport) -> BlockReport:
        """Return the block as it is timed at the present speed, and advance the time to its end."""
        if not self._variation.sigma:
            return block
        self.go_on(block.seconds)
        seconds = block.seconds * math.exp(self._now)
        ranks = (seconds,) * len(block.rank_seconds)
        return dataclasses.replace(block, seconds=seconds, rank_seconds=ranks)
