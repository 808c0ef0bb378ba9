"""Settings that a script takes by itself: knobs that it sets, files that may hold them, checkpoints.

A knob would be set back there, or find nothing to act on. A checkpoint may bring the settings of an
earlier run.
"""

import gc
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, dataloader

from autotune.worker.patches import wrapping

_MOST_BYTES = 100 * 1024
"""Largest settings file: people write them by hand, and larger files are data."""
_FOLDERS = {"site-packages", "dist-packages", "node_modules", "__pycache__", ".cache", ".git"}
"""Folders of libraries and caches."""
_DATA = re.compile(
    r"tokeni[sz]er|vocab|merges|special_tokens|added_tokens|\.index\.json$|package-lock|annotations",
    re.IGNORECASE,
)
"""Names of files that belong to models or data and hold no settings of a training."""


class Settled:
    """Observer of the process of a script, from `watch` on.

    Attributes:
        names: knobs that the script sets by itself.
        attends: whether scaled_dot_product_attention was called.
        reads: how often a number was read from a tensor while gradients were on, as a loss is for a
            log. Those of a data set do not count: its loader's workers may read them.
        asks_length: whether the script itself has asked a DataLoader for its number of batches.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.attends = False
        self.reads = 0
        self.asks_length = False
        self._collector = (False, 0)
        self._loader = _InLoader()

    def watch(self) -> None:
        """Observe from now on."""
        self._collector = _collector()
        _before(torch, "set_num_threads", lambda: self.names.add("cpu_threads"))
        _before(functional, "scaled_dot_product_attention", self._attended)
        for read in ("item", "__float__"):
            _before(torch.Tensor, read, self._read)
        for owner, name in ((DataLoader, "__iter__"), (dataloader._BaseDataLoaderIter, "__next__")):
            wrapping(owner, name)(self._fetching)
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
        caller = sys._getframe(3)
        self.asks_length = self.asks_length or not is_of_library(Path(caller.f_code.co_filename))

    def _attended(self) -> None:
        self.attends = True

    def _read(self) -> None:
        self.reads += torch.is_grad_enabled() and not self._loader.calls

    def _fetching(self, fetch: Any, loader: Any) -> Any:
        self._loader.calls += 1
        try:
            return fetch(loader)
        finally:
            self._loader.calls -= 1


class _InLoader(threading.local):
    """Calls of loaders that this thread is in."""

    calls = 0


def _collector() -> tuple[bool, int]:
    """Return the state of Python's garbage collector that freeze_gc would change."""
    return gc.isenabled(), gc.get_freeze_count()


def _before(owner: Any, name: str, callback: Callable[[], object]) -> None:
    """Let a function call `callback` before it does its work."""

    @wrapping(owner, name)
    def calling(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        callback()
        return original(*args, **kwargs)


def may_hold_settings(path: Path) -> bool:
    """Return whether a file of YAML, JSON or TOML may say how a script trains.

    Args:
        path: absolute.
    """
    if is_of_library(path) or _DATA.search(path.name):
        return False
    try:
        return path.is_file() and path.stat().st_size <= _MOST_BYTES
    except OSError:
        return False


def is_of_library(path: Path) -> bool:
    """Return whether a file is one of an installed library or of a cache."""
    return path.is_relative_to(sys.prefix) or bool(_FOLDERS & {*path.parts})


class Loaded:
    """Record of the last file that torch.load has read.

    Attributes:
        name: as the script has named it; empty before it reads one.
    """

    def __init__(self) -> None:
        self.name = ""

    def watch(self) -> None:
        """Record every file that is loaded from now on."""

        @wrapping(torch, "load")
        def watched(load: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, str | os.PathLike):
                self.name = os.fspath(file)
            return load(file, *args, **kwargs)
