"""Folders of upper layers: on a local disk, locked while in use, swept once they are not."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from autotune.worker.sandbox.mounts import LOCAL_DISKS, holds, mounted, of

_NAME = "autotune-sandbox"


def place(folders: list[str]) -> tuple[Path, bool]:
    """Choose a place for upper layers outside of some folders, on a local disk if there is one.

    Args:
        folders: that the job is likely to write to.

    Returns:
        A folder, which may not exist yet, and whether it is fit for large files.
    """
    mounts = mounted()
    roots = [root for root in _roots() if os.access(root, os.W_OK)]
    outside = [root for root in roots if not any(holds(folder, root) for folder in folders)]
    local = [root for root in outside if of(root, mounts).kind in LOCAL_DISKS]
    root = next(iter([*local, *outside, *roots]), "/tmp")
    return _own(root), bool(local)


def _roots() -> list[str]:
    several = ("/var/tmp", os.environ.get("TMPDIR", "/tmp"), "/tmp")
    return list(dict.fromkeys(os.path.realpath(root) for root in several))


def _own(root: str) -> Path:
    return Path(root) / f"{_NAME}-{os.geteuid()}"


_removals: list[threading.Thread] = []


def finish(seconds: float) -> None:
    """Wait for removals under way, but no longer than some seconds: sweeping does the rest."""
    give_up = time.monotonic() + seconds
    for removal in _removals:
        removal.join(max(0.0, give_up - time.monotonic()))


class Scratch:
    """Folder of the layers of one trial.

    Attributes:
        folder: for this user alone.
    """

    def __init__(self, place: Path) -> None:
        """Make the folder.

        Raises:
            OSError: it cannot be made, or the place belongs to another user.
        """
        place.mkdir(mode=0o700, exist_ok=True)
        known = place.lstat()
        if not stat.S_ISDIR(known.st_mode) or known.st_uid != os.geteuid():
            raise PermissionError(f"{place} is not a folder of this user")
        with _locked(place, fcntl.LOCK_SH):
            self.folder = Path(tempfile.mkdtemp(dir=place))
            self._lock = hold(self.folder)

    def remove(self) -> None:
        """Remove the folder in a thread of its own, as files may be large."""
        os.close(self._lock)
        _removals[:] = [removal for removal in _removals if removal.is_alive()]
        _removals.append(threading.Thread(target=_remove, args=(self.folder,), daemon=True))
        _removals[-1].start()


def hold(folder: Path) -> int:
    """Keep a folder from being swept for as long as this process, or one that it has forked, lives.

    Returns:
        The descriptor that holds it.

    Raises:
        OSError: the folder is gone.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def sweep() -> list[Path]:
    """Remove folders that killed processes have left behind.

    Returns:
        The folders that are gone.
    """
    found = []
    for own in (_own(root) for root in _roots()):
        with contextlib.suppress(OSError), _locked(own, fcntl.LOCK_EX):
            found += [folder for folder in own.iterdir() if _is_unused(folder)]
    for folder in found:
        _remove(folder)
    return found


def _is_unused(folder: Path) -> bool:
    try:
        with _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    """Lock a folder of this user; the lock of another's could be held for ever.

    Raises:
        OSError: it is gone, or another user's, or is locked and `how` does not wait.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(f"{folder} is not a folder of this user")
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove a folder of layers, with folders of overlayfs that not even their owner may enter."""
    for above, names, _ in os.walk(folder):
        for path in (Path(above) / name for name in names):
            if not path.is_symlink() and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
