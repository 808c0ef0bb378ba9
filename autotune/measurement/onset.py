"""Bound on the steady speed of a run, from its first steps. Pure.

The first steps of a run include what happens once: memory is taken, kernels are chosen, buckets are
laid out anew. They bound the speed of the steady steps only by experience: by a prior, and by
earlier runs of the same study.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.worker.protocol import BlockReport

_FIRST_TIMES = 5.0
_FIRST_SECONDS = 10.0
"""Prior: a first step takes up to five steady ones, or ten seconds more than one."""
_MARGIN = 2.0
"""Factor over the worst first step of the study."""
_FEW = 5
_EARLY_TIMES = 3.0
"""Ratio of one of the first five steps to a steady one: gradient compression begins after them."""
_LATE_TIMES = 1.3
"""Ratio of a later step of the warm-up to a steady one."""


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

    times: float = _FIRST_TIMES
    seconds: float = _FIRST_SECONDS

    @classmethod
    def of(cls, earlier: Sequence[Onset]) -> "OnsetBound":
        """Return the bound by earlier runs of the same study; by the prior where there are none."""
        if not earlier:
            return cls()
        times = max(run.first / run.steady for run in earlier)
        seconds = max(run.first - run.steady for run in earlier)
        return cls(_MARGIN * max(times, 1.0), _MARGIN * max(seconds, 0.0))

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
        return step / (_EARLY_TIMES if done < _FEW else _LATE_TIMES)
