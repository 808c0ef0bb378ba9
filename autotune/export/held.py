"""Copies of settings files that jobs have been given, kept for as long as a job that has them lives."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from autotune.errors import BadInput
from autotune.paths import held_copies, tuned_files
from autotune.worker.files import make_private
from autotune.worker.inject import copies
from autotune.worker.protocol import FileCopy


def write(copy: FileCopy) -> None:
    """Write a copy, and hold it until this process has ended, whatever program it has become, and all
    that have inherited its open files.

    Raises:
        BadInput: it cannot be written.
    """
    try:
        _hold(Path(copy.path).parent)
        copies.write(copy)
    except OSError as error:
        raise BadInput(f"{copy.path} cannot be written: {error.strerror}") from None


def _hold(folder: Path) -> None:
    while True:
        make_private(folder)
        try:
            lock = os.open(held_copies(folder), os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue  # somebody has just swept it
        fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock).st_nlink:
            os.set_inheritable(lock, True)
            return
        os.close(lock)


def sweep(workdir: Path) -> Iterator[Path]:
    """Remove what no living job holds of the copies in a folder that jobs are started in.

    Yields:
        The folders that are gone.
    """
    for lock in sorted(tuned_files(workdir).glob(f"*/{held_copies(Path()).name}")):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:  # another user's, or gone by now
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)
        if not lock.parent.exists():
            yield lock.parent
