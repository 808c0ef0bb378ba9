"""What a study leaves in its folder, and what becomes of it."""

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.paths import StudyPaths, diagnosis_mark
from autotune.service import daemon as service
from autotune.service.cleaning import clean, delete, signature, undecided
from autotune.service.queues import VARIABLE
from autotune.worker.files import TrialFiles
from autotune.worker.protocol import Outcome
from launchers.replay import Answer, Launch
from storage import Database, Purpose, Repository, StudyState
from tests.control.replayed import PLAIN, Replayed
from tests.support.behaviours import where
from tests.support.steering import ask
from tests.support.waiting import wait_for

SHORT = {
    "budget": {"trials": 4, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2},
}


def large(launch: Launch) -> bool:
    return bool(launch.knobs["micro_batch"] >= 8)


def printing(launch: Launch) -> Answer:
    """As an agent's ranks do."""
    log = TrialFiles(Path(launch.request.log_dir)).log(0)
    log.parent.mkdir(parents=True)
    log.write_text("printed")
    return where(PLAIN, large, outcome=Outcome.ERROR, cause="too large")(launch)


def paths(played: Replayed) -> StudyPaths:
    study = played.study()
    return StudyPaths(played.folder, study.name, study.key)


def with_logs(played: Replayed) -> set[str]:
    found = paths(played)
    return {a.name for a in played.attempts() if found.attempt(a.name).logs()}


def test_the_logs_of_good_trials_are_dropped(played: Replayed) -> None:
    played.on(printing).run(**{**SHORT, "budget": {"trials": 10, "min_improvement": 0}})
    failed = {a.name for a in played.attempts() if a.result.state not in ("COMPLETE", "PRUNED")}
    profiled = {a.name for a in played.attempts(Purpose.PROFILE)}
    assert failed
    assert with_logs(played) == {"0-search-1", *failed, *profiled}
    good = next(a.trial for a in played.attempts("search") if a.trial and a.name not in failed)
    told = ask(
        "logs", played.name, "--trial", str(good), "--storage", played.url, cwd=played.folder
    )
    assert "Its output is not here (`logs: failed`)" in told.stdout


def test_all_are_kept_where_the_study_says_so(played: Replayed) -> None:
    played.on(printing).run(**SHORT, logs="all")
    assert with_logs(played) == {a.name for a in played.attempts()}


@pytest.mark.long
def test_studies_of_one_name_in_two_storages_share_nothing(
    played: Replayed, tmp_path: Path
) -> None:
    """Nor does one with those that were in a database which was deleted."""
    played.on(printing).run(**SHORT, logs="all")
    other = Replayed(tmp_path, Database(f"sqlite:///{tmp_path}/other.db"))
    other.on(printing).run(**SHORT, logs="all")  # which makes each folder, and finds none there
    assert other.study().id == played.study().id
    assert paths(other).folder != paths(played).folder
    assert with_logs(played) == {a.name for a in played.attempts()}


