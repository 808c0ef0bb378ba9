"""Copies of settings files, opened in place of the files themselves.

Reading is recorded, so that an unused copy is noticed.
"""

import builtins
import functools
import io
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from autotune.worker.files import make_private
from autotune.worker.patches import wrapping
from autotune.worker.protocol import FileCopy

_WRITING = frozenset("wax+")
_BEFORE_OPENER = 5
"""Parameters of `open` between mode and opener."""


def write(copy: FileCopy) -> None:
    """Write a copy atomically: another process may write the same one."""
    path = Path(copy.path)
    make_private(path.parent)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(copy.text, "utf-8")
    unfinished.replace(path)


def _open_instead(copy: str, _: str, flags: int) -> int:
    return os.open(copy, flags)


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
            wrapping(io, "open")(self._opened)
            builtins.open = io.open
        if self._unread:
            # The hook stays for as long as the process lives: one lookup of a name per event.
            sys.addaudithook(self._audit)

    def unread(self) -> list[str]:
        """Return files whose copies this process has not opened so far."""
        return sorted(self._unread.values())

    def _opened(
        self, opens: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **kwargs: Any
    ) -> Any:
        if (copy := self._copy_of(file, mode)) is None:
            return opens(file, mode, *args, **kwargs)
        # The stream keeps its name, by which a script finds other files beside it.
        kwargs["opener"] = functools.partial(_open_instead, copy)
        return opens(file, mode, *args[:_BEFORE_OPENER], **kwargs)

    def _copy_of(self, file: Any, mode: str) -> str | None:
        """Return the copy that stands in for a file; None where there is none."""
        if not isinstance(file, str | bytes | os.PathLike) or _WRITING & {*mode}:
            return None
        path = os.fsdecode(file)
        # A link of another name is not followed: the study uses the script's name of the file.
        if Path(path).name not in self._names:
            return None
        return self._standing_in.get(os.path.realpath(path))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self._unread or not isinstance(arguments[0], str | bytes):
            return
        self._unread.pop(os.path.realpath(os.fsdecode(arguments[0])), None)
