"""Commands about the order of studies."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from autotune.service.queues import this_queue
from autotune.views.logs import history_table
from storage import Database, LeaseHolder, StoredEvent
from storage.host import this_host
from storage.owner import user_name
from tests.control.replayed import Replayed
from tests.support.steering import ask, write_study

NAMES = ("first", "second", "third")
BUDGET = {"wall_time": 60, "trials": 3}


@pytest.fixture
def studies(tmp_path: Path, database: Database, played: Replayed) -> dict[str, Replayed]:
    """Three studies that wait, of which nothing has run."""
    found = {}
    for name in NAMES:
        folder = tmp_path / name
        folder.mkdir()
        found[name] = Replayed(folder, database, name)
        found[name].submit(budget=BUDGET)
    return found


def queue(studies: dict[str, Replayed]) -> list[dict[str, Any]]:
    one = studies["first"]
    told = ask("queue", "--json", "--storage", one.url, cwd=one.folder)
    assert told.returncode == 0, told.stderr
    return list(json.loads(told.stdout))


def do(studies: dict[str, Replayed], *arguments: str) -> str:
    one = studies["first"]
    told = ask(*arguments, "--storage", one.url, cwd=one.folder)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_queue_tells_order_owner_reason_and_estimate(studies: dict[str, Replayed]) -> None:
    holder = LeaseHolder(this_host(), 1, 60.0)
    claim = studies["first"].repository.claims.take(this_queue(), holder)
    assert claim is not None
    first, second, third = queue(studies)
    assert [row["study"] for row in (first, second, third)] == [*NAMES]
    assert {row["owner"] for row in (first, second, third)} == {user_name()}
    assert (first["state"], first["reason"], first["starts_in"]) == ("RUNNING", None, 0.0)
    assert (second["starts_in"], third["starts_in"]) == (60.0, 120.0)
    assert second["reason"].startswith("no daemon")
    lease = studies["first"].repository.leases.acquire(
        this_queue(), LeaseHolder(this_host(), 1, 60.0)
    )
    assert lease is not None
    assert queue(studies)[1]["reason"] == f"behind first of {user_name()}"
    studies["first"].repository.leases.release(lease)


def test_study_is_moved_before_another(studies: dict[str, Replayed]) -> None:
    do(studies, "move", "third", "--before", "first")
    assert [row["study"] for row in queue(studies)] == ["third", "first", "second"]
    do(studies, "move", "second", "--priority", "5")
    assert [row["study"] for row in queue(studies)] == ["second", "third", "first"]
    do(studies, "move", "third", "--before", str(studies["second"].folder / "study.yaml"))
    assert [row["study"] for row in queue(studies)] == ["third", "second", "first"]


def test_study_is_not_moved_before_one_of_another_storage(
    studies: dict[str, Replayed], tmp_path: Path
) -> None:
    """Which has a study of that name as well."""
    one, other = studies["first"], tmp_path / "other.yaml"
    here, there = tmp_path / "here.yaml", f"sqlite:///{tmp_path}/other.db"
    here.write_text(f"name: third\nstorage: {one.url}\n")
    other.write_text(f"name: first\nstorage: {there}\n")
    told = ask("move", str(here), "--before", str(other), cwd=tmp_path)
    assert told.returncode == 2 and "other.yaml names another storage" in told.stderr
    assert studies["third"].study().priority == 0
    ask("move", str(here), "--before", "first", cwd=tmp_path, check=True)
    assert studies["third"].study().priority == 1


@pytest.mark.long
@pytest.mark.parametrize("other", ["first", "second", "third"])
def test_study_without_a_place_before_another_is_not_moved(
    studies: dict[str, Replayed], other: str
) -> None:
    repository = studies["first"].repository
    repository.studies.request_stop("second")  # which ends it
    repository.studies.arrange("third", priority=1000)  # the highest one
    one, events = studies["first"], len(repository.events.of("first", 100))
    told = ask("move", "first", "--before", other, "--storage", one.url, cwd=one.folder)
    assert told.returncode == 2 and f"first cannot come before {other}" in told.stderr
    assert (one.study().priority, len(repository.events.of("first", 100))) == (0, events)


@pytest.mark.long
def test_held_study_waits_until_it_is_released(studies: dict[str, Replayed]) -> None:
    do(studies, "hold", "first")
    row = next(row for row in queue(studies) if row["study"] == "first")
    assert (row["held"], row["reason"]) == (True, "held; autotune release first")
    studies["second"].serve()
    assert [one.study().state for one in studies.values()] == ["QUEUED", "DONE", "DONE"]
    do(studies, "release", "first")
    studies["first"].serve()
    assert studies["first"].study().state == "DONE"


def test_dry_run_starts_nothing(studies: dict[str, Replayed]) -> None:
    told = do(studies, "start", str(studies["third"].folder / "study.yaml"), "--dry-run")
    assert "at most 3 trials, 60 s" in told
    assert "Before it: first, second." in told
    assert studies["third"].study().state == "QUEUED"
    assert studies["third"].lease() is None


def test_dry_run_where_there_is_no_storage_creates_none(tmp_path: Path) -> None:
    write_study(tmp_path)
    told = ask("start", "study.yaml", "--dry-run", cwd=tmp_path)
    assert told.returncode == 0 and "Nothing runs or waits before it." in told.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["study.yaml"]


def test_dry_run_in_json_tells_limits_and_what_is_before_it(studies: dict[str, Replayed]) -> None:
    file = str(studies["third"].folder / "study.yaml")
    do(studies, "quota", user_name(), "--studies", "0")
    found = json.loads(do(studies, "start", file, "--dry-run", "--json"))
    assert (found["study"], found["trials"], found["wall_time"]) == ("third", 3, 60.0)
    assert found["before"] == ["first", "second"]
    assert found["waiting"].startswith(f"quota of {user_name()}")


def test_dry_run_of_a_command_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    told = ask("start", "--dry-run", "--", "touch", "ran", cwd=tmp_path)
    assert told.returncode == 2 and "--dry-run" in told.stderr
    assert not [*tmp_path.iterdir()]


def test_dry_run_goes_by_priority(studies: dict[str, Replayed]) -> None:
    do(studies, "move", "second", "--priority", "5")
    file = str(studies["third"].folder / "study.yaml")
    before = {None: "second, first", "5": "second", "1": "second"}
    for priority, names in before.items():
        words = ("--priority", priority) if priority else ()
        assert f"Before it: {names}." in do(studies, "start", file, "--dry-run", *words)
    assert "Before it" not in do(studies, "start", file, "--dry-run", "--priority", "6")
    assert studies["third"].study().priority == 0


def test_dry_run_tells_of_a_quota_that_is_used_up(studies: dict[str, Replayed]) -> None:
    file = str(studies["third"].folder / "study.yaml")
    do(studies, "quota", user_name(), "--studies", "1")
    assert "quota" not in do(studies, "start", file, "--dry-run")
    holder = LeaseHolder(this_host(), 1, 60.0)
    assert studies["first"].repository.claims.take(this_queue(), holder) is not None
    told = do(studies, "start", file, "--dry-run")
    assert f"quota of {user_name()}: 1 of 1 studies" in told
    assert studies["third"].study().state == "QUEUED"


def test_history_tells_account_and_command(studies: dict[str, Replayed]) -> None:
    do(studies, "hold", "first")
    do(studies, "release", "first")
    studies["first"].repository.studies.request_stop("first")
    found = json.loads(do(studies, "history", "first", "--json"))
    assert [(e["what"], e["command"]) for e in found] == [
        ("submitted", ""),
        ("held", "hold"),
        ("released", "release"),
        ("stopped", ""),
    ]
    assert {event["account"] for event in found} == {user_name()}
    assert len(do(studies, "history", "--last", "3").splitlines()) == 4


def test_history_tells_times_as_the_page_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC-9")
        time.tzset()
        event = StoredEvent(1, 0.0, "first", 1, "ann", None, "here", "1", "start", "held", "")
        heading, line = history_table([event]).splitlines()
    time.tzset()
    assert heading.startswith("time, UTC ")
    assert line.startswith("1970-01-01 00:00:00 first")


def test_history_of_an_unknown_study_is_refused(studies: dict[str, Replayed]) -> None:
    one = studies["first"]
    told = ask("history", "frist", "--storage", one.url, cwd=one.folder)
    assert (told.returncode, told.stdout) == (2, "")
    assert "first" in told.stderr
    one.repository.studies.request_stop("first")
    do(studies, "delete", "first")
    events = json.loads(do(studies, "history", "first", "--json"))
    assert events[-1]["what"] == "deleted"


@pytest.mark.parametrize("command", ["stop", "delete"])
def test_study_of_another_owner_is_left_alone_without_force(
    studies: dict[str, Replayed], command: str
) -> None:
    one = studies["first"]
    with one.repository.database.writing() as connection:
        connection.execute(text("update autotune_study set owner = 'alice'"))
    if command == "delete":
        one.repository.studies.request_stop("first")
    before = one.study().state
    told = ask(command, "first", "--storage", one.url, cwd=one.folder)
    assert told.returncode == 2
    assert "alice" in told.stderr
    assert one.study().state == before
    do(studies, command, "first", "--force")
    names = [study.name for study in one.repository.studies.all()]
    assert ("first" in names) == (command == "stop")


def test_history_tells_that_a_study_of_another_owner_was_stopped_and_deleted_by_force(
    studies: dict[str, Replayed],
) -> None:
    one = studies["first"]
    with one.repository.database.writing() as connection:
        connection.execute(text("update autotune_study set owner = 'alice'"))
    do(studies, "stop", "first", "--force")
    do(studies, "delete", "first", "--force")
    events = one.repository.events.of("first")[1:]
    forced = "forced: a study of alice"
    assert [(e.what, e.detail) for e in events] == [("stopped", forced), ("deleted", forced)]


@pytest.mark.parametrize("command", ["start study.yaml --detach", "resume first --detach"])
def test_held_study_is_not_released_by_a_start(studies: dict[str, Replayed], command: str) -> None:
    one = studies["first"]
    do(studies, "hold", "first")
    told = ask(*command.split(), "--storage", one.url, cwd=one.folder)
    assert told.returncode == 2
    assert "autotune release first" in told.stderr
    assert one.study().held


@pytest.mark.parametrize("command", ["move first --priority 3", "release first"])
def test_study_that_has_ended_has_no_place_in_the_queue(
    studies: dict[str, Replayed], command: str
) -> None:
    one = studies["first"]
    one.repository.studies.request_stop("first")
    told = ask(*command.split(), "--storage", one.url, cwd=one.folder)
    assert told.returncode == 2
    assert "first is STOPPED" in told.stderr
    assert one.study().priority == 0


@pytest.mark.parametrize(
    "place",
    [
        *("foo", "local:here", "ray:", "host:", "ray 10.0.0.1:6379"),
        *("host:elsewhere", "slurm:elsewhere"),
        *("ray:10.0.0.1", "ray:10.0.0.1:port", "ray::6379", "ray:10.0.0.1:99999", "ray:a..b:6379"),
        pytest.param(f"ray:10.0.0.1:{'9' * 5000}", id="port beyond any integer"),
    ],
)
def test_daemon_of_a_place_where_no_study_runs_is_refused(
    studies: dict[str, Replayed], place: str
) -> None:
    one = studies["first"]
    told = ask("daemon", "--cluster", place, "--storage", one.url, cwd=one.folder)
    assert told.returncode == 2
    assert "no study runs at" in told.stderr


def test_started_study_says_that_it_waits_for_a_quota(studies: dict[str, Replayed]) -> None:
    one = studies["second"]
    do(studies, "quota", user_name(), "--studies", "1")
    holder = LeaseHolder(this_host(), os.getpid(), 60.0)
    assert one.repository.claims.take(this_queue(), holder) is not None
    assert one.repository.leases.acquire(this_queue(), holder) is not None
    told = do(studies, "start", str(one.folder / "study.yaml"), "--detach")
    assert f"waits: quota of {user_name()}: 1 of 1 studies run" in told


def test_study_that_waits_for_a_quota_says_so(studies: dict[str, Replayed]) -> None:
    do(studies, "quota", user_name(), "--studies", "1")
    holder = LeaseHolder(this_host(), 1, 60.0)
    assert studies["first"].repository.claims.take(this_queue(), holder) is not None
    first, second, third = queue(studies)
    assert (first["order"], second["order"], third["order"]) == (1, 2, 3)
    assert first["reason"] is None
    assert second["reason"].startswith(f"quota of {user_name()}: 1 of 1 studies")
    assert second["starts_in"] is None
    status = json.loads(do(studies, "status", "second", "--json"))
    assert status["waiting"] == second["reason"]
    [set_] = json.loads(do(studies, "quota", "--json"))
    assert (set_["owner"], set_["studies"]) == (user_name(), 1)
    do(studies, "quota", user_name(), "--remove")
    assert json.loads(do(studies, "quota", "--json")) == []


@pytest.mark.parametrize(
    "command",
    [
        *(f"start first/study.yaml --detach --priority {n}" for n in (10**30, -(10**30), 1001)),
        *(f"move first --priority {n}" for n in (10**30, -1001)),
        *(f"quota ann --studies {n}" for n in (10**30, -1)),
        *(f"quota ann --device-hours {n}" for n in ("inf", "nan", "1e300")),
        *(f"quota ann --device-hours 2 --days {n}" for n in ("inf", "nan", "1e300")),
        *("quota ann --days 2", "quota bob --remove", "quota ann --studies 2 --remove"),
        *(f"weight ann {n}" for n in ("0", "-1", "inf", "nan")),
        *(f"daemon --metrics-port {n}" for n in (-1, 65536, 10**30)),
        *(f"daemon --studies {n}" for n in (0, 10**30)),
        f"history --last {10**30}",
        *(f"daemon --idle-exit {n}" for n in ("inf", "nan", -1)),
    ],
)
def test_number_out_of_bounds_is_refused_and_changes_nothing(
    studies: dict[str, Replayed], command: str
) -> None:
    one = studies["first"]
    before = [study.study() for study in studies.values()]
    told = ask(*command.split(), "--storage", one.url, cwd=one.folder.parent)
    assert told.returncode == 2, (told.stdout, told.stderr)
    assert [study.study() for study in studies.values()] == before
    assert one.repository.quotas.all() == []


@pytest.mark.parametrize("owner", ["", " ", "a\nb", "a\x1b[2J", "a" * 256])
def test_quota_of_what_is_no_account_is_refused(studies: dict[str, Replayed], owner: str) -> None:
    one = studies["first"]
    told = ask("quota", owner, "--studies", "1", "--storage", one.url, cwd=one.folder)
    assert told.returncode == 2
    assert one.repository.quotas.all() == []


def test_quota_keeps_limits_that_are_not_given(studies: dict[str, Replayed]) -> None:
    def set_quota(*words: str) -> dict[str, Any]:
        [found] = json.loads(do(studies, "quota", "ann", *words, "--json"))
        return dict(found)

    do(studies, "quota", "bob", "--studies", "9")
    set_quota("--studies", "2")
    set_quota("--device-hours", "100", "--days", "7")
    assert set_quota("--studies", "3") == set_quota()
    do(studies, "weight", "ann", "3")
    assert set_quota() == {
        "owner": "ann",
        "studies": 3,
        "device_hours": 100.0,
        "days": 7.0,
        "weight": 3.0,
    }
    do(studies, "quota", "ann", "--remove")
    assert json.loads(do(studies, "quota", "ann", "--json")) == []


def test_quota_shows_what_applies_to_an_owner(studies: dict[str, Replayed]) -> None:
    do(studies, "quota", "*", "--studies", "7")
    do(studies, "weight", "ann", "3")
    for owner, weight in {"ann": "3", "bob": "1"}.items():
        assert do(studies, "quota", owner).splitlines()[-1].split() == [
            owner,
            "7",
            "-",
            "-",
            weight,
        ]
    assert json.loads(do(studies, "quota", "bob", "--json")) == []
    assert len(do(studies, "quota").splitlines()) == 3


def test_list_shows_owner_and_place_of_the_newest(
    studies: dict[str, Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.cli.studies.MOST_ROWS", 2)
    rows = json.loads(do(studies, "list", "--json"))
    assert [(row["study"], row["order"]) for row in rows] == [("second", 2), ("third", 3)]
    assert {row["owner"] for row in rows} == {user_name()}
    assert len(json.loads(do(studies, "list", "--json", "--all"))) == 3
