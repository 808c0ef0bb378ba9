"""Knobs that change in the course of a training, of which a trial sees only the beginning.

The steps of a trial therefore stand for moments spread evenly over the whole training: step after
step halves the widest gap, so that any few in a row have nearly the average cost of the schedule.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autotune.worker.effects.parallel import repeated
from autotune.worker.protocol import Knobs

Shorten = Callable[[Any, int], Any]

_DECAY = 100
"""Decay of the keep probability over the training, as published."""
_GRANULE = 8
"""Lengths in tokens are multiples of this, which suits kernels."""
_FEWEST_STEPS = 16
_STEP_RATIO, _BLOCK_RATIO = 0.6180339887, 0.7548776662  # irrational: evenly spread, never in step


def moment(step: int) -> float:
    """Return the moment of a step, from 0 (start of the training) to 1 (end).

    The moments form the van der Corput sequence.
    """
    found, part = 0.0, 0.5
    while step:
        found += part * (step & 1)
        step, part = step >> 1, part / 2
    return found


def fewest_steps(knobs: Knobs) -> int:
    """Return the fewest steps of a block that stands for the whole training."""
    return 1 if knobs["layer_keep"] == knobs["curriculum_start"] == 1 else _FEWEST_STEPS


class LayerDrop:
    """Progressive layer dropping (Zhang and He 2020) of a model's repeated blocks (layer_keep).

    All ranks drop the same blocks in the same step. The output of the others is not scaled.
    """

    def __init__(self, knobs: Knobs, model: nn.Module) -> None:
        """Make the blocks droppable.

        Raises:
            ValueError: the model has no list of at least two modules of one class.
        """
        self._keep = knobs["layer_keep"]
        found = repeated(model, "layer_keep") if self._keep < 1 else []
        self._kept = [True] * len(found)
        for number, block in enumerate(found):
            block.forward = self._droppable(number, block.forward)

    def begin(self, step: int) -> None:
        """Choose the blocks of a step, each with its probability at that moment of the training."""
        keep = (1 - self._keep) * math.exp(-_DECAY * moment(step)) + self._keep
        for number in range(len(self._kept)):
            chance = 1 - (number + 1) / len(self._kept) * (1 - keep)
            drawn = (step * _STEP_RATIO + number * _BLOCK_RATIO) % 1
            self._kept[number] = drawn < chance

    def _droppable(self, number: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if not self._kept[number]:
                return hidden
            out = forward(hidden, *args, **kwargs)
            if not isinstance(out, torch.Tensor) or out.shape != hidden.shape:
                raise ValueError(
                    "layer_keep: a block that can be left out returns a tensor of the shape of its "
                    f"first argument, {tuple(hidden.shape)}; take the knob out of the search space"
                )
            return out

        return run


class Curriculum:
    """Samples that start short and grow (Li et al. 2022; curriculum_start, curriculum_share)."""

    def __init__(self, knobs: Knobs, shorten: Shorten | None, tokens_per_sample: int) -> None:
        """Prepare the schedule for a workload's samples.

        Raises:
            ValueError: a batch cannot be shortened.
        """
        self._start, self._share = knobs["curriculum_start"], knobs["curriculum_share"]
        self._shorten, self._full = shorten, tokens_per_sample
        if self._start < 1 and (self._shorten is None or not self._full):
            raise ValueError(
                "curriculum_start: the workload has no `shorten`, or no tokens_per_sample; take the "
                "knob out of the search space or give the Workload both"
            )
        self.part = 1.0
        """Share of a full sample's tokens that a sample of this step has."""

    def begin(self, step: int) -> None:
        """Choose the length of a step."""
        if self._start == 1:
            return
        grown = min(1.0, moment(step) / self._share)
        wanted = (self._start + (1 - self._start) * grown) * self._full
        whole = _GRANULE * round(wanted / _GRANULE)
        length = self._full if grown == 1 else min(self._full, max(_GRANULE, whole))
        self.part = length / self._full

    def cut(self, batch: Any) -> Any:
        """Return the batch with samples of that length."""
        if self.part == 1 or self._shorten is None:
            return batch
        return self._shorten(batch, round(self.part * self._full))
