"""What runs of similar configurations say of each other. Pure functions.

A Gaussian process over knobs: the more two configurations have in common, the more alike their rates
are, and how much each knob matters is what makes the data most likely (type II maximum likelihood;
Rasmussen and Williams 2006, chapters 2 and 5). So what one lucky run has shown is drawn towards
what its neighbours show.
"""

import functools
import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from scipy import linalg

Knobs = Mapping[str, Hashable]

_WEIGHTS = (0.0, 0.01, 0.1, 0.5, 2.0)
"""By how much a step of a knob may make two configurations differ: not at all to entirely."""
_SCALES = (0.1, 0.3, 1.0, 3.0)
"""Standard deviation between configurations, over that of what was seen."""
_SWEEPS = 2
_ANY_MEAN = 100.0
"""Variance of the mean of all, over that of what was seen: nobody knows it beforehand."""
_LEAST = 1e-12


def smoothed(
    values: Sequence[float], errors: Sequence[float], knobs: Sequence[Knobs]
) -> tuple[list[float], list[float]]:
    """What each configuration's true value is taken for, and the standard deviation of that.

    Args:
        values: seen, such as logarithms of rates; one for each configuration.
        errors: standard deviations of what was seen around the truth, above zero.
        knobs: of the configurations, all with the same names.
    """
    frozen = tuple(tuple(sorted(one.items())) for one in knobs)
    means, spreads = _smoothed(tuple(values), tuple(errors), frozen)
    return list(means), list(spreads)


@functools.lru_cache(maxsize=64)
def _smoothed(
    values: tuple[float, ...],
    errors: tuple[float, ...],
    knobs: tuple[tuple[tuple[str, Hashable], ...], ...],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    seen, noise = np.asarray(values), np.square(errors)
    centred = seen - seen.mean()
    total = float(np.var(seen))
    steps = _steps([dict(one) for one in knobs])
    if len(seen) < 2 or total <= _LEAST:
        return values, errors
    weights, scale = [0.1] * len(steps), 1.0

    def likely(weights: Sequence[float], scale: float) -> float:
        return _evidence(_covariance(steps, weights, scale**2 * total, total), noise, centred)

    for _ in range(_SWEEPS):
        scale = max(_SCALES, key=lambda one: likely(weights, one))
        for place in range(len(steps)):
            tried = [[*weights[:place], one, *weights[place + 1 :]] for one in _WEIGHTS]
            weights = max(tried, key=lambda one: likely(one, scale))
    covariance = _covariance(steps, weights, scale**2 * total, total)
    factor = linalg.cho_factor(covariance + np.diag(noise), lower=True)
    means = seen.mean() + covariance @ linalg.cho_solve(factor, centred)
    left = np.diag(covariance) - np.einsum(
        "ij,ji->i", covariance, linalg.cho_solve(factor, covariance)
    )
    return tuple(map(float, means)), tuple(map(float, np.sqrt(np.maximum(left, _LEAST))))


def _steps(knobs: Sequence[Knobs]) -> list[np.ndarray]:
    """How far apart configurations are in each knob that varies: octaves of numbers, else 0 or 1."""
    names = [name for name in knobs[0] if len({one[name] for one in knobs}) > 1]
    return [_apart([one[name] for one in knobs]) for name in names]


def _apart(values: Sequence[Hashable]) -> np.ndarray:
    if all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in values):
        octaves = np.log2(np.asarray(values, dtype=float))
        apart: np.ndarray = np.abs(octaves[:, None] - octaves)
        return apart
    codes = np.array([sorted(map(str, set(values))).index(str(value)) for value in values])
    different: np.ndarray = np.asarray(codes[:, None] != codes, dtype=float)
    return different


def _covariance(
    steps: Sequence[np.ndarray], weights: Sequence[float], variance: float, total: float
) -> np.ndarray:
    apart = sum((w * one for w, one in zip(weights, steps, strict=True)), np.zeros(()))
    alike: np.ndarray = variance * np.exp(-apart) + _ANY_MEAN * total
    return alike


def _evidence(covariance: np.ndarray, noise: np.ndarray, centred: np.ndarray) -> float:
    """Logarithm of how likely it is to see this, less a constant."""
    try:
        factor = linalg.cholesky(covariance + np.diag(noise), lower=True)
    except linalg.LinAlgError:
        return -math.inf
    white = linalg.solve_triangular(factor, centred, lower=True)
    return float(-white @ white / 2 - np.log(np.diag(factor)).sum())
