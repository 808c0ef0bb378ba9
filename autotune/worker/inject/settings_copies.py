"""Copies of settings files, opened in place of the files themselves.

Reading is recorded, so that an unused copy is noticed.
"""

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
    """Write a copy atomically: another process may write the same one."""
    path = Path(copy.path)
    make_private(path.parent)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(copy.text, "utf-8")
    unfinished.replace(path)


class SettingsCopies:
    """Copies in use by this process.

    Call `begin` before the script runs, in its working directory.
    """

    def __init__(self, copies: Iterable[FileCopy]) -> None:
        """Prepare the use of copies that exist."""
        several = tuple(copies)
        self._unread = {os.path.realpath(copy.path): copy.file for copy in several}
        self._standing_in = {
            os.path.realpath(copy.file): copy.path for copy in several if copy.stands_in
        }
        self._names = {Path(path).name for path in self._standing_in}

    def begin(self) -> None:
        """Open copies in place of files from now on, and record which copies are read."""
        if self._standing_in:
            builtins.open = io.open = self._opening(io.open)
        if self._unread:
            # The hook stays for as long as the process lives: one lookup of a name per event.
            sys.addaudithook(self._audit)

    def unread(self) -> list[str]:
        """Return files whose copies this process has not opened so far."""
        return sorted(self._unread.values())

    def _opening(self, opens: Callable[..., Any]) -> Callable[..., Any]:
        def opening(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return opens(self._instead_of(file, mode), mode, *args, **kwargs)

        return opening

    def _instead_of(self, file: Any, mode: str) -> Any:
        if not isinstance(file, str | bytes | os.PathLike) or _WRITING & {*mode}:
            return file
        path = os.fsdecode(file)
        # A link of another name is not followed: the study uses the script's name of the file.
        if Path(path).name not in self._names:
            return file
        return self._standing_in.get(os.path.realpath(path), file)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self._unread or not isinstance(arguments[0], str | bytes):
            return
        self._unread.pop(os.path.realpath(os.fsdecode(arguments[0])), None)
