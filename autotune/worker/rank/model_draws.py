"""Random numbers that a model draws while it is run, such as the noise of a variational autoencoder.

Other kernels draw others: compiled code has a generator of its own, and a tensor of another number
format or memory layout is filled in another way. Gradients of such a model can be compared only where
both runs have left the generators alike, which tells nothing on CUDA: there compiled code leaves them
as any other.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

ON_DEVICE = "its model draws random numbers on the device, and other kernels draw others"
"""Reason why the gradients of such a model are not compared."""


class ModelDraws:
    """Observer of the global generators while the outermost modules are run.

    Attributes:
        left: digest of how these left the generator of the CPU; empty as long as none has drawn.
        on_device: True if one has drawn on a CUDA device.
    """

    def __init__(self) -> None:
        self.left = ""
        self.on_device = False
        self._outermost: nn.Module | None = None
        self._before: list[Tensor] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch every model that is run meanwhile."""
        hooks = (
            register_module_forward_pre_hook(self._begins),
            register_module_forward_hook(self._ended, always_call=True),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begins(self, module: nn.Module, _: Any) -> None:
        if _is_captured():
            return
        if self._outermost is None:
            self._outermost, self._before = module, _states()

    def _ended(self, module: nn.Module, *_: Any) -> None:
        if module is not self._outermost or _is_captured():
            return
        self._outermost, now = None, _states()
        of_cpu, *of_devices = map(torch.equal, self._before, now)
        self.on_device |= not all(of_devices)
        if not of_cpu:
            self.left = hashlib.blake2b(now[0].numpy().tobytes(), digest_size=8).hexdigest()


def _is_captured() -> bool:
    """Return whether code is compiled or a graph captured, in which generators have no state."""
    capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    return torch.compiler.is_compiling() or capturing


def _states() -> list[Tensor]:
    """Return the states of the generators that models draw from, that of the CPU first."""
    devices = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *devices]
