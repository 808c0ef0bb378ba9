"""Ranking of the measured configurations by the model of a step. Pure.

The configuration that was measured fastest is mostly the luckiest one. The model of
autotune.search.step_model knows the parts of a step, and learns from all measurements how much each
knob matters: one lucky run is drawn towards what the others show.
"""

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from optuna.distributions import CategoricalDistribution

from autotune.search.grid import Grid, Matrix
from autotune.search.observations import NORMAL_95, Observations
from autotune.search.step_model import StepModel
from autotune.search.threads import ThreadpoolController
from search_spaces.knob import Knobs


@dataclass(frozen=True)
class Expectation:
    """Rates that the model expects of some configurations, by all measurements together.

    Attributes:
        rates: by configuration.
        covariance: of their logarithms.
    """

    rates: tuple[float, ...]
    covariance: Matrix

    def order(self) -> list[int]:
        """Return the indices of the configurations, the largest expected rate first."""
        return [int(place) for place in np.argsort(-np.asarray(self.rates), kind="stable")]

    def half_width(self, one: int, other: int) -> float:
        """Return the half-width of the 95 % interval of the log ratio of two rates."""
        own = self.covariance
        variance = float(own[one, one] + own[other, other] - 2 * own[one, other])
        return NORMAL_95 * math.sqrt(max(0.0, variance))


def expectation(
    rates: Sequence[float], errors: Sequence[float], knobs: Sequence[Knobs]
) -> Expectation:
    """Return what the model expects of each configuration, by all measurements together.

    Args:
        rates: measured rates above 0, one per configuration; a few hundred at most.
        errors: relative standard errors of the rates, above 0.
        knobs: knobs of the configurations, all with the same names.
    """
    frozen = tuple(tuple(sorted(one.items())) for one in knobs)
    return _expectation(tuple(rates), tuple(errors), frozen)


@functools.lru_cache(maxsize=64)
def _expectation(
    rates: tuple[float, ...],
    errors: tuple[float, ...],
    knobs: tuple[tuple[tuple[str, Hashable], ...], ...],
) -> Expectation:
    several = [dict(one) for one in knobs]
    space = _space(several)
    if not space:
        return Expectation(rates, np.diag(np.square(errors)))
    grid = Grid(space)
    measured = max(rates) / np.asarray(rates)
    rows = grid.rows_of(several)
    seen = Observations(
        rows=rows,
        times=measured,
        noise=np.asarray(errors) * measured,
        running=np.empty((0, len(grid.names)), dtype=np.int64),
        unit=1 / max(rates),
    )
    # The matrices are small: threads would only disturb each other, and trials.
    with ThreadpoolController().limit(limits=1):
        model = StepModel(grid, seen)
        times, covariance = model.likeliest(rows), model.covariance(rows)
    return Expectation(tuple((max(rates) / times).tolist()), covariance)


def _space(several: Sequence[Knobs]) -> dict[str, CategoricalDistribution]:
    """Return the values of each varying knob that were measured."""
    # True == 1 in Python: the type belongs to the value.
    values = {
        name: {(type(one[name]), one[name]): one[name] for one in several}
        for name in (several[0] if several else ())
    }
    return {
        name: CategoricalDistribution(sorted(own.values(), key=repr))
        for name, own in values.items()
        if len(own) > 1
    }
