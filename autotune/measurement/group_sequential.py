"""Looking at a comparison again and again without being fooled more often than once. Pure functions.

Lan and DeMets 1983: of the error that is allowed, each look spends what a function of the information
so far gives, and its critical value follows from what the looks before have spent. The integration
over what may have gone on until then is that of Armitage, McPherson and Rowe 1969, as in Jennison and
Turnbull 1999, chapter 19; their section 4.4 takes the level of a look to Student's t.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

_GRID = 400
_FURTHEST = 8.0
"""Standard deviations, below which nothing is looked at."""
_HALVINGS = 50


def error_spent(share: float, error: float) -> float:
    """Return the error that may be spent by a share of the information: error share^2 (Kim and
    DeMets 1987).

    That keeps most of it for late looks. Of three rounds the noise itself is hardly known, so that
    early error buys little; a difference that is plain is seen all the same.
    """
    return error * min(max(share, 0.0), 1.0) ** 2


def looks_after_each_round(first: int, now: int) -> list[int]:
    """Return the looks of who looks after this round and each that follows; the present one is the
    last.
    """
    return [*range(min(first, now), now), now]


def look_level(looks: Sequence[int], most: int, error: float) -> float:
    """Return the one-sided level at which the last look tests.

    Args:
        looks: rounds that there were at each look, increasing, the present one last.
        most: rounds, at which all the error is spent.
        error: one-sided, over all looks together.
    """
    return _levels(tuple(looks), most, error)[-1]


@functools.lru_cache(maxsize=4096)
def _levels(looks: tuple[int, ...], most: int, error: float) -> tuple[float, ...]:
    """Of every look: the sum of the rounds' differences is a Brownian motion in their number."""
    levels: list[float] = []
    before = 0.0
    places, weights, density = np.zeros(1), np.ones(1), np.ones(1)
    for number, look in enumerate(looks):
        step = math.sqrt(look - (looks[number - 1] if number else 0))
        wanted = error_spent(look / most, error) - before
        mass = weights * density
        bound = _bound(wanted, places, mass, step, look)
        levels.append(float(special.ndtr(-bound / math.sqrt(look))))
        before += wanted
        ends = np.linspace(-_FURTHEST * math.sqrt(look), bound, _GRID)
        kernel = np.exp(-(((ends[:, None] - places) / step) ** 2) / 2) / (
            step * math.sqrt(2 * math.pi)
        )
        density = kernel @ mass
        places = ends
        weights = np.full(_GRID, ends[1] - ends[0])
        weights[[0, -1]] /= 2
    return tuple(levels)


def _bound(wanted: float, places: np.ndarray, mass: np.ndarray, step: float, look: int) -> float:
    """Where the look has to stop for as much as this to lie beyond."""
    low, high = -_FURTHEST * math.sqrt(look), _FURTHEST * math.sqrt(look)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        beyond = float(mass @ special.ndtr((places - middle) / step))
        low, high = (middle, high) if beyond > wanted else (low, middle)
    return (low + high) / 2
