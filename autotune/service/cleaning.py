"""What studies have printed and compiled, removed once nobody needs it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from autotune.export import held
from autotune.paths import StudyPaths
from autotune.worker.sandbox import scratch
from storage import Repository, StoredStudy


def delete(repository: Repository, name: str) -> list[Path]:
    """Delete a study that has ended from the storage, and its folder as far as it is here.

    Returns:
        The folders that are gone.

    Raises:
        BadInput: it has not ended.
    """
    study = repository.studies.named(name)
    repository.studies.delete(name)
    return [folder for folder in [_paths(study).folder] if _remove(folder)]


def clean(repository: Repository, workdir: Path) -> list[Path]:
    """Remove the folders of studies that have ended, and of those that the storage does not know any
    more, copies of settings files that no living job has been given, and what trials have written that
    were killed. What is recorded stays.

    Args:
        workdir: a folder with studies; those of the storage's own studies are looked through, too.

    Returns:
        The folders that are gone.
    """
    places = {workdir, *(Path(study.workdir) for study in repository.studies.all())}
    found = [folder for place in sorted(places) for folder in _of(repository, place)]
    # Asked once they are found: a study that begins meanwhile is known by now.
    known = {_paths(study).folder: study for study in repository.studies.all()}
    ended = [folder for folder, study in known.items() if study.state.ended]
    # By name, which no two studies share: a folder may be reached by another path, or have moved.
    names = {folder.name for folder in known}
    unknown = [folder for folder in found if folder.name not in names]
    copies = [folder for place in sorted(places) for folder in held.sweep(place)]
    return [folder for folder in (*ended, *unknown) if _remove(folder)] + copies + scratch.sweep()


def _of(repository: Repository, workdir: Path) -> Iterator[Path]:
    """Folders of studies that this storage has, or had; others may need those of theirs."""
    yield from StudyPaths(workdir, "").signed(str(repository.database))


def _paths(study: StoredStudy) -> StudyPaths:
    return StudyPaths(Path(study.workdir), study.name, study.key)


def _remove(folder: Path) -> bool:
    """Remove a folder; whether it is gone now and was not before."""
    if not folder.is_dir():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
