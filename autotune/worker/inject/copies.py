"""Copies of settings files at work in this process: whoever opens the file gets the copy, where nothing
tells the script its path; and whether they were read at all."""

import builtins
import io
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from autotune.worker.files import make_private
from autotune.worker.protocol import FileCopy

_WRITING = frozenset("wax+")


def write(copy: FileCopy) -> None:
    """Write it where it belongs, whole at any time: whoever else writes it writes the same."""
    path = Path(copy.path)
    make_private(path.parent)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(copy.text, "utf-8")
    unfinished.replace(path)


class Copies:
    """Call `begin` before the script runs, in its working directory."""

    def __init__(self, copies: Iterable[FileCopy]) -> None:
        """Take in copies that are written."""
        several = tuple(copies)
        self._unread = {os.path.realpath(copy.path): copy.file for copy in several}
        self._standing_in = {
            os.path.realpath(copy.file): copy.path for copy in several if copy.stands_in
        }
        self._names = {Path(path).name for path in self._standing_in}

    def begin(self) -> None:
        """Stand in for files from now on, and see which copies are read."""
        if self._standing_in:
            builtins.open = io.open = self._opening(io.open)
        if self._unread:
            # It stays for as long as the process lives: a look at a name per event.
            sys.addaudithook(self._audit)

    def unread(self) -> list[str]:
        """Files whose copies nothing in this process has opened so far."""
        return sorted(self._unread.values())

    def _opening(self, opens: Callable[..., Any]) -> Callable[..., Any]:
        def opening(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return opens(self._instead_of(file, mode), mode, *args, **kwargs)

        return opening

    def _instead_of(self, file: Any, mode: str) -> Any:
        if not isinstance(file, str | bytes | os.PathLike) or _WRITING & {*mode}:
            return file
        path = os.fsdecode(file)
        # A link of another name is not followed: the study names the file as the script does.
        if Path(path).name not in self._names:
            return file
        return self._standing_in.get(os.path.realpath(path), file)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self._unread or not isinstance(arguments[0], str | bytes):
            return
        self._unread.pop(os.path.realpath(os.fsdecode(arguments[0])), None)
