"""Copies of settings files that jobs use, kept for as long as such a job lives."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.config import fields
from autotune.errors import BadInput
from autotune.paths import copies_lock, tuned_files
from autotune.worker.files import make_private
from autotune.worker.inject import settings_copies
from autotune.worker.protocol import FileCopy


def write_and_give(
    words: Sequence[str],
    flags: Mapping[str, str],
    turned: Mapping[str, Any],
    *,
    variables: Mapping[str, str],
    in_process: bool = True,
) -> fields.Given:
    """Return how a job is given its knobs, as `fields.given`; copies of its files are written.

    They lie below .autotune of the present folder.

    Raises:
        BadInput: a file or a field is not there, or a copy cannot be written.
    """
    folder = Path.cwd()
    found = fields.given(
        words,
        flags,
        turned,
        variables=variables,
        workdir=folder,
        folder=tuned_files(folder),
        in_process=in_process,
    )
    for copy in found.copies:
        write(copy)
    return found


def write(copy: FileCopy) -> None:
    """Write a copy, and hold a lock on it.

    The lock lasts until this process, whatever program it executes, and all processes that have
    inherited its open files have ended.

    Raises:
        BadInput: it cannot be written.
    """
    try:
        _hold(Path(copy.path).parent)
        settings_copies.write(copy)
    except OSError as error:
        raise BadInput(f"{copy.path} cannot be written: {error.strerror}") from None


def _hold(folder: Path) -> None:
    while True:
        make_private(folder)
        try:
            lock = os.open(copies_lock(folder), os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue  # another process has just swept it
        fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock).st_nlink:
            os.set_inheritable(lock, True)
            return
        os.close(lock)


def sweep(workdir: Path) -> Iterator[Path]:
    """Remove copies that no living job uses, below a folder that jobs are started in.

    Yields:
        The folders that are gone.
    """
    for lock in sorted(tuned_files(workdir).glob(f"*/{copies_lock(Path()).name}")):
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
