"""Which of the configurations that were measured are the fastest, by the model of a step. Pure.

Which was seen fastest is mostly which was lucky. The model of autotune.search.step_model knows what a
step is made of, and learns from all that was seen how much each knob matters: what one lucky run has
shown is drawn towards what the others say of it.
"""

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution

from autotune.search.grid import Grid
from autotune.search.observations import Observations
from autotune.search.step_model import StepModel

Knobs = Mapping[str, Any]


def expected_first(
    rates: Sequence[float], errors: Sequence[float], knobs: Sequence[Knobs]
) -> list[int]:
    """Places, that with the largest expected rate first.

    Args:
        rates: seen, above 0, one for each configuration; the model takes a few hundred at the most.
        errors: relative standard errors of what was seen around the truth, above 0.
        knobs: of the configurations, all with the same names.
    """
    frozen = tuple(tuple(sorted(one.items())) for one in knobs)
    return list(_expected_first(tuple(rates), tuple(errors), frozen))


@functools.lru_cache(maxsize=64)
def _expected_first(
    rates: tuple[float, ...],
    errors: tuple[float, ...],
    knobs: tuple[tuple[tuple[str, Hashable], ...], ...],
) -> tuple[int, ...]:
    several = [dict(one) for one in knobs]
    space = _space(several)
    if not space:
        return tuple(sorted(range(len(rates)), key=lambda place: -rates[place]))
    grid = Grid(space)
    measured = max(rates) / np.asarray(rates)
    rows = np.array([grid.encode(one) for one in several], dtype=np.int64)
    seen = Observations(
        rows=rows,
        times=measured,
        noise=np.asarray(errors) * measured,
        running=np.empty((0, len(grid.names)), dtype=np.int64),
        unit=1 / max(rates),
    )
    times = StepModel(grid, seen).likeliest(rows)
    return tuple(np.argsort(times, kind="stable").tolist())


def _space(several: Sequence[Knobs]) -> dict[str, CategoricalDistribution]:
    """Return the values that were seen of each knob that varies."""
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
