"""Free space on the disks that a study writes to."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from autotune.errors import AutotuneError, DiskFull
from autotune.worker.failure import lacks_shared_memory
from autotune.worker.files import make_private
from storage.records import AttemptResult, AttemptState

_LEAST_BYTES = 2**20
"""A disk with less room counts as full: a trial's logs and the database's next pages need some."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_WORDS = tuple(map(os.strerror, _FULL))


def lacks_room(folder: Path) -> bool:
    """Return whether this user gets no room on the disk of a folder: it is full, or a quota is spent.

    That is tried with an unnamed file, where the file system has such.
    """
    if is_full(folder):
        return True
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
    except OSError as error:
        return lacks_space(error)
    try:
        os.posix_fallocate(descriptor, 0, _LEAST_BYTES)
    except OSError as error:
        return lacks_space(error)
    finally:
        os.close(descriptor)
    return False


def is_full(folder: Path) -> bool:
    """Return whether next to no room is left on the disk of a folder.

    Nothing is written for that, and so neither quotas nor a lack of inodes are seen.
    """
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _LEAST_BYTES


def lacks_space(error: BaseException) -> bool:
    """Return whether an error of the operating system says that a disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in _FULL


def mentions_full_disk(cause: str) -> bool:
    """Return whether a message says that a disk or a quota was full; /dev/shm is none."""
    return any(words in cause for words in _WORDS) and not lacks_shared_memory(cause)


def has_failed(result: AttemptResult, folder: Path) -> bool:
    """Return whether a run may have failed because a disk was full.

    Args:
        folder: folder that the run writes to.
    """
    failed = result.state in (AttemptState.ERROR, AttemptState.CRASH)
    return failed and (mentions_full_disk(result.cause) or lacks_room(folder))


def full(folder: Path) -> str:
    """Return the message that a folder's disk is full."""
    return f"no room is left on the disk of {folder}"


def make(folder: Path) -> None:
    """Make a folder for this user alone unless it exists.

    Raises:
        DiskFull: no room is left.
        AutotuneError: making it is not permitted.
    """
    with written(folder):
        make_private(folder)


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Raise an error of the operating system as one of ours that names what was to be written.

    Raises:
        DiskFull: no room is left.
        AutotuneError: writing is not possible.
    """
    try:
        yield
    except OSError as error:
        if lacks_space(error):
            raise DiskFull(full(path)) from None
        raise AutotuneError(f"{path} cannot be written: {error.strerror}") from None
