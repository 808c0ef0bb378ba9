"""Group-sequential levels: repeated looks at a comparison under one overall error. Pure.

By Lan and DeMets 1983 each look spends, of the allowed error, what a function of the information so
far gives; its critical value follows from what earlier looks have spent. The integration over the
earlier paths is that of Armitage, McPherson and Rowe 1969, as in Jennison and Turnbull 1999,
chapter 19; their section 4.4 takes the level of a look to Student's t.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

_GRID = 400
_FURTHEST = 8.0
"""Lower end of the integration, in standard deviations."""
_HALVINGS = 50


def error_spent(share: float, error: float) -> float:
    """Return the error that a share of the information may spend (Kim and DeMets 1987).

    It is error share^2, which keeps most of the error for late looks. After three rounds the noise
    itself is hardly known, so that early error buys little; a plain difference is found all the
    same.
    """
    return error * min(max(share, 0.0), 1.0) ** 2


def looks_after_each_round(first: int, now: int) -> list[int]:
    """Return the looks up to this round, the present one last.

    There is one after each round from the first.
    """
    return [*range(min(first, now), now), now]


def look_level(looks: Sequence[int], most: int, error: float) -> float:
    """Return the one-sided level at which the last look tests.

    Args:
        looks: number of rounds at each look, increasing, the present one last.
        most: number of rounds at which all the error is spent.
        error: one-sided error over all looks together.
    """
    return _levels(tuple(looks), most, error)[-1]


@functools.lru_cache(maxsize=4096)
def _levels(looks: tuple[int, ...], most: int, error: float) -> tuple[float, ...]:
    """Return the level of every look.

    The sum of the rounds' differences is a Brownian motion in their number.
    """
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
    """Return the bound of a look beyond which this much probability lies."""
    low, high = -_FURTHEST * math.sqrt(look), _FURTHEST * math.sqrt(look)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        beyond = float(mass @ special.ndtr((places - middle) / step))
        low, high = (middle, high) if beyond > wanted else (low, middle)
    return (low + high) / 2
