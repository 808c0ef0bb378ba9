"""Removal of what studies have printed and compiled."""

import contextlib
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from autotune.errors import StorageError
from autotune.export import config_copies
from autotune.paths import StudyPaths, diagnosis_mark
from autotune.service.queues import this_machine
from autotune.worker.sandbox import scratch
from storage import Database, Repository, StoredStudy, StudyState


def signature(database: Database) -> str:
    """Return what a storage signs the folders of its studies with.

    A SQLite file is that of one machine: another may have one at the same path.

    Raises:
        StorageError: the server does not answer, or does not tell which database it is.
    """
    if database.folder:
        return f"{this_machine()} {database}"
    return f"postgresql {database.identity()}"


def _signatures(database: Database) -> set[str]:
    """Return what a storage may have signed folders with, as far as it tells.

    Earlier versions signed with the URL alone.
    """
    found = {str(database)}
    with contextlib.suppress(StorageError):
        found.add(signature(database))
    return found


def delete(repository: Repository, name: str) -> list[Path]:
    """Delete an ended study from the storage, and its folders if they are on this machine.

    These are its own, unless another storage has signed it, as this one may be a copy of that. The
    folder of `autotune diagnose` goes only with one that this storage has signed: a project on
    another machine may be at the same path.

    Returns:
        The removed folders.

    Raises:
        BadInput: the study has not ended.
    """
    paths = repository.studies.named(name).paths
    # Asked first: a server that fails afterwards would leave the folder without a study.
    own = _signatures(repository.database)
    is_own, is_signed = paths.may_be_of(own), paths.signature in own
    repository.studies.delete(name)
    if not is_own:
        return []
    gone = [paths.folder] if _remove(paths.folder) else []
    if is_signed and _remove_diagnosis(paths.diagnosis):
        gone.append(paths.diagnosis)
    return gone


def signed_by_others(database: Database, studies: Iterable[StoredStudy]) -> dict[Path, str]:
    """Return the folders of studies that another storage has signed, each with its signature.

    It may be this storage, when its machine or its file had another name.
    """
    own = _signatures(database)
    return {
        study.paths.folder: study.paths.signature
        for study in studies
        if not study.paths.may_be_of(own)
    }


def clean(repository: Repository, workdir: Path, age: float = 0.0) -> list[Path]:
    """Remove folders that are no longer needed; recorded results stay.

    These are the folders of studies that are done and of studies unknown to the storage, copies of
    settings files that no living job was given, and what killed trials have written. A study that was
    stopped or has failed keeps its folder: it can go on, and its output says why it failed. So does
    one whose folder another storage has signed.

    Where the storage does not tell which one it is, no folder is known to be of a study of its own
    that it knows no more: see `problem`.

    Args:
        workdir: a folder with studies; the folders of the storage's own studies are searched, too.
        age: seconds for which the folder of a study must not have changed.

    Returns:
        The removed folders.
    """
    unknown = []
    with contextlib.suppress(StorageError):
        unknown = _unknown(repository, workdir, signature(repository.database))
    known = {study.paths.folder: study for study in repository.studies.all()}
    own = _signatures(repository.database)
    done = [
        folder
        for folder, study in known.items()
        if study.state == StudyState.DONE and study.paths.may_be_of(own)
    ]
    places = sorted(_places(repository, workdir))
    copies = [folder for place in places for folder in config_copies.sweep(place)]
    old = [folder for folder in (*done, *unknown) if _unchanged_for(folder) >= age]
    # One after another takes its time, in which a study may have been resumed.
    gone = [one for one in old if _is_over(repository, known.get(one)) and _remove(one)]
    return gone + copies + scratch.sweep()


def problem(database: Database) -> str:
    """Return why a storage does not tell which one it is; empty: it does."""
    try:
        signature(database)
    except StorageError as error:
        return str(error)
    return ""


def undecided(repository: Repository, workdir: Path) -> list[Path]:
    """Return folders that may be of another storage that has the same URL on another machine.

    Earlier versions signed them with the URL alone, and the storage does not know their studies.
    """
    return _unknown(repository, workdir, str(repository.database))


def _unknown(repository: Repository, workdir: Path, sign: str) -> list[Path]:
    """Return the folders with a signature whose studies the storage does not know."""
    places = sorted(_places(repository, workdir))
    found = [folder for place in places for folder in StudyPaths(place, "").signed(sign)]
    # Queried after the search: a study that begins meanwhile is known by now.
    # Compared by name, which is unique: a folder may have another path, or have moved.
    names = {study.paths.folder.name for study in repository.studies.all()}
    return [folder for folder in found if folder.name not in names]


def _places(repository: Repository, workdir: Path) -> set[Path]:
    return {workdir, *(Path(study.workdir) for study in repository.studies.all())}


def _is_over(repository: Repository, study: StoredStudy | None) -> bool:
    """Return whether a study is done, as it is now, or is known no more."""
    return study is None or all(
        one.state == StudyState.DONE for one in repository.studies.of_ids([study.id])
    )


def _unchanged_for(folder: Path) -> float:
    """Return the seconds since a folder, or an entry of it, was last written.

    0 if it is gone, or if the clock was set back since.
    """
    with contextlib.suppress(OSError):
        written = max(one.stat().st_mtime for one in (folder, *folder.iterdir()))
        return max(0.0, time.time() - written)
    return 0.0


def _remove_diagnosis(folder: Path) -> bool:
    """Remove a folder that `autotune diagnose` has made; return whether it existed and is gone now."""
    if not diagnosis_mark(folder).is_file() or not _remove(folder):
        return False
    with contextlib.suppress(OSError):  # other files are beside it
        folder.parent.rmdir()
    return True


def _remove(folder: Path) -> bool:
    """Remove a folder; return whether it existed and is gone now."""
    if not folder.is_dir():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
