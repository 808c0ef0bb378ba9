"""Optimizer whose steps are those of a script's training, of several that may step."""

from collections import Counter

from torch.optim import Optimizer

from autotune.worker.inject.accumulation import Accumulation
from autotune.worker.inject.draws import Draws

_MOST_OF_OTHERS = 128
"""Steps that others take for one of the leader; a critic takes 100 for one of its generator (WGAN)."""
_MOST_OF_PASSES = 128
"""Steps of the leader after the same backward passes that are one; ZeRO has one for each group."""


class Leader:
    """Optimizer that stepped first, until others step without it.

    Attributes:
        optimizer: None before the first step.
        stepped: True after any optimizer has stepped.
    """

    def __init__(self, accumulation: Accumulation, draws: Draws) -> None:
        """Prepare for the first step.

        Args:
            accumulation: micro-batches of the steps of the training.
            draws: batches that are trained on.
        """
        self.optimizer: Optimizer | None = None
        self.stepped = False
        self._accumulation = accumulation
        self._draws = draws
        self._overflows: Counter[int] = Counter()
        self._passes_of_step = 0
        self._steps_of_passes = 0
        self._passes_of_others = 0
        self._steps_of_others = 0
        self._left_out = 0

    @property
    def steps_left_out(self) -> int:
        """Return the steps that do not count.

        They were skipped, as a gradient was too large for fp16, or others took them before one led.
        """
        return self._left_out + self._overflows[id(self.optimizer)]

    def leads(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer is the leader, which it becomes where there is none."""
        if self.optimizer is None:
            self.optimizer = optimizer
        return self.optimizer is optimizer

    def takes(self, optimizer: Optimizer) -> bool:
        """Take in a step that is over; return whether it is one of the training."""
        self.stepped = True
        self.leads(optimizer)
        return self._counts(optimizer)

    def skips(self, optimizer: Optimizer) -> None:
        """Take in that a step was skipped, as a gradient was too large for fp16."""
        if self._counts(optimizer):
            self._overflows[id(optimizer)] += 1
            self._accumulation.left_out(self._draws.batches)

    def _counts(self, optimizer: Optimizer) -> bool:
        """Return whether a step that is over, or was skipped, is one of the training.

        Of the leader's steps after the same backward passes, only the first is: ZeRO steps group by
        group, and a subclass calls the step of its base class. Where no backward pass is seen, all are,
        and again after many steps without another one: a CUDA graph replays passes that nothing sees.
        """
        passes = self._accumulation.passes
        if (self.optimizer or optimizer) is not optimizer:
            self._stand_in(optimizer, passes)
            return False
        if 0 < passes == self._passes_of_step:
            self._steps_of_passes += 1
            return self._steps_of_passes > _MOST_OF_PASSES
        self._passes_of_step, self._steps_of_others, self._steps_of_passes = passes, 0, 1
        return True

    def _stand_in(self, optimizer: Optimizer, passes: int) -> None:
        """Let another optimizer lead once others step in its place, as where it is built anew."""
        if passes == self._passes_of_others:
            return
        self._passes_of_others = passes
        self._steps_of_others += 1
        if self._steps_of_others == _MOST_OF_OTHERS:
            self._left_out = self.steps_left_out + _MOST_OF_OTHERS
            self._steps_of_others = 0
            self.optimizer, self._passes_of_step = optimizer, passes
            self._accumulation.left_out(self._draws.batches)
