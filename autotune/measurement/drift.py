"""Comparison of a job's speed with its promise, minute by minute. Pure.

A minute's rate is the median over its blocks of whole optimizer steps: an evaluation or a
checkpoint makes one block slow, or a few, and does not show.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from autotune.measurement.policy import MEASUREMENT


@dataclass(frozen=True)
class Promise:
    """Measured speed of a configuration.

    Attributes:
        value: rate over all ranks, units per second.
        low: lower end of the 95 % interval of that mean; 0: without bound.
        high: upper end; infinite: without bound.
        rounds: number of runs in their own processes that it is the mean of.
    """

    value: float
    low: float
    high: float
    rounds: int

    @property
    def bound(self) -> float:
        """Lower end of the 95 % interval for the next run, exceeded 39 times in 40; 0: unknown.

        The interval of the mean of n runs is narrower by the square root of n + 1.
        """
        if self.low <= 0 or self.rounds < 2:
            return 0.0
        return float(self.value * (self.low / self.value) ** math.sqrt(self.rounds + 1))


class Change(StrEnum):
    """Result of a check."""

    BEGAN = "began"
    OVER = "over"


class Drift:
    """Detector of a drift, which reports its beginning and its end once each.

    It is given the rate of each minute. A drift begins when this many consecutive minutes lie below
    the bound, and is over when as many do not.

    Attributes:
        drifted: True if there is a drift at present.
    """

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._beyond = 0
        self.drifted = False

    def __call__(self, rate: float) -> Change | None:
        """Take in the rate of another minute; return a change if there is one."""
        below = rate < self._bound
        self._beyond = self._beyond + 1 if below != self.drifted else 0
        if self._beyond < MEASUREMENT.checks_in_a_row:
            return None
        self._beyond, self.drifted = 0, below
        return Change.BEGAN if below else Change.OVER


def rate_of_job(rates: Mapping[int, list[float]], world_size: int) -> float | None:
    """Return the units per second over all ranks; None if there are too few blocks.

    Args:
        rates: rates of blocks by rank, for the ranks on this node.
        world_size: number of ranks of the job.
    """
    medians = [
        statistics.median(told)
        for told in rates.values()
        if len(told) >= MEASUREMENT.fewest_blocks_of_check
    ]
    if not medians:
        return None
    # Where some ranks draw samples for others, ranks of other nodes get theirs from them, too.
    elsewhere = 1.0 if 0.0 in medians else world_size / len(medians)
    return sum(medians) * elsewhere
