"""Knobs that a script sets by itself in its process, and features of torch that it uses.

A knob would be set back there, or find nothing to act on.
"""

import functools
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from autotune.worker.inject.setting_files import is_of_library


class Settled:
    """Observer of the process of a script, from `watch` on.

    Attributes:
        names: knobs that the script sets by itself.
        attends: whether scaled_dot_product_attention was called.
        reads: how often a number was read from a tensor while gradients were on, as a loss is for a
            log.
        asks_length: whether the script itself has asked a DataLoader for its number of batches.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.attends = False
        self.reads = 0
        self.asks_length = False
        self._collector = (False, 0)

    def watch(self) -> None:
        """Observe from now on."""
        self._collector = _collector()
        _before(torch, "set_num_threads", lambda: self.names.add("cpu_threads"))
        _before(functional, "scaled_dot_product_attention", self._attended)
        for read in ("item", "__float__"):
            _before(torch.Tensor, read, self._read)
        _before(DataLoader, "__len__", self._asked_length)
        # A property of the module; torch keeps its setter there.
        benchmark = vars(type(torch.backends.cudnn)).get("benchmark")
        if hasattr(benchmark, "setter"):
            _before(benchmark, "setter", lambda: self.names.add("cudnn_benchmark"))

    def found(self) -> tuple[str, ...]:
        """Return knobs that the script has set by itself so far."""
        collected = {"freeze_gc"} if _collector() != self._collector else set()
        return tuple(sorted(self.names | collected))

    def _asked_length(self) -> None:
        caller = sys._getframe(2)
        self.asks_length = self.asks_length or not is_of_library(Path(caller.f_code.co_filename))

    def _attended(self) -> None:
        self.attends = True

    def _read(self) -> None:
        self.reads += torch.is_grad_enabled()


def _collector() -> tuple[bool, int]:
    """Return the state of Python's garbage collector that freeze_gc would change."""
    return gc.isenabled(), gc.get_freeze_count()


def _before(owner: Any, name: str, callback: Callable[[], object]) -> None:
    """Let a function call `callback` before it does its work."""
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def calling(*args: Any, **kwargs: Any) -> Any:
        callback()
        return original(*args, **kwargs)

    setattr(owner, name, calling)
