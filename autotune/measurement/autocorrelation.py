"""Lag-one correlation of a series, and its effective sample size. Pure."""

import itertools
import statistics
from collections.abc import Sequence

_HIGHEST = 0.9
"""Upper limit of the correlation: a few values that all rise would otherwise count for nothing."""


def lag_one(runs: Sequence[Sequence[float]]) -> float:
    """Return the correlation of neighbouring values, limited to [0, 0.9].

    Short series underestimate it by (1 + 4 r) / n, because their own mean follows them (Kendall
    1954; Marriott and Pope 1954 divide the products by n - 1 and have 3 r). That is added.

    Args:
        runs: at least one series, none of them empty, each around a mean of its own.
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
    """Return the number of independent values with an equally exact mean.

    It is n (1 - r) / (1 + r), at least 1.
    """
    return max(1.0, values * (1 - correlation) / (1 + correlation))
