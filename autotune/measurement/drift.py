"""Whether a job is as fast as it was promised, minute by minute. Pure.

A minute's rate is the median over its blocks of whole optimizer steps: an evaluation or a checkpoint
makes one block slow, or a few, and does not show.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

CHECKS_IN_A_ROW = 3
"""In a row on one side: a drift begins, or is over."""
FEWEST_BLOCKS = 5
"""Of a rank; with fewer, nothing is said of it yet."""


@dataclass(frozen=True)
class Promise:
    """What a configuration was measured at.

    Attributes:
        value: units per second over all ranks.
        low: lower end of the 95 % interval of that mean; 0: without bound.
        high: upper end; infinite: without bound.
        rounds: runs in processes of their own that it is the mean of.
    """

    value: float
    low: float
    high: float
    rounds: int

    @property
    def bound(self) -> float:
        """What one more such run stays above 39 times in 40: the lower end of the 95 % interval for the
        next run. That of the mean of n runs is narrower by the square root of n + 1. 0: nobody knows."""
        if self.low <= 0 or self.rounds < 2:
            return 0.0
        return float(self.value * (self.low / self.value) ** math.sqrt(self.rounds + 1))


class Change(StrEnum):
    """What a look has brought."""

    BEGAN = "began"
    OVER = "over"


class Drift:
    """Told the rate of each minute; says when a drift begins and when it is over, each once.

    It begins when so many minutes in a row lie below the bound, and is over when as many do not.

    Attributes:
        drifted: at present.
    """

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._beyond = 0
        self.drifted = False

    def __call__(self, rate: float) -> Change | None:
        """Another minute."""
        below = rate < self._bound
        self._beyond = self._beyond + 1 if below != self.drifted else 0
        if self._beyond < CHECKS_IN_A_ROW:
            return None
        self._beyond, self.drifted = 0, below
        return Change.BEGAN if below else Change.OVER


def rate_of_job(rates: Mapping[int, list[float]], world_size: int) -> float | None:
    """Return units per second over all ranks; None where too few blocks tell.

    Args:
        rates: rank -> of its blocks; of the ranks on this node.
        world_size: ranks of the job.
    """
    medians = [statistics.median(told) for told in rates.values() if len(told) >= FEWEST_BLOCKS]
    if not medians:
        return None
    # Where some draw for others, those of other nodes have theirs from them, too.
    elsewhere = 1.0 if 0.0 in medians else world_size / len(medians)
    return sum(medians) * elsewhere
