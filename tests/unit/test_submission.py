"""What submitting a study does before anything runs: real SQLite, real folders."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.config import StudySpec, load
from autotune.errors import AutotuneError, BadInput
from autotune.paths import daemon_log
from autotune.service import submission
from storage import Database, Repository
from tests.steering import processes_in, write_study
from tests.waiting import wait_for


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(Database(f"sqlite:///{tmp_path}/autotune.db"))


def spec(folder: Path, trials: int = 4, export: str = "best.yaml") -> StudySpec:
    return load(write_study(folder, budget={"trials": trials}, export=export))


def test_a_study_whose_folder_was_moved_goes_on_in_the_new_one(
    repository: Repository, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    submission.submit(repository, spec(tmp_path), old)
    old.rename(new)
    with pytest.raises(BadInput, match=r"/old, is gone; where it is now: autotune start"):
        submission.DaemonSupervisor(repository, repository.studies.named("tiny"), "sqlite://")()
    assert not old.exists()
    assert submission.submit(repository, spec(tmp_path, trials=5), new).workdir == str(new)


def test_one_whose_folder_is_still_there_stays_in_it(
    repository: Repository, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    submission.submit(repository, spec(tmp_path), old)
    assert submission.submit(repository, spec(tmp_path, trials=5), new).workdir == str(old)


def test_an_export_that_cannot_be_written_is_refused_before_anything_runs(
    repository: Repository, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=r"export: .*/no/best\.yaml cannot be written"):
        submission.submit(repository, spec(tmp_path, export="no/best.yaml"), tmp_path)
    assert repository.studies.all() == []


@pytest.mark.parametrize("name", ["train.py", "study.yaml", "."])
def test_an_export_that_would_replace_what_is_not_ours_is_refused(
    repository: Repository, tmp_path: Path, name: str
) -> None:
    (tmp_path / "train.py").write_text("import torch")
    with pytest.raises(BadInput, match=rf"export: .*{name} is there and is no best\.yaml"):
        submission.submit(repository, spec(tmp_path, export=name), tmp_path)
    assert repository.studies.all() == []


@pytest.fixture
def keeper(repository: Repository, tmp_path: Path) -> Iterator[submission.DaemonSupervisor]:
    """Of a study in tmp_path; the daemons that it starts are killed at the end."""
    study = submission.submit(repository, spec(tmp_path), tmp_path)
    url = repository.database.url.render_as_string(hide_password=False)
    yield submission.DaemonSupervisor(repository, study, url)
    for pid in daemons(tmp_path):
        os.kill(pid, signal.SIGKILL)


def daemons(folder: Path) -> list[int]:
    return [pid for pid, command in processes_in(folder).items() if "autotune daemon" in command]


@pytest.mark.fault(12)
def test_one_daemon_waits_where_nothing_can_be_written(
    repository: Repository, keeper: submission.DaemonSupervisor, tmp_path: Path
) -> None:
    """As on a full disk: it gets no lease, however long it lives."""
    with repository.database.writing():
        for _ in range(10):
            keeper()
            [daemon] = wait_for(lambda: daemons(tmp_path), "a daemon is started")
    os.kill(daemon, signal.SIGSTOP)
    wait_for(lambda: Path(f"/proc/{daemon}/stat").read_text().split()[2] == "T", "it is stopped")
    keeper()
    wait_for(lambda: len(daemons(tmp_path)) == 2, "another one takes the place of what is stopped")


def test_daemons_that_keep_dying_are_given_up(
    repository: Repository, keeper: submission.DaemonSupervisor, tmp_path: Path
) -> None:
    died: set[int] = set()

    def given_up() -> bool:
        keeper()
        for pid in daemons(tmp_path):
            os.kill(pid, signal.SIGKILL)
            died.add(pid)
        return False

    with pytest.raises(AutotuneError, match=r"keeps dying; see .*daemon\.log"):
        wait_for(given_up, "the keeper gives up", 60)
    assert len(died) == 4


def test_the_log_of_daemons_does_not_grow_for_ever(
    keeper: submission.DaemonSupervisor, tmp_path: Path
) -> None:
    log = daemon_log(tmp_path)
    log.parent.mkdir()
    log.write_bytes(b"x" * 9 * 2**20)
    keeper()
    assert log.stat().st_size < 2**20
    assert log.with_name("daemon.log.1").stat().st_size == 9 * 2**20
