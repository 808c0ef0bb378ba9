"""Which of several is the best, and how far the others may be from it. Pure functions."""

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

_GRID = 300
_FURTHEST = 6.0
_NODES = 40
_QUANTILES = 64
_HALVINGS = 40


@functools.lru_cache(maxsize=1024)
def comparison(rivals: int, freedom: float, confidence: float = 0.95) -> float:
    """Critical value of a multiple comparison with the best (Hsu 1984; Dunnett's, one-sided).

    So many standard errors above what was seen, no difference to any of the rivals is larger than that:
    "at most U slower than the best", U = max_j (y_j - y_i) + d s sqrt(2 / R), and 0 where that is less.

    Args:
        rivals: arms that it is compared with, each measured as often as the one in question.
        freedom: of s; 0: nothing is known of it.
        confidence: that all differences are within, at once.
    """
    if rivals < 1:
        return 0.0
    if freedom <= 0:
        return math.inf
    points, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    spreads = np.sqrt(2 * special.gammaincinv(freedom / 2, shares) / freedom)
    low, high = 0.0, 200.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        within = special.ndtr(points[:, None] + math.sqrt(2) * middle * spreads) ** rivals
        low, high = (
            (low, middle) if float((weights @ within).mean()) > confidence else (middle, high)
        )
    return (low + high) / 2


def chances(means: Sequence[float], errors: Sequence[float]) -> list[float]:
    """The probability of each that it is the largest, where each is normal and they are independent.

    Args:
        means: of them, at least one.
        errors: standard deviations, above zero.
    """
    level, spread = np.asarray(means, dtype=float), np.asarray(errors, dtype=float)
    low = float(np.max(level - _FURTHEST * spread))
    high = float(np.max(level + _FURTHEST * spread))
    edges = np.linspace(low, high, _GRID)
    below = special.ndtr((edges - level[:, None]) / spread[:, None])
    middle = special.log_ndtr(((edges[1:] + edges[:-1]) / 2 - level[:, None]) / spread[:, None])
    rest = np.exp(middle.sum(axis=0) - middle)
    found = (np.diff(below, axis=1) * rest).sum(axis=1)
    return [float(share) for share in found / max(found.sum(), math.ulp(0.0))]
