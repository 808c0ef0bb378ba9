"""Size of a script's first updates: another split of the same global batch must not change it. Pure.

A script that sums the losses of its micro-batches has a gradient in proportion to their number. One
that derives its learning rate from the micro-batch, or counts micro-batches in its schedule, trains
with another rate. Both go unnoticed by checks of rows, which stay the same.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from autotune.analysis.policy import PROOF
from search_spaces.batch import is_other_split
from search_spaces.knob import Knobs


@dataclass(frozen=True)
class FirstUpdates:
    """First updates of the runs of one configuration.

    Attributes:
        gradients: norm of the first gradient, of each run that told it.
        rates: learning rates of the first steps, of each run that told them.
        optimizer: class of the first optimizer; empty if no run told it.
    """

    gradients: tuple[float, ...] = ()
    rates: tuple[tuple[float, ...], ...] = ()
    optimizer: str = ""

    @classmethod
    def of(cls, observed: Iterable[Mapping[str, Any]]) -> Self:
        """Return those that blocks tell (autotune.worker.protocol.Observed)."""
        known = [one for one in observed if "optimizer" in one]
        return cls(
            tuple(one["first_gradient"] for one in known if one.get("first_gradient")),
            tuple(tuple(one["learning_rates"]) for one in known if "learning_rates" in one),
            next((one["optimizer"] for one in known), ""),
        )


def grows_with_gradient(optimizer: str) -> bool:
    """Return whether the update of a class of optimizers is known to grow with the gradient: SGD."""
    name = optimizer.lower()
    return "sgd" in name and "sign" not in name


def other_rate(run: FirstUpdates, base: FirstUpdates, knobs: Knobs, baseline: Knobs) -> str:
    """Return how the learning rate differs from the baseline's with another split; empty if it does not.

    It is empty, too, where runs of one configuration differ, or none has told it.
    """
    if not is_other_split(knobs, baseline):
        return ""
    of_steps = zip(*run.rates, strict=False), zip(*base.rates, strict=False)
    known = [
        (mine, yours) for mine, yours in zip(*of_steps, strict=False) if min(*mine, *yours) > 0
    ]
    apart = [_least_factor(mine, yours) for mine, yours in known]
    # A warm-up of 2 steps and one of 3 differ, too, but not for most of the first steps.
    if not apart or statistics.median(apart) <= PROOF.rates_apart:
        return ""
    mine, yours = known[apart.index(max(apart))]
    return (
        f"its learning rate is {mine[0]:.3g} where yours is {yours[0]:.3g}: the script derives it from "
        "the micro-batch, or its schedule counts micro-batches"
    )


def other_gradient(run: FirstUpdates, base: FirstUpdates, knobs: Knobs, baseline: Knobs) -> str:
    """Return that the first gradient is in proportion to the accumulation steps; empty if it is not.

    Shards of a gradient are not compared with whole ones, so parallelism must be equal.
    """
    both = _compared(run, base, knobs, baseline)
    expected = _factor(knobs, baseline)
    if not both or not all(is_in_proportion(ratio, expected) for ratio in both):
        return ""
    typical = statistics.geometric_mean(both)
    return (
        f"its first gradient is {typical:.2g} times yours: the script does not divide its loss by the "
        "accumulation steps"
    )


def is_sum(run: FirstUpdates, base: FirstUpdates, knobs: Knobs, baseline: Knobs) -> bool:
    """Return whether first gradients lie apart by just the factor that a sum of losses makes."""
    both, expected = _compared(run, base, knobs, baseline), _factor(knobs, baseline)
    return bool(both) and all(_departure(r, expected) < PROOF.surely_summed for r in both)


def _compared(run: FirstUpdates, base: FirstUpdates, knobs: Knobs, baseline: Knobs) -> list[float]:
    """Return the ratios of the first gradients, of every pair of runs; none where they tell nothing."""
    if not is_other_split(knobs, baseline) or knobs["parallelism"] != baseline["parallelism"]:
        return []
    return [mine / yours for mine, yours in itertools.product(run.gradients, base.gradients)]


def _factor(knobs: Knobs, baseline: Knobs) -> float:
    return float(knobs["accumulation_steps"] / baseline["accumulation_steps"])


def _least_factor(mine: Sequence[float], yours: Sequence[float]) -> float:
    """Return the least factor between two sets that do not overlap; below 1 if they do."""
    return max(min(mine) / max(yours), min(yours) / max(mine))


def is_in_proportion(ratio: float, expected: float) -> bool:
    """Return whether a ratio is nearer to the expected one than to 1, as ratios lie apart."""
    return _departure(ratio, expected) < PROOF.summed_losses


def _departure(ratio: float, expected: float) -> float:
    """Return how far a ratio lies from the expected one; 1: it is 1."""
    return abs(math.log(ratio) / math.log(expected) - 1)
