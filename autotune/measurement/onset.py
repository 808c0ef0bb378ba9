"""How fast a run may still become, by its first steps. Pure functions.

The first steps of a run hold what happens once: memory is taken, kernels are chosen, buckets are
laid out anew. So they bound the speed of its steady steps only by what such steps were like before: by
a prior, and by what the runs of the same study have shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.worker.protocol import BlockReport

_FIRST_TIMES = 5.0
_FIRST_SECONDS = 10.0
"""Prior: a first step takes up to five steady ones, or ten seconds more than one."""
_MARGIN = 2.0
"""Over the worst first step that the study has seen."""
_FEW = 5
_EARLY_TIMES = 3.0
"""One of the first five steps takes up to three steady ones: gradient compression begins after them."""
_LATE_TIMES = 1.3
"""A later step of the warm-up."""


@dataclass(frozen=True)
class Onset:
    """What the beginning of a run was like.

    Attributes:
        first: seconds of its first step.
        steady: seconds of a step of the blocks that count.
    """

    first: float
    steady: float


@dataclass(frozen=True)
class OnsetBound:
    """How far a first step may lie above a steady one.

    Attributes:
        times: as a factor,
        seconds: and in seconds; whichever allows for the faster run.
    """

    times: float = _FIRST_TIMES
    seconds: float = _FIRST_SECONDS

    @classmethod
    def of(cls, earlier: Sequence[Onset]) -> "OnsetBound":
        """By the runs of the same study; by the prior alone where there are none."""
        if not earlier:
            return cls()
        times = max(run.first / run.steady for run in earlier)
        seconds = max(run.first - run.steady for run in earlier)
        return cls(_MARGIN * max(times, 1.0), _MARGIN * max(seconds, 0.0))

    def fastest_step(self, blocks: Sequence[BlockReport]) -> float:
        """Return seconds of a steady step, at least; 0 where the blocks tell nothing.

        Args:
            blocks: the warm-up so far, from the first step on.
        """
        done, bounds = 0, []
        for block in blocks:
            step = block.seconds / block.steps
            if not block.observed.get("compilations"):
                bounds.append(self._bound(step, done))
            done += block.steps
        # The least that any of them allows for: others may have disturbed one.
        return min((bound for bound in bounds if bound > 0), default=0.0)

    def _bound(self, step: float, done: int) -> float:
        """What a steady step takes at least, by one after so many."""
        if done == 0:
            return min(step / self.times, step - self.seconds)
        return step / (_EARLY_TIMES if done < _FEW else _LATE_TIMES)
