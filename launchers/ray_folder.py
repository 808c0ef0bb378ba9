"""Folder for sockets and logs of a Ray of our own, removed with it even if processes are killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "autotune-ray-"
_USUAL = "/tmp"
"""Default parent folder. Names of sockets have to be short, so it is not the folder of temporary
files."""


class OwnFolder:
    """A folder held as long as this process lives, or until it is removed."""

    def __init__(self) -> None:
        """Make a folder, and remove those of dead processes."""
        base = Path(os.environ.get("RAY_TMPDIR") or _USUAL)
        sweep(base)
        self._lock: int | None = None
        while self._lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            self._lock = _locked(self.path)  # unless another process took it for that of a dead one

    def remove(self) -> None:
        """Remove the folder with its content; nothing of Ray runs any more."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def sweep(base: Path) -> None:
    """Remove the folders below this one that no process holds."""
    for folder in base.glob(f"{_PREFIX}*"):
        lock = _locked(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """Return the descriptor of the locked folder; None if it is held, another user's or gone."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            os.close(descriptor)
    return None
