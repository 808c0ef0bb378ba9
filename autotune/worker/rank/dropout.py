"""Dropout switched off for a few steps.

Two configurations whose kernels draw differently then compute the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Switch dropout off meanwhile, and nothing else: normalisation goes on training.

    A module that holds a dropout rate itself is switched off, too, as attention passes its rate on.
    """
    quiet = _silenced(model)
    try:
        yield
    finally:
        _resume(quiet)


@contextmanager
def without_dropout_anywhere() -> Iterator[None]:
    """Switch dropout off meanwhile in every model that is run: a script builds its own."""
    quiet: list[nn.Module] = []

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


def _silenced(model: nn.Module) -> list[nn.Module]:
    found = [module for module in model.modules() if module.training and _drops(module)]
    for module in found:
        module.training = False
    return found


def _resume(modules: list[nn.Module]) -> None:
    for module in modules:
        module.training = True


def _drops(module: nn.Module) -> bool:
    return isinstance(module, _DropoutNd) or any(
        "drop" in name and isinstance(value, float) and value > 0
        for name, value in vars(module).items()
    )
