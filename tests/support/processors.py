"""Which processors ranks are to stay on. Apart from what all tests share: with it comes torch."""

import os

from autotune.worker.effects import process


def shares_of_processors(ranks: int) -> list[list[int]]:
    """Of this machine, by cpu_affinity."""
    usable = process.in_order(os.sched_getaffinity(0))
    each = len(usable) // ranks
    if not each:
        return [sorted(usable)] * ranks
    return [sorted(usable[rank * each : (rank + 1) * each]) for rank in range(ranks)]
