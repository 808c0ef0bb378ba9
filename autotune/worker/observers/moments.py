"""Digest of the times of consecutive steps."""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class StepMoments(NamedTuple):
    """Digest of the consecutive steps of a block; it can be merged with those of other blocks.

    Attributes:
        steps: number of steps; 0: they were not timed one by one.
        mean: mean seconds of a step.
        squares: sum of the squared deviations from the mean.
        products: sum of the products of the deviations of neighbouring steps.
    """

    steps: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    @classmethod
    def of(cls, steps: Sequence[float]) -> "StepMoments":
        """Return the digest of these steps, in order, at least one."""
        mean = statistics.fmean(steps)
        around = [step - mean for step in steps]
        products = math.fsum(one * other for one, other in itertools.pairwise(around))
        return cls(len(steps), mean, math.fsum(each * each for each in around), products)
