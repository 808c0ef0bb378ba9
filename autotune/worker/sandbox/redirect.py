"""Patches that make a process, and Python processes that it starts, write copies of files.

They serve machines where no overlay can be mounted. The kernel refuses writes that bypass them, see
Landlock.
"""

import builtins
import errno
import functools
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote

from autotune.worker.patches import Arrivals, Change, wrapping
from autotune.worker.sandbox.copies import WrittenCopies

VARIABLE = "AUTOTUNE_COPIES"
"""Environment variable with the folder of the copies and folders written directly, as JSON."""

_SITE = str(Path(__file__).parents[1] / "inject" / "site")
"""Folder whose sitecustomize redirects a python as it starts, like this process."""
_READ, _READ_LINK, _KEEP, _KEEP_LINK, _NEW = "reading", "reading link", "keep", "keep link", "new"
Roles = dict[str, str | None]
"""Parameters of a function, in their order -> treatment of the path in each."""
_OF_OS: dict[str, Roles] = {
    "access": {"path": _READ},
    "chmod": {"path": _KEEP},
    "chown": {"path": _KEEP},
    "lchown": {"path": _KEEP_LINK},
    "link": {"src": _READ_LINK, "dst": _NEW},
    "lstat": {"path": _READ_LINK},
    "mkdir": {"path": _NEW},
    "mkfifo": {"path": _NEW},
    "mknod": {"path": _NEW},
    "readlink": {"path": _READ_LINK},
    "removexattr": {"path": _KEEP},
    "setxattr": {"path": _KEEP},
    "stat": {"path": _READ},
    "statvfs": {"path": _READ},
    "symlink": {"src": None, "dst": _NEW},
    "truncate": {"path": _KEEP},
    "utime": {"path": _KEEP},
}
_SAFETENSORS: dict[str, Roles] = {
    "save_file": {"tensors": None, "filename": _KEEP},
    "save_model": {"model": None, "filename": _KEEP},
    "load_file": {"filename": _READ},
    "load_model": {"model": None, "filename": _READ},
    "safe_open": {"filename": _READ},
}
_OTHERS: dict[str, dict[str, Roles]] = {
    "torch": {"save": {"obj": None, "f": _KEEP}, "load": {"f": _READ}},
    "torch.jit": {"save": {"m": None, "f": _KEEP}, "load": {"f": _READ}},
    "safetensors": _SAFETENSORS,
    "safetensors.torch": _SAFETENSORS,
    "safetensors.numpy": _SAFETENSORS,
    "dbm.gnu": {"open": {"filename": _KEEP}},
}
"""Module -> its functions that open files outside Python."""
_FOLDERS = ("dir_fd", "src_dir_fd", "dst_dir_fd")


def inherited() -> None:
    """Redirect this process if the process that has started it is redirected."""
    if inherited_settings := os.environ.get(VARIABLE):
        begin(**json.loads(inherited_settings))


def begin(folder: str, free: list[str]) -> None:
    """Write copies from now on, here and in processes that this one starts.

    Args:
        free: folders in which files are written directly.
    """
    os.environ[VARIABLE] = json.dumps({"folder": folder, "free": free})
    searched = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _SITE not in searched:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_SITE, *searched]))
    _Patches(WrittenCopies(folder, free)).apply()


