"""Comparison of interleaved runs on one machine, block by block. Pure.

What the machine does meanwhile slows neighbouring blocks alike, so it cancels in their ratios.
Equal runs that are interleaved lie several times closer together than runs that follow each other
(Bulej et al. 2020, Duet Benchmarking).
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from autotune.measurement.estimate import half_width_of, half_width_of_mean

Cycles = np.ndarray
"""Logarithms of the members' rates: one row per A-B-B-A cycle, one column per member."""


class TurnBlock(NamedTuple):
    """A block of an interleaved run.

    Attributes:
        turn: number of the turn, in order of time over all members.
        work: number of samples, tokens or steps.
        cost: seconds or joules of the block.
        device_timed: True if each step was timed by the device, so that a slow one is the
            configuration's own and a long run has it, too.
        contended: True if other processes took much of the machine meanwhile.
    """

    turn: int
    work: float
    cost: float
    device_timed: bool = False
    contended: bool = False


_Cycle = list[list[TurnBlock]]
"""Two blocks of each member."""


def abba_order(members: Sequence[int]) -> list[int]:
    """Return the order of one cycle, such as A B C C B A.

    A machine that slows down steadily favours no member in it.
    """
    return [*members, *reversed(members)]


def complete_cycles(members: Sequence[Sequence[TurnBlock]]) -> Cycles:
    """Return the cycles in which each of these members has two blocks; others are ignored."""
    logs = [
        [math.fsum(math.log(max(b.work, 1.0) / b.cost) for b in own) / 2 for own in cycle]
        for cycle in _whole_cycles(members)
    ]
    return np.asarray(logs, dtype=float).reshape(-1, len(members))


def _whole_cycles(members: Sequence[Sequence[TurnBlock]]) -> list[_Cycle]:
    taken = sorted((block, number) for number, blocks in enumerate(members) for block in blocks)
    whole = []
    for chunk in _chunks(taken, 2 * len(members)):
        cycle: _Cycle = [[] for _ in members]
        for block, number in chunk:
            cycle[number].append(block)
        if all(len(own) == 2 for own in cycle):
            whole.append(cycle)
    return whole


def _chunks(
    taken: Sequence[tuple[TurnBlock, int]], size: int
) -> list[Sequence[tuple[TurnBlock, int]]]:
    starts = range(0, len(taken) - size + 1, size) if size else ()
    return [taken[start : start + size] for start in starts]


def rates(members: Sequence[Sequence[TurnBlock]]) -> list[float] | None:
    """Return the rate of each member, work over cost; None without a complete cycle.

    They are means: a job has its slow steps, too, such as those that wait for its loader, and a typical
    ratio would leave them out (0.9 % too high for a recorded compiled configuration). Where steps were
    timed by the device, all blocks count. Elsewhere the ratios of members are those of the cycles that
    other processes did not disturb or, where these are fewer than half, those that are typical of a
    cycle; the common level is that of all blocks.
    """
    whole = _whole_cycles(members)
    if not whole:
        return None
    plain = [_mean_rate(own) for own in members]
    if all(block.device_timed for own in members for block in own):
        return plain
    level = math.fsum(map(math.log, plain)) / len(members)
    quiet = [cycle for cycle in whole if not any(b.contended for own in cycle for b in own)]
    if 2 * len(quiet) < len(whole):
        return [math.exp(level + effect) for effect in effects(complete_cycles(members))]
    logs = [math.log(_mean_rate(itertools.chain(*own))) for own in zip(*quiet, strict=True)]
    return [math.exp(level + own - math.fsum(logs) / len(logs)) for own in logs]


def _mean_rate(blocks: Iterable[TurnBlock]) -> float:
    several = list(blocks)
    return max(sum(b.work for b in several), 1.0) / sum(b.cost for b in several)


def effects(found: Cycles) -> list[float]:
    """Return the logarithm of each member's rate over their common level, with a mean of zero.

    For two members these are plus and minus half of their typical difference.

    Args:
        found: cycles, at least one.
    """
    count = found.shape[1]
    differences = np.zeros((count, count))
    for one, other in itertools.combinations(range(count), 2):
        differences[one, other] = hodges_lehmann(found[:, one] - found[:, other])
    return [float(effect) for effect in (differences - differences.T).mean(axis=1)]


def hodges_lehmann(values: np.ndarray) -> float:
    """Return the median of the means of all pairs of values, each value with itself included.

    The Hodges-Lehmann estimator is as robust to a few disturbed values as a median, and nearly as
    exact as the mean.
    """
    one, other = np.triu_indices(len(values))
    return float(np.median((values[one] + values[other]) / 2))


def half_width(found: Cycles, *, correlated: bool = False) -> float:
    """Return the half-width of the widest 95 % interval of a log ratio of two members.

    It is infinite for a single cycle.

    Args:
        found: cycles.
        correlated: neighbouring cycles are correlated and count for fewer, as slow steps that come in
            groups are the configuration's own.
    """
    if len(found) < 2:
        return math.inf
    pairs = itertools.combinations(range(found.shape[1]), 2)
    differences = [found[:, one] - found[:, other] for one, other in pairs]
    if correlated:
        return max(map(half_width_of_mean, differences), default=0.0)
    spreads = (float(np.std(values, ddof=1)) for values in differences)
    return half_width_of(max(spreads, default=0.0), len(found))