def test_a_folder_that_is_gone_is_waited_for_and_not_made_anew(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is not mounted at present."""
    monkeypatch.setattr(service, "FIRST_SECONDS", 0.3)
    folder = played.folder / "project"
    folder.mkdir()
    study = Replayed(folder, played.repository.database)
    away, launches = folder.with_name("away"), []

    def mount() -> None:
        wait_for(lambda: "is gone; mount its disk" in study.said(), "the study says what it lacks")
        try:
            folder.rmdir()  # what was made anew in its place
        except FileNotFoundError:
            away.rename(folder)

    later = threading.Thread(target=mount)

    def unmounting(launch: Launch) -> Answer:
        launches.append(launch)
        if len(launches) == 2:
            folder.rename(away)
            later.start()
        return PLAIN(launch)

    study.on(unmounting).run(**SHORT)
    later.join()
    study.assert_complete(trials=4)
    assert f"the study's folder {folder} is gone; mount its disk" in study.said()


@pytest.mark.long
def test_a_study_is_deleted_with_all_that_it_left(played: Replayed, tmp_path: Path) -> None:
    played.on(printing).run(**SHORT)
    folder = paths(played).folder
    assert folder.is_dir()
    told = ask("delete", played.name, "--storage", played.url, cwd=tmp_path, check=True)
    assert told.stdout == f"played is deleted, with {folder}.\n"
    assert not folder.exists()
    assert (played.folder / "best.yaml").exists()
    assert played.repository.studies.all() == []
    again = ask("delete", played.name, "--storage", played.url, cwd=tmp_path)
    assert (again.returncode, "no study 'played'" in again.stderr) == (2, True)
    played.on(PLAIN).run(**SHORT)
    played.assert_complete(trials=4)


@pytest.mark.parametrize("is_marked", [True, False])
def test_delete_removes_a_diagnosis_only_if_diagnose_has_made_its_folder(
    played: Replayed, is_marked: bool
) -> None:
    played.submit(**SHORT)
    played.repository.studies.request_stop(played.name)
    paths(played).folder.mkdir(parents=True, exist_ok=True)
    paths(played).sign(signature(played.repository.database))
    folder = paths(played).diagnosis
    (folder / "profile").mkdir(parents=True)
    beside = folder.with_name("notes.txt")
    beside.touch()
    if is_marked:
        diagnosis_mark(folder).touch()
    assert delete(played.repository, played.name)[1:] == [folder] * is_marked
    assert folder.exists() is not is_marked
    assert beside.exists()


def test_delete_leaves_the_diagnosis_of_another_project_at_the_path(played: Replayed) -> None:
    played.submit(**SHORT)
    played.repository.studies.request_stop(played.name)
    shutil.rmtree(paths(played).folder, ignore_errors=True)  # the study was run on another machine
    folder = paths(played).diagnosis
    folder.mkdir(parents=True)
    diagnosis_mark(folder).touch()
    assert delete(played.repository, played.name) == []
    assert diagnosis_mark(folder).exists()


def test_one_that_has_not_ended_is_not_deleted(played: Replayed, tmp_path: Path) -> None:
    played.submit(**SHORT)
    told = ask("delete", played.name, "--storage", played.url, cwd=tmp_path)
    assert told.returncode == 2
    assert "played is QUEUED; stop it before it is deleted: autotune stop played" in told.stderr
    played.serve()
    played.assert_complete(trials=4)


def test_clean_leaves_records_and_what_others_need(played: Replayed, tmp_path: Path) -> None:
    played.on(printing).run(**SHORT)
    running = Replayed(tmp_path, played.repository.database, "running")
    running.submit(**SHORT)
    own = paths(running)
    other = Repository(Database(f"sqlite:///{tmp_path}/other.db"))
    theirs = StudyPaths(tmp_path, "theirs", "12345678")
    lost = StudyPaths(tmp_path, "lost", "12345678")
    for left, storage in ((theirs, other), (lost, played.repository)):
        left.folder.mkdir()
        left.sign(signature(storage.database))
    told = ask("clean", "--storage", played.url, cwd=tmp_path, check=True)
    assert set(told.stdout.split()) == {str(paths(played).folder), str(lost.folder)}
    assert not paths(played).folder.exists()
    assert not lost.folder.exists()
    assert own.folder.exists()
    assert theirs.folder.exists()
    played.assert_complete(trials=4)
    assert clean(played.repository, tmp_path) == []
    assert delete(played.repository, played.name) == []


def test_copy_of_a_storage_leaves_the_folders_of_the_original(
    played: Replayed, tmp_path: Path
) -> None:
    """Its studies have the same numbers, and so the same folders."""
    played.run(**SHORT)
    folder = paths(played).folder
    played.repository.database.back_up(tmp_path / "copy.db")
    copy = Repository(Database(f"sqlite:///{tmp_path}/copy.db"))
    assert clean(copy, played.folder) == []
    assert delete(copy, played.name) == []
    assert folder.is_dir()
    paths(played).sign(str(played.repository.database))
    assert delete(played.repository, played.name) == [folder], "as earlier versions signed it"


def test_clean_leaves_a_study_that_can_go_on(played: Replayed) -> None:
    played.submit(**SHORT)
    folder = paths(played).folder
    played.repository.studies.request_stop(played.name)
    assert played.study().state == StudyState.STOPPED
    assert clean(played.repository, played.folder) == []
    assert folder.is_dir()
    assert delete(played.repository, played.name) == [folder]


def test_clean_knows_a_study_by_whatever_path_and_passes_over_what_it_cannot_read(
    played: Replayed, tmp_path: Path
) -> None:
    """Its folder is mounted at two places, or has moved; another user's is not to be looked into."""
    played.submit(**SHORT)
    elsewhere = StudyPaths(tmp_path / "mounted", played.name, paths(played).key)
    elsewhere.folder.mkdir(parents=True)
    elsewhere.sign(signature(played.repository.database))
    (tmp_path / "mounted" / ".autotune" / "theirs" / "storage").mkdir(parents=True)
    assert clean(played.repository, tmp_path / "mounted") == []
    assert elsewhere.folder.is_dir()


def test_clean_leaves_a_study_that_begins_meanwhile(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, begun = StudyPaths.signed, []

    def meanwhile(there: StudyPaths, storage: str) -> list[Path]:
        if not begun:
            begun.append(played.submit(**SHORT))
        return plain(there, storage)

    monkeypatch.setattr(StudyPaths, "signed", meanwhile)
    assert clean(played.repository, played.folder) == []
    assert paths(played).folder.is_dir()


def test_clean_leaves_a_folder_of_a_storage_at_that_path_on_another_machine(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = StudyPaths(played.folder, "theirs", "12345678")
    theirs.folder.mkdir(parents=True)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv(VARIABLE, "elsewhere")
        theirs.sign(signature(played.repository.database))
    assert clean(played.repository, played.folder) == []
    assert undecided(played.repository, played.folder) == []
    assert theirs.folder.is_dir()


def test_folder_that_was_signed_under_another_name_of_the_machine_is_left_and_named(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`docker run --rm` gives each container another name."""
    played.run(**SHORT)
    folder, signed = paths(played).folder, signature(played.repository.database)
    monkeypatch.setenv(VARIABLE, "elsewhere")
    for words in (("clean",), ("delete", played.name, "--force")):
        told = ask(*words, "--storage", played.url, cwd=played.folder, check=True)
        assert f"{folder} (signed by {signed})" in told.stderr
        assert folder.is_dir()
    assert played.repository.studies.all() == []


def test_clean_leaves_a_folder_of_another_database_that_has_the_same_url(
    postgres_server: Any, postgres_url: str, tmp_path: Path
) -> None:
    """As `localhost` is another server on each machine."""
    earlier, theirs = Database(postgres_url), StudyPaths(tmp_path, "theirs", "12345678")
    theirs.folder.mkdir(parents=True)
    theirs.sign(signature(earlier))
    earlier.forget_connections()
    name = str(earlier.url.database)
    postgres_server.psql(f"alter database {name} rename to {name}_elsewhere")
    postgres_server.psql(f"create database {name}")
    repository = Repository(Database(postgres_url))
    assert clean(repository, tmp_path) == []
    assert theirs.folder.is_dir()
    assert undecided(repository, tmp_path) == []
    theirs.sign(str(repository.database))
    assert undecided(repository, tmp_path) == [theirs.folder], "of an earlier version"
    theirs.sign(signature(repository.database))
    assert clean(repository, tmp_path) == [theirs.folder]


@pytest.mark.long
def test_clean_removes_what_it_knows_on_a_server_that_does_not_tell_which_one_it_is(
    postgres_url: str, tmp_path: Path
) -> None:
    """As some services that speak PostgreSQL's protocol do not."""
    played = Replayed(tmp_path, Database(postgres_url))
    theirs = StudyPaths(tmp_path, "theirs", "12345678")
    theirs.folder.mkdir(parents=True)
    theirs.sign(signature(played.repository.database))
    with played.repository.database.writing() as connection:
        connection.exec_driver_sql("alter function pg_control_system() rename to none_such")
    played.run(**SHORT)
    told = ask("clean", "--storage", postgres_url, cwd=tmp_path, check=True)
    assert told.stdout.split() == [str(paths(played).folder)]
    assert "Folders of studies that were deleted stay" in told.stderr
    assert theirs.folder.is_dir()


def test_clean_names_and_leaves_what_was_signed_without_a_machine(played: Replayed) -> None:
    played.run(**SHORT)
    theirs = StudyPaths(played.folder, "theirs", "12345678")
    theirs.folder.mkdir(parents=True)
    for one in (theirs, paths(played)):
        one.sign(str(played.repository.database))
    told = ask("clean", "--storage", played.url, cwd=played.folder, check=True)
    assert told.stdout.split() == [str(paths(played).folder)], "its study is known"
    assert told.stderr.rstrip().endswith(f"so they stay: {theirs.folder}")
    assert theirs.folder.is_dir()
    for number in range(9):
        another = StudyPaths(played.folder, f"z{number}", "12345678")
        another.folder.mkdir(parents=True)
        another.sign(str(played.repository.database))
    told = ask("clean", "--storage", played.url, cwd=played.folder, check=True)
    assert told.stderr.rstrip().endswith("z3-12345678 and 5 more")


def test_clean_leaves_a_study_that_is_resumed_meanwhile(
    played: Replayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Replayed(tmp_path, played.repository.database, "second")
    for one in (played, second):
        one.run(**SHORT)
    remove = shutil.rmtree

    def meanwhile(folder: Path, **options: Any) -> None:
        second.repository.studies.enqueue("second")
        remove(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", meanwhile)
    assert clean(played.repository, played.folder) == [paths(played).folder]
    assert paths(second).folder.is_dir()


def test_start_of_a_study_that_is_done_says_that_it_is_not_run_again(played: Replayed) -> None:
    played.run(**SHORT)
    before = played.repository.attempts.of(played.study().id)
    for words in (("start", "study.yaml"), ("resume", played.name, "--storage", played.url)):
        told = ask(*words, cwd=played.folder)
        assert "played is done, so it is not run again." in told.stderr
        assert "give study.yaml another name" in told.stderr
    assert len(played.repository.attempts.of(played.study().id)) == len(before)


def test_a_log_that_cannot_be_read_is_no_failure(played: Replayed) -> None:
    played.on(printing).run(**SHORT)
    log = paths(played).attempt("0-search-1").log(0)
    log.unlink()
    log.mkdir()
    told = ask("logs", played.name, "--trial", "0", "--storage", played.url, cwd=played.folder)
    assert (told.returncode, told.stderr) == (0, "")
    assert "It cannot be read: Is a directory." in told.stdout


def test_clean_of_old_folders_leaves_a_younger_one(played: Replayed) -> None:
    played.run(**SHORT)
    command = ("clean", "--older-than", "1d", "--storage", played.url)
    ask(*command, cwd=played.folder, check=True)
    folder = paths(played).folder
    assert folder.is_dir()
    for one in (*folder.iterdir(), folder):
        os.utime(one, (0, 0))
    told = ask(*command, cwd=played.folder, check=True)
    assert told.stdout.split() == [str(folder)]
    assert not folder.exists()


def test_clean_removes_a_folder_that_was_written_before_the_clock_was_set_back(
    played: Replayed,
) -> None:
    played.run(**SHORT)
    folder, ahead = paths(played).folder, time.time() + 3600.0
    os.utime(folder, (ahead, ahead))
    assert clean(played.repository, played.folder) == [folder]
