"""Composition of a profiled step over all ranks: the parts of the rank that the others wait for."""

import statistics
from collections.abc import Mapping, Sequence

STRAGGLER = "straggler"
"""Part of the step in which the other ranks wait for the slowest one, whatever it does in it."""

_WAITING = "communication"
_IDLE = "idle"


def breakdown(parts: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return shares of a step that add up to one, with `idle`, of the device, beside the sum.

    A rank that is early waits inside its collectives, so the rank with the least communication sets
    the pace: its parts are the step's. What it has of them beyond the median of the other ranks, as
    far as those wait for it, is the straggler's.

    Args:
        parts: shares of a step by part, one per rank, as autotune.worker.rank.trace.shares returns
            them.
    """
    waiting = parts[_WAITING]
    slowest = waiting.index(min(waiting))
    pace = {name: shares[slowest] for name, shares in parts.items()}
    others = [rank for rank in range(len(waiting)) if rank != slowest]
    if not others:
        return {**pace, STRAGGLER: 0.0}
    excess = {
        name: max(0.0, shares[slowest] - statistics.median(shares[rank] for rank in others))
        for name, shares in parts.items()
        if name not in (_WAITING, _IDLE)
    }
    waited = statistics.median(waiting[rank] for rank in others) - waiting[slowest]
    straggling = min(sum(excess.values()), waited)
    for name, more in excess.items():
        if straggling:
            pace[name] -= more * straggling / sum(excess.values())
    return {**pace, STRAGGLER: straggling}
