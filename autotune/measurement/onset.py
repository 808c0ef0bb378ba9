"""Bound on the steady speed of a run, from its first steps. Pure.

The first steps of a run include what happens once: memory is taken, kernels are chosen, buckets are
laid out anew. They bound the speed of the steady steps only by experience: by a prior, and by
earlier runs of the same study.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.measurement.policy import MEASUREMENT
from autotune.worker.protocol import BlockReport


@dataclass(frozen=True)
class Onset:
    """Beginning of a run.

    Attributes:
        first: seconds of the first step.
        steady: seconds of a step in the blocks that count.
    """

    first: float
    steady: float


@dataclass(frozen=True)
class OnsetBound:
    """Bound on how far a first step lies above a steady one.

    Attributes:
        times: bound as a factor.
        seconds: bound in seconds; of the two the one that allows for the faster run counts.
    """

    times: float = MEASUREMENT.first_step
    seconds: float = MEASUREMENT.first_step_seconds

    @classmethod
    def of(cls, earlier: Sequence[Onset]) -> "OnsetBound":
        """Return the bound by earlier runs of the same study; by the prior where there are none."""
        if not earlier:
            return cls()
        times = max(run.first / run.steady for run in earlier)
        seconds = max(run.first - run.steady for run in earlier)
        return cls(
            MEASUREMENT.first_step_margin * max(times, 1.0),
            MEASUREMENT.first_step_margin * max(seconds, 0.0),
        )

    def fastest_step(self, blocks: Sequence[BlockReport]) -> float:
        """Return the least seconds of a steady step; 0 where the blocks tell nothing.

        Args:
            blocks: blocks of the warm-up so far, from the first step on.
        """
        done, bounds = 0, []
        for block in blocks:
            step = block.seconds / block.steps
            if not block.observed.get("compilations"):
                bounds.append(self._bound(step, done))
            done += block.steps
        # The least bound counts: other processes may have disturbed a block.
        return min((bound for bound in bounds if bound > 0), default=0.0)

    def _bound(self, step: float, done: int) -> float:
        """Return the least seconds of a steady step, by a step after this many."""
        if done == 0:
            return min(step / self.times, step - self.seconds)
        return step / (
            MEASUREMENT.early_step if done < MEASUREMENT.early_steps else MEASUREMENT.late_step
        )
