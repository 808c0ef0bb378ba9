"""How much values that follow each other resemble each other, and what they are worth. Pure."""

import itertools
import statistics
from collections.abc import Sequence

_HIGHEST = 0.9
"""A few values that all rise would otherwise be worth nothing at all."""


def lag_one(runs: Sequence[Sequence[float]]) -> float:
    """Correlation of neighbouring values, held to [0, 0.9].

    What short series show is too low by (1 + 4 r) / n, as their own mean follows them (Kendall 1954;
    Marriott and Pope 1954, who divide the products by n - 1 and have 3 r): that is added.

    Args:
        runs: series of one process, each around a mean of its own; at least one, none of them empty.
    """
    products = squares = 0.0
    for run in runs:
        mean = statistics.fmean(run)
        around = [value - mean for value in run]
        products += sum(a * b for a, b in itertools.pairwise(around))
        squares += sum(a * a for a in around)
    if not squares:
        return 0.0
    seen = products / squares
    length = statistics.fmean(map(len, runs))
    return min(_HIGHEST, max(0.0, seen + (1 + 4 * seen) / length))


def effective_sample_size(values: int, correlation: float) -> float:
    """Return how many independent values have a mean as exact: n (1 - r) / (1 + r), at least 1."""
    return max(1.0, values * (1 - correlation) / (1 + correlation))
