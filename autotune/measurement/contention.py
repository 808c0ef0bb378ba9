"""Disturbance of a block by other processes, judged by what they took, not by the block's speed."""

import statistics
from collections.abc import Sequence
from typing import Any, Protocol

from autotune.measurement.policy import MEASUREMENT
from autotune.worker.protocol import BlockReport


class Timed(Protocol):
    """A block, as reported or as stored."""

    @property
    def steps(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def observed(self) -> Any: ...


def contended(block: BlockReport, before: Sequence[BlockReport]) -> bool:
    """Return whether other processes disturbed a block.

    They did if a device was throttled or had other processes on it, if the processors of a node
    were at least 90 % busy and other processes took more than 10 % of them, or if one rank lags
    behind the others half as much again as it did before.

    Args:
        block: block in question.
        before: earlier blocks of the same trial that count.
    """
    seen = block.observed
    if seen.get("throttled") or seen.get("foreign_processes"):
        return True
    busy = 1 - seen.get("idle_cpu", 1.0)
    if busy >= MEASUREMENT.busy and seen.get("foreign_cpu", 0.0) > MEASUREMENT.foreign:
        return True
    usual = [ratio for ratio in map(straggler_ratio, before) if ratio is not None]
    now = straggler_ratio(block)
    if now is None or len(usual) < MEASUREMENT.enough_disturbed:
        return False
    return now > MEASUREMENT.straggling * statistics.median(usual)


def straggler_ratio(block: Timed) -> float | None:
    """Return the slowest rank's own time over that of the median rank; None if not observed.

    A rank's own time of a step is what it does not spend waiting for collectives.
    """
    exposed = block.observed.get("exposed_seconds")
    if not exposed or len(exposed) < 2:
        return None
    step = block.seconds / block.steps
    own = [max(step - waited, 1e-9) for waited in exposed]
    return float(max(own) / statistics.median_low(own))
