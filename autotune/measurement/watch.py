"""Watching one running trial: when its warm-up is over, and when enough has been seen."""

import math
from dataclasses import dataclass

from autotune.measurement.estimate import Estimate, estimate, steady
from autotune.trial.protocol import BlockReport

_FEWEST_BLOCKS = 3
_HOPELESS = 0.98
_FASTEST_STEP = 1e-7
"""Seconds: no optimizer step is faster; a workload that reports one is broken."""


@dataclass(frozen=True)
class Limits:
    """When to stop looking.

    Attributes:
        warmup: seconds after which blocks count even if the trial is not steady.
        longest: seconds of counted blocks after which the trial ends anyway.
        precision: relative half-width of the 95 % interval at which it ends.
        tokens: rate in tokens instead of samples.
        incumbent_low: lower bound of the best rate so far; 0 switches racing off.
    """

    warmup: float
    longest: float
    precision: float
    tokens: bool = False
    incumbent_low: float = 0.0


class Watch:
    """Called with each block; True means that the trial may end."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.warmup: list[BlockReport] = []
        self.kept: list[BlockReport] = []
        self.steady = False
        self.lost = False
        """The trial cannot catch up with the incumbent any more."""
        self.problem: str | None = None
        """A block that cannot be true, in words."""

    def __call__(self, block: BlockReport) -> bool:
        self.problem = self.problem or unusable(block)
        if self.problem:
            return True
        if self._warming_up():
            self.warmup.append(block)
            # The first block holds a single step, with all that happens once.
            self.steady = steady([b.seconds / b.steps for b in self.warmup[1:]])
            return False
        self.kept.append(block)
        if len(self.kept) < _FEWEST_BLOCKS:
            return False
        now = self.estimate()
        self.lost = now.high < _HOPELESS * self._limits.incumbent_low
        spent = sum(kept.seconds for kept in self.kept)
        return self.lost or now.half_width <= self._limits.precision or spent > self._limits.longest

    def estimate(self) -> Estimate:
        """Of the blocks that count; at least one must have come."""
        return estimate([self.units(b) for b in self.kept], [b.seconds for b in self.kept])

    def units(self, block: BlockReport) -> int:
        """Samples or tokens of a block."""
        return block.tokens if self._limits.tokens else block.samples

    def _warming_up(self) -> bool:
        if self.steady or self.kept:
            return False
        return sum(block.seconds for block in self.warmup) < self._limits.warmup


def unusable(block: BlockReport) -> str | None:
    """Why this block cannot be true: a loss or a time that is no number, or is impossible."""
    if not math.isfinite(block.loss):
        return f"the loss is {block.loss} in block {block.index}"
    if not math.isfinite(block.seconds) or block.seconds < _FASTEST_STEP * block.steps:
        return f"block {block.index} reports {block.seconds} s for {block.steps} steps"
    return None
