"""What submitting a study does before anything runs: real SQLite, real folders."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from autotune.config import StudySpec, load
from autotune.errors import AutotuneError, BadInput
from autotune.paths import daemon_log
from autotune.service import submission
from storage import (
    AttemptResult,
    AttemptState,
    Database,
    LeaseHolder,
    Purpose,
    Repository,
    StoredStudy,
)
from storage.host import this_host
from storage.owner import OWNER, user_name
from tests.support import stranger
from tests.support.steering import ask, processes_in, write_study
from tests.support.waiting import wait_for


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


@pytest.fixture
def nameless(tmp_path: Path) -> Path:
    """A folder whose name is no UTF-8."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    write_study(folder)
    return folder


@pytest.mark.parametrize("storage", ["sqlite:///autotune.db", "elsewhere"])
def test_a_folder_whose_name_is_no_text_is_refused_in_words(
    nameless: Path, tmp_path: Path, storage: str
) -> None:
    url = f"sqlite:///{tmp_path}/autotune.db" if storage == "elsewhere" else storage
    told = ask("start", "study.yaml", "--detach", "--storage", url, cwd=nameless)
    assert told.returncode == 2
    assert "caf\\udce9" in told.stderr
    assert "is not UTF-8" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("state", ["DONE", "STOPPED", "RUNNING"])
def test_study_of_a_folder_that_is_still_there_is_not_taken_for_another_of_its_name(
    repository: Repository, tmp_path: Path, state: str
) -> None:
    """As a team's clones of one project, whose study.yaml names a database of all."""
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    before = submission.submit(repository, spec(tmp_path), own)
    measured(repository)
    with repository.database.writing() as connection:
        change = text("update autotune_study set state = :state, owner = 'ann'")
        connection.execute(change, {"state": state})
    with pytest.raises(BadInput, match=rf"'tiny' of ann, in the folder {own}, .*another name, or"):
        submission.submit(repository, spec(tmp_path), other)
    assert repository.studies.named("tiny").workdir == str(own)
    with pytest.raises(BadInput, match="'tiny' of ann"):
        submission.submit(repository, spec(tmp_path), other, tmp_path / "study.yaml")
    by_file = submission.submit(repository, spec(tmp_path), other, own / "study.yaml")
    assert (by_file.id, by_file.workdir) == (before.id, str(own))
    link = tmp_path / "link"
    link.symlink_to(own)
    assert submission.submit(repository, spec(tmp_path), link).id == before.id


