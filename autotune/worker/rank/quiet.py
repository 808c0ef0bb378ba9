"""Dropout switched off for a few steps, so that two configurations whose kernels draw
differently compute the same."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.dropout import _DropoutNd


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Dropout layers evaluate, and so does any module that holds a rate of dropout itself, as attention
    does that hands it on. Nothing else changes: normalisation goes on training."""
    quiet = [module for module in model.modules() if module.training and _drops(module)]
    for module in quiet:
        module.training = False
    try:
        yield
    finally:
        for module in quiet:
            module.training = True


def _drops(module: nn.Module) -> bool:
    return isinstance(module, _DropoutNd) or any(
        "drop" in name and isinstance(value, float) and value > 0
        for name, value in vars(module).items()
    )
