"""Dropout switched off for a few steps, so that two configurations whose kernels draw
differently compute the same."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
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


_DROPPING = (
    *("dropout", "dropout1d", "dropout2d", "dropout3d"),
    *("alpha_dropout", "feature_alpha_dropout"),
)
_ATTENTION = "scaled_dot_product_attention"


@contextmanager
def without_dropout_functions() -> Iterator[None]:
    """Replace the functions of torch that drop, for a script whose modules are not known yet."""
    before = {name: getattr(functional, name) for name in (*_DROPPING, _ATTENTION)}
    for name in _DROPPING:
        setattr(functional, name, _kept)
    setattr(functional, _ATTENTION, _undropped(before[_ATTENTION]))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(functional, name, function)


def _kept(input: Tensor, *_: Any, **__: Any) -> Tensor:
    return input


def _undropped(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(attend)
    def attended(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if len(args) > 1:  # the mask, then the rate
            args = (args[0], 0.0, *args[2:])
        else:
            kwargs["dropout_p"] = 0.0
        return attend(query, key, value, *args, **kwargs)

    return attended
