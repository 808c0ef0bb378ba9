"""Random numbers that a model draws while it is run, such as the noise of a variational autoencoder.

Other kernels draw others: compiled code has a generator of its own, and a tensor of another number
format or memory layout is filled in another way. Gradients of such a model cannot be compared.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModelDraws:
    """Observer of the global generators while the outermost modules are run.

    Attributes:
        seen: True if one of them has drawn.
    """

    def __init__(self) -> None:
        self.seen = False
        self._outermost: nn.Module | None = None
        self._before: list[Tensor] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch every model that is run meanwhile."""
        hooks = (
            register_module_forward_pre_hook(self._begins),
            register_module_forward_hook(self._ended),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begins(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._outermost is None:
            self._outermost, self._before = module, _states()

    def _ended(self, module: nn.Module, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if module is self._outermost:
            self._outermost = None
            self.seen |= not all(map(torch.equal, self._before, _states()))


def _states() -> list[Tensor]:
    """Return the states of the generators that models draw from."""
    devices = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *devices]
