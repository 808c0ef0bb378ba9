"""Paths below `.autotune`, the folder that autotune makes beside a study.

No other module joins such paths.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from autotune.worker.files import TrialFiles

_FOLDER = ".autotune"
_OWNER = "storage"


@dataclass(frozen=True)
class StudyPaths:
    """Output folders of a study and its trials, the same on every node.

    Attributes:
        workdir: folder that the study was started in.
        key: distinguishes it from studies of its name in another or a former storage.
    """

    workdir: Path
    study: str
    key: str = ""

    @property
    def folder(self) -> Path:
        """Return the folder of the study, which its agents print into."""
        return self.workdir / _FOLDER / (f"{self.study}-{self.key}" if self.key else self.study)

    def sign(self, storage: str) -> None:
        """Write the signature of the storage that knows the study into its folder.

        Raises:
            OSError: it cannot be written.
        """
        (self.folder / _OWNER).write_bytes(os.fsencode(storage))

    def may_be_of(self, storages: Collection[str]) -> bool:
        """Return whether one of these storages, or none, has signed the folder of the study."""
        owner = self.folder / _OWNER
        return not owner.exists() or _read(owner) in {os.fsencode(storage) for storage in storages}

    @property
    def signature(self) -> str:
        """Return what a storage has signed the folder of the study with; empty if it is not known."""
        return os.fsdecode(_read(self.folder / _OWNER) or b"")

    def signed(self, storage: str) -> list[Path]:
        """Return the folders of all studies there that this storage has signed."""
        owners = sorted((self.workdir / _FOLDER).glob(f"*/{_OWNER}"))
        return [owner.parent for owner in owners if _read(owner) == os.fsencode(storage)]

    @property
    def diagnosis(self) -> Path:
        """Return the folder of `autotune diagnose`, which knows no key."""
        return self.workdir / _FOLDER / self.study / "diagnose"

    def attempt(self, name: str) -> TrialFiles:
        """Return the files of an attempt: output of its ranks, and their traces."""
        return TrialFiles(self.folder / name)


def _read(owner: Path) -> bytes | None:
    """Return the content of a file; None if it is gone or may not be read."""
    try:
        return owner.read_bytes()
    except OSError:
        return None


def compiled(folder: Path) -> Path:
    """Return the folder of torch.compile's caches, in the folder that the agents print into."""
    return folder.absolute() / "compiled"


def tuned_files(workdir: Path) -> Path:
    """Return the folder for copies of settings files that `autotune run` gives to a job."""
    return workdir / _FOLDER / "run"


def exports(folder: Path) -> Path:
    """Return the file with the size and digest of each text that exports have written in a folder."""
    return folder / _FOLDER / "exports"


def diagnosis_mark(folder: Path) -> Path:
    """Return the file by which `autotune diagnose` marks a folder that it has made."""
    return folder / ".made"


def copies_lock(folder: Path) -> Path:
    """Return the file that jobs keep locked while they use the copies in a folder."""
    return folder / ".held"


def daemon_log(workdir: Path) -> Path:
    """Return the log of a daemon that `autotune start` spawned in a folder."""
    return workdir / _FOLDER / "daemon.log"


def dashboard_link(workdir: Path) -> Path:
    """Return the file that leads a browser to the dashboard, for a user who works in a folder."""
    return workdir.absolute() / _FOLDER / "dashboard.html"
