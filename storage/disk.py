"""Room on the disks that a study writes to."""

import errno
import os
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.worker.files import make_private
from storage.records import AttemptResult, AttemptState

_LEAST_BYTES = 2**20
"""Below this a disk counts as full: a trial's logs and the database's next pages need some."""
_WORDS = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))


def is_full(folder: Path) -> bool:
    """Whether next to no room is left on the disk of a folder; quotas are not seen."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _LEAST_BYTES


def mentions_full_disk(cause: str) -> bool:
    """Whether somebody's words say that a disk or a quota was full."""
    return any(words in cause for words in _WORDS)


def has_failed(result: AttemptResult, folder: Path) -> bool:
    """Whether it may have been a full disk that a run has failed of.

    Args:
        result: of the run.
        folder: that it writes to.
    """
    failed = result.state in (AttemptState.ERROR, AttemptState.CRASH)
    return failed and (is_full(folder) or mentions_full_disk(result.cause))


def full(folder: Path) -> str:
    """That a folder's disk is full, in words."""
    return f"no room is left on the disk of {folder}"


def make(folder: Path) -> None:
    """Make a folder, for this user alone, unless it is there.

    Raises:
        AutotuneError: it may not be made, or no room is left.
    """
    try:
        make_private(folder)
    except OSError as error:
        raise AutotuneError(f"{folder} cannot be written: {error.strerror}") from None
