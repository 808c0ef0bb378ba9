"""Training without dropout, or under plain autocast: what a trajectory is compared in."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook

from autotune.worker.patches import wrapping

_NO_RATE = ("keep", "scale", "temp")
"""Parts of names of numbers that are no rate of what is dropped."""


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Switch dropout off meanwhile, and nothing else: normalisation goes on training.

    A module that holds a dropout rate itself has none meanwhile, as attention passes its rate on. It
    goes on training: others ask it whether to recompute activations, and cuDNN whether a backward
    pass follows.
    """
    quiet = _silenced(model)
    try:
        yield
    finally:
        _resume(quiet)


@contextmanager
def without_dropout_anywhere() -> Iterator[None]:
    """Switch dropout off meanwhile in every model that is run: a script builds its own."""
    quiet: list[_Silenced] = []

    def silence(module: nn.Module, _: Any) -> None:
        # The outermost module comes first, before anything in it is compiled.
        if not torch.compiler.is_compiling():
            quiet.extend(_silenced(module))

    hook = register_module_forward_pre_hook(silence)
    try:
        yield
    finally:
        hook.remove()
        _resume(quiet)


@contextmanager
def plain_autocast(device_type: str) -> Iterator[None]:
    """Run forward and loss under torch.autocast in bf16, and backward passes outside of it.

    It acts on whatever model is run, and shares no code with the knob `precision`.
    """
    learning, backwards = ExitStack(), False

    def begin(*_: Any) -> None:
        # The outermost module comes first; activations may be computed anew in a backward pass.
        if not (torch.is_autocast_enabled(device_type) or backwards) and torch.is_grad_enabled():
            learning.enter_context(torch.autocast(device_type, dtype=torch.bfloat16))

    # It stays, and does nothing afterwards: others may have changed the function meanwhile.
    @wrapping(torch.Tensor, "backward")
    def outside(backward: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal backwards
        learning.close()
        backwards = True
        try:
            backward(*args, **kwargs)
        finally:
            backwards = False

    hook = register_module_forward_pre_hook(begin)
    try:
        yield
    finally:
        hook.remove()
        learning.close()


class _Silenced(NamedTuple):
    """Attribute of a module by which it dropped something."""

    module: nn.Module
    name: str
    value: Any


def _silenced(model: nn.Module) -> list[_Silenced]:
    found = [
        _Silenced(module, name, value)
        for module in model.modules()
        if module.training
        for name, value in _dropping(module).items()
    ]
    for module, name, value in found:
        setattr(module, name, type(value)(0))
    return found


def _resume(silenced: Iterable[_Silenced]) -> None:
    for module, name, value in silenced:
        setattr(module, name, value)


def _dropping(module: nn.Module) -> dict[str, Any]:
    """Return the attributes by which a module drops something, and what they are.

    A module with another number for it, such as the share that is kept, does not train meanwhile.
    """
    several = {
        name: value
        for name, value in vars(module).items()
        if "drop" in name and isinstance(value, float) and value > 0
    }
    other = any(word in name for name in several for word in _NO_RATE)
    return {"training": True} if other or isinstance(module, _DropoutNd) else several
