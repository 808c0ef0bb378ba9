"""Checkpoint that a script has read: it may bring the settings of an earlier run."""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch


class Loaded:
    """Record of the last file that torch.load has read.

    Attributes:
        name: as the script has named it; empty before it reads one.
    """

    def __init__(self) -> None:
        self.name = ""

    def watch(self) -> None:
        """Record every file that is loaded from now on."""
        load: Callable[..., Any] = torch.load

        @functools.wraps(load)
        def watched(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, str | os.PathLike):
                self.name = os.fspath(file)
            return load(file, *args, **kwargs)

        torch.load = watched  # type: ignore[assignment]