def of_team(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(OWNER, name)


def mounted_anew(folder: Path) -> None:
    """Have another folder at this path, as in a container of another team."""
    folder.rename(folder.with_name("of the others"))
    folder.mkdir()


@pytest.mark.parametrize("state", ["QUEUED", "FAILED", "STOPPED", "RUNNING"])
def test_study_of_another_owner_is_not_taken_for_one_of_its_name_at_its_path(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    of_team(monkeypatch, "team-a")
    before = submission.submit(repository, spec(tmp_path), work, work / "study.yaml")
    measured(repository)
    with repository.database.writing() as connection:
        connection.execute(text("update autotune_study set state = :state"), {"state": state})
    before = repository.studies.named("tiny")
    of_team(monkeypatch, "team-b")
    mounted_anew(work)
    for wanted in (spec(tmp_path), spec(tmp_path).model_copy(update={"seed": 7})):
        with pytest.raises(BadInput, match="'tiny' of team-a, and its files are not in the"):
            submission.submit(repository, wanted, work, work / "study.yaml")
    after = repository.studies.named("tiny")
    assert (after.id, after.owner, after.queue) == (before.id, "team-a", before.queue)


@pytest.mark.parametrize("left", ["done", "blank", "signed"])
def test_study_whose_folder_was_removed_is_not_taken_for_that_of_another_owner(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    of_team(monkeypatch, "team-a")
    before = submission.submit(repository, spec(tmp_path), tmp_path)
    if left != "blank":
        measured(repository)
    if left == "signed":
        submission.submit(repository, spec(tmp_path).model_copy(update={"name": "two"}), tmp_path)
    state = {"state": "DONE" if left == "done" else "FAILED"}
    with repository.database.writing() as connection:
        connection.execute(text("update autotune_study set state = :state"), state)
    shutil.rmtree(before.paths.folder)
    of_team(monkeypatch, "team-b")
    after = submission.submit(repository, spec(tmp_path), tmp_path)
    assert (after.id, after.state) == (before.id, "DONE" if left == "done" else "QUEUED")


@pytest.mark.parametrize("again", ["team-a", "team-b"])
def test_study_goes_on_in_its_folder_whoever_starts_it(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    of_team(monkeypatch, "team-a")
    before = submission.submit(repository, spec(tmp_path), tmp_path)
    of_team(monkeypatch, again)
    assert submission.submit(repository, spec(tmp_path), tmp_path).id == before.id


def test_owner_is_not_locked_out_of_a_study_whose_files_are_gone(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may keep nothing but what is in the database."""
    work = tmp_path / "work"
    work.mkdir()
    of_team(monkeypatch, "team-a")
    before = submission.submit(repository, spec(tmp_path), work)
    mounted_anew(work)
    assert submission.submit(repository, spec(tmp_path), work).id == before.id
    of_team(monkeypatch, "team-b")
    submission.resume_by_file(repository, spec(tmp_path), tmp_path / "study.yaml")
    assert " team-b " in repository.studies.named("tiny").queue, "by the command that means it"


@pytest.mark.parametrize("name", ["a b", "*", "a/b", "a\nb", "x" * 201])
def test_owner_that_cannot_be_one_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    of_team(monkeypatch, name)
    with pytest.raises(BadInput, match="AUTOTUNE_OWNER must be at most 200"):
        user_name()


def test_study_goes_on_by_the_file_that_it_was_started_by_from_any_folder(
    repository: Repository, tmp_path: Path
) -> None:
    home, own, other = tmp_path / "home", tmp_path / "home/own", tmp_path / "other"
    for folder in (home, own, other):
        folder.mkdir()
    before = submission.submit(repository, spec(own), home, own / "study.yaml")
    measured(repository)
    for folder in (own, tmp_path):
        found = submission.submit(repository, spec(own), folder, own / "study.yaml")
        assert (found.id, found.workdir) == (before.id, str(home))
    file = other / "study.yaml"
    with pytest.raises(BadInput, match=rf"autotune resume {file}"):
        submission.submit(repository, spec(other), other, file)


def test_study_is_resumed_by_its_file_from_any_folder(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    submission.submit(repository, spec(tmp_path), own)
    measured(repository)
    monkeypatch.chdir(tmp_path)
    submission.resume_by_file(repository, spec(tmp_path, trials=5), tmp_path / "study.yaml")
    found = repository.studies.named("tiny")
    assert (found.state, found.workdir, found.spec["budget"]["trials"]) == ("QUEUED", str(own), 5)


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
    with pytest.raises(BadInput, match=rf"export: .*{name} exists and is no best\.yaml"):
        submission.submit(repository, spec(tmp_path, export=name), tmp_path)
    assert repository.studies.all() == []


RESUMES = """
repository = Repository(Database(f"sqlite:///{sys.argv[1]}/autotune.db"))
try:
    submission.resume_study(repository, "tiny")
except BadInput as refused:
    print(refused)
"""


@pytest.mark.long
def test_study_is_not_taken_over_where_no_daemon_of_the_user_could_write() -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        folder.chmod(0o777)
        repository = Repository(Database(f"sqlite:///{folder}/autotune.db"))
        before = submission.submit(repository, spec(folder), folder)
        repository.studies.request_stop("tiny")
        for file in folder.glob("autotune.db*"):
            file.chmod(0o666)
        daemon_log(folder).parent.chmod(0o700)
        told = stranger.told(
            "import sys\n"
            "from autotune.errors import BadInput\n"
            "from autotune.service import submission\n"
            "from storage import Database, Repository\n",
            RESUMES,
            parent,
        )
        assert told.startswith(f"{folder}/.autotune is not yours to write to")
        after = repository.studies.named("tiny")
        assert (after.owner, after.queue, after.state) == (before.owner, before.queue, "STOPPED")


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


def test_log_of_daemons_that_cannot_be_written_is_told_of_in_words(
    keeper: submission.DaemonSupervisor, tmp_path: Path
) -> None:
    daemon_log(tmp_path).mkdir(parents=True)
    with pytest.raises(AutotuneError, match=r"daemon\.log cannot be written: Is a directory"):
        keeper()


def test_the_log_of_daemons_does_not_grow_for_ever(
    keeper: submission.DaemonSupervisor, tmp_path: Path
) -> None:
    log = daemon_log(tmp_path)
    log.parent.mkdir(exist_ok=True)
    log.write_bytes(b"x" * 9 * 2**20)
    keeper()
    assert log.stat().st_size < 2**20
    assert log.with_name("daemon.log.1").stat().st_size == 9 * 2**20


@pytest.fixture
def older_daemon(repository: Repository) -> Iterator[int]:
    """A process of another shell that serves the queue."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO", "TERM": "dumb"}
    with subprocess.Popen(["sleep", "600"], env=variables) as process:
        holder = LeaseHolder(this_host(), process.pid, 600.0)
        assert repository.leases.acquire(submission.this_queue(), holder)
        yield process.pid
        process.kill()


@pytest.mark.parametrize(
    ("env", "names"),
    [({}, "NCCL_DEBUG, OMP_NUM_THREADS"), ({"NCCL_DEBUG": "WARN"}, "OMP_NUM_THREADS")],
)
def test_variables_that_the_daemon_has_otherwise_than_the_shell_are_named(
    repository: Repository, older_daemon: int, tmp_path: Path, env: dict[str, str], names: str
) -> None:
    write_study(tmp_path, env=env)
    url = repository.database.url.render_as_string()
    shell = {"OMP_NUM_THREADS": "16", "TERM": "xterm"}
    words = ("start", "study.yaml", "--detach", "--storage", url)
    told = ask(*words, cwd=tmp_path, env=shell, check=True).stderr
    assert f"process {older_daemon}, and this shell has others: {names}; put them under" in told
    same = {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO"}
    assert "this shell" not in ask(*words, cwd=tmp_path, env=same, check=True).stderr


def settings(folder: Path, **changes: Any) -> StudySpec:
    return load(write_study(folder, **changes))


def measurement(**changes: Any) -> dict[str, Any]:
    return {"max_measure_time": 1.0, "startup_timeout": 60, "step_timeout": 20, **changes}


def measured(repository: Repository, rate: float | None = 100.0) -> StoredStudy:
    """The study has run: its one trial has this rate."""
    claim = repository.claims.take(submission.this_queue(), LeaseHolder("here", 1, 60.0))
    assert claim is not None
    lease, study = claim.lease, claim.study
    attempt = repository.attempts.begin(lease, study.id, 0, {"micro_batch": 2}, Purpose.SEARCH)
    state = AttemptState.ERROR if rate is None else AttemptState.COMPLETE
    repository.attempts.finish(lease, attempt.id, AttemptResult(state, throughput=rate), [])
    repository.claims.fail(lease, study.id, "over")
    repository.leases.release(lease)
    return repository.studies.named(study.name)


def test_changed_deadlines_are_taken_over_and_recorded(
    repository: Repository, tmp_path: Path
) -> None:
    submission.submit(repository, settings(tmp_path, measurement=measurement()), tmp_path)
    study = measured(repository)
    after = settings(tmp_path, measurement=measurement(step_timeout=300))
    found = submission.submit(repository, after, tmp_path)
    assert (found.id, found.spec["measurement"]["step_timeout"]) == (study.id, 300.0)
    assert len(repository.attempts.of(study.id)) == 1
    (message,) = repository.messages.of(study.id)
    assert "measurement.step_timeout 20.0 -> 300.0" in message.text


def test_other_variables_are_refused_once_figures_rest_on_them(
    repository: Repository, tmp_path: Path
) -> None:
    before = settings(tmp_path, measurement=measurement(), env={"A": "1"})
    submission.submit(repository, before, tmp_path)
    measured(repository)
    after = settings(tmp_path, measurement=measurement(), env={"A": "2", "B": "3"})
    with pytest.raises(BadInput, match=r"with other settings \(env.A, env.B\)"):
        submission.submit(repository, after, tmp_path)


def test_trials_of_a_study_that_has_begun_may_be_allowed_to_change_files(
    repository: Repository, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    kind = {"script": "train.py", "args": ["--batch", "2"], "flags": {"micro_batch": "--batch"}}
    before = settings(tmp_path, workload=kind, baseline={}, search_space={"micro_batch": [2, 4]})
    submission.submit(repository, before, tmp_path)
    study = measured(repository)
    workload = before.workload.model_copy(update={"may_write": True})
    after = before.model_copy(update={"workload": workload})
    found = submission.submit(repository, after, tmp_path)
    assert (found.id, found.spec["workload"]["may_write"]) == (study.id, True)


def test_settings_that_change_what_figures_mean_are_named(
    repository: Repository, tmp_path: Path
) -> None:
    submission.submit(repository, settings(tmp_path, measurement=measurement()), tmp_path)
    measured(repository)
    after = settings(
        tmp_path, measurement=measurement(max_measure_time=2.0, step_timeout=300), seed=3
    )
    with pytest.raises(BadInput, match=r"other settings \(measurement\.max_measure_time, seed\)"):
        submission.submit(repository, after, tmp_path)


def test_study_that_has_measured_nothing_begins_anew_with_other_settings(
    repository: Repository, tmp_path: Path
) -> None:
    submission.submit(repository, settings(tmp_path, seed=1), tmp_path)
    measured(repository, rate=None)
    found = submission.submit(repository, settings(tmp_path, seed=2), tmp_path)
    assert (found.state, found.spec["seed"]) == ("QUEUED", 2)
    assert repository.attempts.of(found.id) == []


def test_study_of_another_owner_is_not_replaced_by_one_of_its_name(
    repository: Repository, tmp_path: Path
) -> None:
    submission.submit(repository, settings(tmp_path), tmp_path)
    repository.studies.request_stop("tiny")
    with repository.database.writing() as connection:
        connection.execute(text("update autotune_study set owner = 'alice'"))
    with pytest.raises(BadInput, match="was started with other settings"):
        submission.submit(repository, settings(tmp_path, resources={"workers": 1}), tmp_path)
    assert repository.studies.named("tiny").owner == "alice"
