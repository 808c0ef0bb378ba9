"""Removal of what studies have printed and compiled."""

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from autotune.export import config_copies
from autotune.paths import StudyPaths
from autotune.worker.sandbox import scratch
from storage import Repository, StoredStudy


def delete(repository: Repository, name: str) -> list[Path]:
    """Delete an ended study from the storage, and its folder if it is on this machine.

    Returns:
        The removed folders.

    Raises:
        BadInput: the study has not ended.
    """
    study = repository.studies.named(name)
    repository.studies.delete(name)
    return [folder for folder in [_paths(study).folder] if _remove(folder)]


def clean(repository: Repository, workdir: Path, age: float = 0.0) -> list[Path]:
    """Remove folders that are no longer needed; recorded results stay.

    These are the folders of ended studies and of studies unknown to the storage, copies of settings
    files that no living job was given, and what killed trials have written.

    Args:
        workdir: a folder with studies; the folders of the storage's own studies are searched, too.
        age: seconds for which the folder of a study must not have changed.

    Returns:
        The removed folders.
    """
    places = {workdir, *(Path(study.workdir) for study in repository.studies.all())}
    found = [folder for place in sorted(places) for folder in _of(repository, place)]
    # Queried after the search: a study that begins meanwhile is known by now.
    known = {_paths(study).folder: study for study in repository.studies.all()}
    ended = [folder for folder, study in known.items() if study.state.ended]
    # Compared by name, which is unique: a folder may have another path, or have moved.
    names = {folder.name for folder in known}
    unknown = [folder for folder in found if folder.name not in names]
    copies = [folder for place in sorted(places) for folder in config_copies.sweep(place)]
    old = [folder for folder in (*ended, *unknown) if _unchanged_for(folder) >= age]
    return [folder for folder in old if _remove(folder)] + copies + scratch.sweep()


def _unchanged_for(folder: Path) -> float:
    """Return the seconds since a folder, or an entry of it, was last written.

    0 if it is gone, or if the clock was set back since.
    """
    with contextlib.suppress(OSError):
        written = max(one.stat().st_mtime for one in (folder, *folder.iterdir()))
        return max(0.0, time.time() - written)
    return 0.0


def _of(repository: Repository, workdir: Path) -> Iterator[Path]:
    """Yield folders of studies that this storage has, or had.

    Others may be needed by other storages.
    """
    yield from StudyPaths(workdir, "").signed(str(repository.database))


def _paths(study: StoredStudy) -> StudyPaths:
    return StudyPaths(Path(study.workdir), study.name, study.key)


def _remove(folder: Path) -> bool:
    """Remove a folder; return whether it existed and is gone now."""
    if not folder.is_dir():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
