"""Every path below `.autotune`, the folder that autotune makes beside a study. The one owner: nobody
else joins such paths."""

import os
from dataclasses import dataclass
from pathlib import Path

from autotune.worker.files import TrialFiles

_FOLDER = ".autotune"
_OWNER = "storage"


@dataclass(frozen=True)
class StudyPaths:
    """Where a study and its trials print to, the same on every node.

    Attributes:
        workdir: the folder that the study was started in.
        study: its name.
        key: what tells it from others of its name, in another storage or in one that is no more.
    """

    workdir: Path
    study: str
    key: str = ""

    @property
    def folder(self) -> Path:
        """Of the study: its agents print there."""
        return self.workdir / _FOLDER / (f"{self.study}-{self.key}" if self.key else self.study)

    def sign(self, storage: str) -> None:
        """Leave in the folder the name of the storage that knows the study.

        Raises:
            OSError: it cannot be written.
        """
        (self.folder / _OWNER).write_bytes(os.fsencode(storage))

    def signed(self, storage: str) -> list[Path]:
        """The folders of all studies there that this storage has signed."""
        owners = sorted((self.workdir / _FOLDER).glob(f"*/{_OWNER}"))
        return [owner.parent for owner in owners if _read(owner) == os.fsencode(storage)]

    @property
    def diagnosis(self) -> Path:
        """Of `autotune diagnose`."""
        return self.folder / "diagnose"

    def attempt(self, name: str) -> TrialFiles:
        """Of an attempt: what its ranks print, and their traces."""
        return TrialFiles(self.folder / name)


def _read(owner: Path) -> bytes | None:
    """None of what is gone by now, or not ours to read."""
    try:
        return owner.read_bytes()
    except OSError:
        return None


def compiled(folder: Path) -> Path:
    """What torch.compile keeps from trial to trial, in the folder that the agents print into."""
    return folder.absolute() / "compiled"


def tuned_files(workdir: Path) -> Path:
    """Copies of settings files that `autotune run` gives to a job that is started in a folder."""
    return workdir / _FOLDER / "run"


def held_copies(folder: Path) -> Path:
    """The file that jobs keep locked which have been given the copies in a folder."""
    return folder / ".held"


def daemon_log(workdir: Path) -> Path:
    """Where a daemon that `autotune start` spawned in a folder writes its messages."""
    return workdir / _FOLDER / "daemon.log"


def dashboard_link(workdir: Path) -> Path:
    """The file that leads a browser to the dashboard of somebody who works in a folder."""
    return workdir.absolute() / _FOLDER / "dashboard.html"
