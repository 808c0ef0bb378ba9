"""How far the best of several may be from the others. Pure functions."""

import functools
import math

import numpy as np
from scipy import special

_NODES = 48
_HALVINGS = 50


@functools.lru_cache(maxsize=1024)
def critical_value(rivals: int, df: float, confidence: float = 0.95) -> float:
    """Critical value of a multiple critical_value with the best (Hsu 1984; Dunnett's, one-sided).

    So many standard errors above what was seen, no difference to any of the rivals is larger than that:
    "at most U slower than the best", U = max_j (y_j - y_i) + d s sqrt(2 / R), and 0 where that is less.

    Args:
        rivals: arms that it is compared with, each measured as often as the one in question.
        df: of s; 0: nothing is known of it.
        confidence: that all differences are within, at once.
    """
    if rivals < 1:
        return 0.0
    if df <= 0:
        return math.inf
    # With one rival it is Student's; with several at least that, and at most what Bonferroni gives.
    low = float(special.stdtrit(df, confidence))
    if rivals == 1:
        return low
    high = float(special.stdtrit(df, 1 - (1 - confidence) / rivals))
    points, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    # As quantiles of the normal distribution the nodes reach far into both tails of s, too.
    spreads = np.sqrt(2 * special.gammaincinv(df / 2, special.ndtr(points)) / df)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        within = special.ndtr(points[:, None] + math.sqrt(2) * middle * spreads) ** rivals
        enough = float(weights @ within @ weights) > confidence
        low, high = (low, middle) if enough else (middle, high)
    return (low + high) / 2
