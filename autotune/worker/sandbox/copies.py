"""Copies that a process writes instead of the user's files, and finds again when it reads them."""

import contextlib
import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from autotune.worker.sandbox.mounts import holds


class WrittenCopies:
    """Tree of copies, shared by all processes of a trial: its state is the content of its folder."""

    def __init__(self, folder: str, free: Iterable[str]) -> None:
        """Use a folder for copies.

        Args:
            folder: real path, of this trial alone.
            free: folders in which files are written directly.
        """
        self._tree, self._gone = f"{folder}/copies", f"{folder}/gone"
        self._free = (folder, *(os.path.realpath(path) for path in free))
        self._own = threading.local()

    @property
    def at_work(self) -> bool:
        """Return whether this thread handles copies already, so that paths are real ones."""
        return getattr(self._own, "depth", 0) > 0

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Handle real paths meanwhile."""
        self._own.depth = getattr(self._own, "depth", 0) + 1
        try:
            yield
        finally:
            self._own.depth -= 1

    def reading(self, path: Any, *, follow: bool = True) -> Any:
        """Return where to read for a path of the process."""
        name = self._name(path, follow=follow)
        if name is None:
            return path
        copy = self._tree + name
        return copy if os.path.lexists(copy) or self._is_gone(name) else path

    def writing(self, path: Any, *, keep: bool = True, follow: bool = True) -> Any:
        """Return where to write for a path of the process.

        Args:
            path: as the process has it.
            keep: whether the present content must remain.
            follow: whether a link is followed.
        """
        name = self._name(path, follow=follow)
        if name is None:
            return path
        copy = self._with_parent(name)
        if keep and self._has_original(name) and not os.path.lexists(copy):
            self._copy(name, copy)
        return copy

    def making(self, path: Any) -> Any:
        """Return where to make a file that must not exist yet."""
        name = self._name(path, follow=False)
        if name is None or (self._has_original(name) and not os.path.lexists(self._tree + name)):
            return path
        return self._with_parent(name)

    def removing(self, path: Any) -> str | None:
        """Mark a path as removed.

        Returns:
            A copy that is still to be removed; None if there is none.

        Raises:
            FileNotFoundError: nothing is there.
        """
        name = self._name(path, follow=False)
        if name is None:
            return str(os.fspath(path))
        copy = self._tree + name
        copied, original = os.path.lexists(copy), self._has_original(name)
        if not copied and not original:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        if original:
            self._lose(name)
        return copy if copied else None

    def moving(self, path: Any) -> str:
        """Return a copy of everything that is to be moved away from a path."""
        name = self._name(path, follow=False)
        if name is None:
            return str(os.fspath(path))
        copy = self._with_parent(name)
        if self._has_original(name):
            self._copy_all(name, copy)
        return copy

    def moved(self, path: Any) -> None:
        """Mark a path as removed after its content was moved."""
        name = self._name(path, follow=False)
        if name is not None and self._has_original(name):
            self._lose(name)

    def concerns(self, path: Any) -> bool:
        """Return whether a folder may have entries other than those on the disk."""
        name = self._name(path, follow=True)
        return name is not None and (Path(self._tree + name).exists() or Path(self._gone).exists())

    def names(self, path: Any) -> list[str]:
        """Return the names in a folder, copies included."""
        name = self._name(path, follow=True)
        if name is None:
            return os.listdir(path)  # noqa: PTH208
        found: set[str] = set()
        copy = self._tree + name
        copied, original = Path(copy).is_dir(), self._has_original(name)
        if original or not copied:
            listed = os.listdir(path)  # noqa: PTH208
            found |= {n for n in listed if not self._is_gone(os.path.join(name, n))}  # noqa: PTH118
        return sorted(found | set(os.listdir(copy) if copied else ()))  # noqa: PTH208

    def shown(self, path: str) -> str:
        """Return a path as the process is to know it."""
        return path.removeprefix(self._tree) or "/"

    def _name(self, path: Any, *, follow: bool) -> str | None:
        """Return the real path; None where it is free, or no path at all."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        given = os.path.join(self.shown(os.getcwd()), os.fsdecode(path))  # noqa: PTH109, PTH118
        above, last = os.path.split(os.path.normpath(given))
        name = os.path.join(os.path.realpath(above), last)  # noqa: PTH118
        if follow and not os.path.lexists(self._tree + name):
            name = os.path.realpath(name)
        return None if any(holds(folder, name) for folder in self._free) else name

    def _has_original(self, name: str) -> bool:
        return os.path.lexists(name) and not self._is_gone(name)

    def _lose(self, name: str) -> None:
        Path(self._gone).mkdir(parents=True, exist_ok=True)
        Path(self._mark(name)).touch()

    def _is_gone(self, name: str) -> bool:
        if not Path(self._gone).exists():
            return False
        several = (name, *map(str, Path(name).parents))
        return any(os.path.lexists(self._mark(one)) for one in several)

    def _mark(self, name: str) -> str:
        return f"{self._gone}/{hashlib.sha1(os.fsencode(name), usedforsecurity=False).hexdigest()}"

    def _with_parent(self, name: str) -> str:
        copy = Path(self._tree + name)
        above = Path(name).parent
        if not copy.parent.is_dir() and above.is_dir() and not self._is_gone(str(above)):
            copy.parent.mkdir(parents=True, exist_ok=True)
        return str(copy)

    def _copy(self, name: str, copy: str) -> None:
        """Copy a file, a link, or a folder without its content."""
        if Path(name).is_dir() and not Path(name).is_symlink():
            Path(copy).mkdir(exist_ok=True)
            shutil.copystat(name, copy)
            return
        unfinished = f"{copy}.{os.getpid()}.{threading.get_ident()}"
        shutil.copy2(name, unfinished, follow_symlinks=False)
        Path(unfinished).replace(copy)

    def _copy_all(self, name: str, copy: str) -> None:
        if not os.path.lexists(copy):
            self._copy(name, copy)
        if Path(name).is_dir() and not Path(name).is_symlink():
            for child in os.listdir(name):  # noqa: PTH208
                inner = os.path.join(name, child)  # noqa: PTH118
                if not self._is_gone(inner):
                    self._copy_all(inner, os.path.join(copy, child))  # noqa: PTH118
