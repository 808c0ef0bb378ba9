"""Compiled code that trials share, in folders of the study that also link to the user's own."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from autotune.worker.files import COMPILER_CACHES

_USUAL = {
    "TRITON_CACHE_DIR": ("~/.triton/cache", 1),
    "TORCH_EXTENSIONS_DIR": ("~/.cache/torch_extensions", 2),
}
"""Variable -> the user's default folder for compiled code, and how deep its entries lie."""


def made(variables: Mapping[str, str]) -> list[str]:
    """Make the folders that the environment of this agent names.

    Args:
        variables: that the study sets itself: such folders are the user's own.

    Returns:
        Their real paths.
    """
    several = {name: os.environ.get(name, "") for name in COMPILER_CACHES if name not in variables}
    for name, folder in several.items():
        if folder and not Path(folder).exists():
            Path(folder).mkdir(parents=True, exist_ok=True)
            usual, depth = _USUAL.get(name, ("", 0))
            if usual:
                _show(Path(os.path.expanduser(usual)), Path(folder), depth)  # noqa: PTH111
    return [os.path.realpath(folder) for folder in several.values() if folder]


def _show(usual: Path, cache: Path, depth: int) -> None:
    """Link the user's compiled code into a cache of trials.

    Nothing is written through the links: their targets are protected. New code lies beside them.

    Args:
        usual: the user's own cache.
        cache: of the trials.
        depth: of entries in both.
    """
    with contextlib.suppress(OSError):
        for entry in usual.iterdir():
            shown = cache / entry.name
            if depth > 1 and entry.is_dir():
                shown.mkdir(exist_ok=True)
                _show(entry, shown, depth - 1)
            elif not shown.exists():
                shown.symlink_to(entry)
