"""How far the best of several may be from the others. Pure functions."""

import functools
import math

import numpy as np
from scipy import special

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