class _Patches:
    def __init__(self, copies: WrittenCopies) -> None:
        self._copies = copies

    def apply(self) -> None:
        wrapping(io, "open")(self._open)
        builtins.open = io.open
        for name, roles in _OF_OS.items():
            self._replace(os, name, roles)
        own: dict[str, Callable[..., Any]] = {
            "open": self._os_open,
            "listdir": self._listdir,
            "scandir": self._scandir,
            "remove": self._remove,
            "unlink": self._remove,
            "rmdir": self._rmdir,
            "rename": self._rename,
            "replace": self._rename,
            "chdir": self._chdir,
            "getcwd": self._getcwd,
        }
        for name, patch in own.items():
            wrapping(os, name)(patch)
        shutil._use_fd_functions = False  # type: ignore[attr-defined]
        changes: dict[str, Change] = {
            module: functools.partial(self._change, functions)
            for module, functions in _OTHERS.items()
        }
        changes |= {"sqlite3": self._of_sqlite, "h5py": self._of_h5py, "dbm.ndbm": self._of_ndbm}
        Arrivals(changes).begin()

    def _role(self, path: Any, role: str | None) -> Any:
        if role is None:
            return path
        with self._copies.work():
            if role in (_READ, _READ_LINK):
                return self._copies.reading(path, follow=role == _READ)
            if role == _NEW:
                return self._copies.making(path)
            return self._copies.writing(path, follow=role == _KEEP)

    def _replace(self, owner: Any, name: str, roles: Roles) -> None:
        """Replace a function by one that treats the paths in its parameters."""

        @wrapping(owner, name)
        def patched(original: Any, *args: Any, **kwargs: Any) -> Any:
            if self._passes(kwargs):
                return original(*args, **kwargs)
            links = kwargs.get("follow_symlinks", True)
            meant = {name: role if links else _of_link(role) for name, role in roles.items()}
            given = [self._role(*pair) for pair in zip(args, meant.values(), strict=False)]
            named = {name: self._role(v, meant.get(name)) for name, v in kwargs.items()}
            return original(*given, *args[len(given) :], **named)

    def _passes(self, kwargs: dict[str, Any]) -> bool:
        """Return whether a call is unchanged: it is our own, or relative to an open folder."""
        return self._copies.at_work or any(kwargs.get(name) is not None for name in _FOLDERS)

    def _open(self, original: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not self._copies.at_work:
            with self._copies.work():
                if "x" in mode:
                    file = self._copies.making(file)
                elif {"w", "a", "+"} & set(mode):
                    file = self._copies.writing(file, keep="w" not in mode)
                else:
                    file = self._copies.reading(file)
        return original(file, mode, *args, **kwargs)

    def _os_open(self, original: Any, path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if not self._passes(kwargs):
            role = _READ
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                role = _NEW if flags & os.O_CREAT and flags & os.O_EXCL else _KEEP
            path = self._role(path, role)
        return original(path, flags, *args, **kwargs)

    def _listdir(self, original: Any, path: Any = ".") -> Any:
        if self._copies.at_work or not isinstance(path, str | os.PathLike):
            return original(path)
        with self._copies.work():
            return self._copies.names(path)

    def _scandir(self, original: Any, path: Any = ".") -> Any:
        if self._copies.at_work or not isinstance(path, str | os.PathLike):
            return original(path)
        with self._copies.work():
            if not self._copies.concerns(path):
                return original(path)
            names = self._copies.names(path)
        return _Scan([_Entry(os.fspath(path), name) for name in names])

    def _remove(self, original: Any, path: Any, **kwargs: Any) -> None:
        if self._passes(kwargs):
            original(path, **kwargs)
            return
        with self._copies.work():
            if copy := self._copies.removing(path):
                original(copy)

    def _rmdir(self, original: Any, path: Any, **kwargs: Any) -> None:
        if not self._passes(kwargs):
            with self._copies.work():
                if self._copies.names(path):  # as the process sees it
                    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fspath(path))
        self._remove(original, path, **kwargs)

    def _rename(self, original: Any, src: Any, dst: Any, **kwargs: Any) -> None:
        if self._passes(kwargs):
            original(src, dst, **kwargs)
            return
        with self._copies.work():
            moved = self._copies.moving(src)
            target = self._copies.writing(dst, keep=False, follow=False)
            try:
                original(moved, target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                shutil.move(moved, target)
            self._copies.moved(src)

    def _chdir(self, original: Any, path: Any) -> None:
        original(path if self._copies.at_work else self._role(path, _READ))

    def _getcwd(self, original: Any) -> str:
        here: str = original()
        return here if self._copies.at_work else self._copies.shown(here)

    def _change(self, functions: dict[str, Roles], module: Any) -> None:
        for name, roles in functions.items():
            if hasattr(module, name):
                self._replace(module, name, roles)

    def _of_sqlite(self, module: Any) -> None:
        @wrapping(module, "connect")
        def patched(connect: Any, database: Any, *args: Any, **kwargs: Any) -> Any:
            return connect(self._database(database), *args, **kwargs)

        module.dbapi2.connect = module.connect

    def _database(self, named: Any) -> Any:
        """Return where a database of SQLite lies, by its path or URI."""
        if named in (":memory:", "", b":memory:", b""):
            return named
        if isinstance(named, str) and named.startswith("file:"):
            path, mark, rest = named.removeprefix("file:").partition("?")
            written = self._role(unquote(path), _KEEP)
            return f"file:{quote(os.fspath(written))}{mark}{rest}"
        return self._role(named, _KEEP)

    def _of_ndbm(self, module: Any) -> None:
        @wrapping(module, "open")
        def patched(open_: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            # The library adds the ending by itself: one file or two.
            name = os.fsdecode(filename)
            several = [self._role(f"{name}{ending}", _KEEP) for ending in (".pag", ".dir", ".db")]
            return open_(os.fspath(several[-1]).removesuffix(".db"), *args, **kwargs)

    def _of_h5py(self, module: Any) -> None:
        @wrapping(module.File, "__init__")
        def patched(
            initialise: Any, file: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any
        ) -> None:
            role = _READ if mode == "r" else _KEEP
            initialise(file, self._role(name, role), mode, *args, **kwargs)


def _of_link(role: str | None) -> str | None:
    return {_READ: _READ_LINK, _KEEP: _KEEP_LINK}.get(role or "", role)


class _Entry:
    """Entry of a folder, as os.scandir yields them."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.path = os.path.join(folder, name)  # noqa: PTH118

    def __fspath__(self) -> str:
        return self.path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path) and (follow_symlinks or not self.is_symlink())  # noqa: PTH112

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path) and (follow_symlinks or not self.is_symlink())  # noqa: PTH113

    def is_symlink(self) -> bool:
        return os.path.islink(self.path)  # noqa: PTH114

    def is_junction(self) -> bool:
        return False

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)  # noqa: PTH116


class _Scan:
    """Iterator over entries, as os.scandir returns it; it can be closed."""

    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> "_Scan":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())
