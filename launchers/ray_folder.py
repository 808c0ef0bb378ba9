"""Where a Ray of our own keeps its sockets and logs: a folder that goes with it, whoever is killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "autotune-ray-"
_USUAL = "/tmp"
"""Names of sockets have to be short: wherever else temporary files are, these are here."""


class OwnFolder:
    """Held as long as this process lives, or until it is removed."""

    def __init__(self) -> None:
        """Make one, and remove those of processes that are dead."""
        base = Path(os.environ.get("RAY_TMPDIR") or _USUAL)
        sweep(base)
        self._lock: int | None = None
        while self._lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            self._lock = _locked(self.path)  # unless another took it for one of a dead process

    def remove(self) -> None:
        """With all that is in it: nothing of Ray runs any more."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def sweep(base: Path) -> None:
    """Remove the folders below this one that nobody holds."""
    for folder in base.glob(f"{_PREFIX}*"):
        lock = _locked(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """Its descriptor; None if it is another process's, another user's or gone."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            os.close(descriptor)
    return None
