"""Free space on the disks that a study writes to."""

import errno
import os
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.worker.failure import lacks_shared_memory
from autotune.worker.files import make_private
from storage.records import AttemptResult, AttemptState

_LEAST_BYTES = 2**20
"""A disk with less room counts as full: a trial's logs and the database's next pages need some."""
_WORDS = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))


def is_full(folder: Path) -> bool:
    """Return whether next to no room is left on the disk of a folder; quotas are not seen."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _LEAST_BYTES


def mentions_full_disk(cause: str) -> bool:
    """Return whether a message says that a disk or a quota was full; /dev/shm is none."""
    return any(words in cause for words in _WORDS) and not lacks_shared_memory(cause)


def has_failed(result: AttemptResult, folder: Path) -> bool:
    """Return whether a run may have failed because a disk was full.

    Args:
        result: result of the run.
        folder: folder that the run writes to.
    """
    failed = result.state in (AttemptState.ERROR, AttemptState.CRASH)
    return failed and (is_full(folder) or mentions_full_disk(result.cause))


def full(folder: Path) -> str:
    """Return the message that a folder's disk is full."""
    return f"no room is left on the disk of {folder}"


def make(folder: Path) -> None:
    """Make a folder for this user alone unless it exists.

    Raises:
        AutotuneError: making it is not permitted, or no room is left.
    """
    try:
        make_private(folder)
    except OSError as error:
        raise AutotuneError(f"{folder} cannot be written: {error.strerror}") from None
