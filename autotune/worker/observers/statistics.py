"""Layers and losses that compute over all rows of a micro-batch together.

Another micro-batch changes their result.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from autotune.worker.patches import wrapping

BATCH_NORM = "BatchNorm"
IN_BATCH = "a loss that compares the rows of a batch with each other"


class Statistics:
    """Observer of such layers and losses, from before the script builds its model."""

    def __init__(self) -> None:
        self._norms: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._in_batch = False
        self._observing = True

    def watch(self) -> None:
        """Observe from now on."""
        norms = self._norms

        @wrapping(_BatchNorm, "__init__")
        def built(build: Any, module: _BatchNorm, *args: Any, **kwargs: Any) -> None:
            build(module, *args, **kwargs)
            norms.add(module)

        @wrapping(functional, "cross_entropy")
        def computed(
            entropy: Any, logits: Tensor, target: Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            if self._observing and not torch.compiler.is_compiling():
                self._in_batch = self._in_batch or compares_rows(logits, target)
            return entropy(logits, target, *args, **kwargs)

    def close(self) -> None:
        """Observe no further loss."""
        self._observing = False

    def found(self, model: nn.Module | None) -> str:
        """Return a description of what computes over the rows together; empty if nothing does."""
        norms = batch_norms([*self._norms, *(() if model is None else model.modules())])
        return " and ".join(filter(None, [norms, IN_BATCH if self._in_batch else ""]))


def batch_norms(modules: Iterable[nn.Module]) -> str:
    """Return BATCH_NORM where a module normalises by the rows of a batch; frozen ones do not."""
    found = any(isinstance(module, _BatchNorm) and module.training for module in modules)
    return BATCH_NORM if found else ""


def compares_rows(logits: Any, target: Any) -> bool:
    """Return whether a cross entropy is that of a contrastive loss.

    There the right answer of each row is another row of the same batch, in their order.
    """
    if not (isinstance(logits, Tensor) and isinstance(target, Tensor) and logits.dim() == 2):
        return False
    rows, classes = logits.shape
    if rows < 2 or classes % rows or target.shape != (rows,) or target.is_floating_point():
        return False
    places = torch.arange(rows, device=target.device)
    return bool(torch.equal(target - target[0], places.to(target.dtype)))
