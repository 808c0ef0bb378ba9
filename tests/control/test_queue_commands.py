"""Commands about the order of studies."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.service.daemon import this_cluster
from autotune.service.queues import user_name
from storage import Database, Worker
from storage.holders import this_host
from tests.control.replayed import Replayed
from tests.support.steering import ask

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
    worker = Worker(this_cluster(), this_host(), 1, 60.0)
    claim = studies["first"].repository.studies.claim(worker)
    assert claim is not None
    first, second, third = queue(studies)
    assert [row["study"] for row in (first, second, third)] == [*NAMES]
    assert {row["owner"] for row in (first, second, third)} == {user_name()}
    assert (first["state"], first["reason"], first["starts_in"]) == ("RUNNING", None, 0.0)
    assert (second["starts_in"], third["starts_in"]) == (60.0, 120.0)
    assert second["reason"].startswith("no daemon")
    lease = studies["first"].repository.leases.acquire(this_cluster(), this_host(), 1, 60.0)
    assert lease is not None
    assert queue(studies)[1]["reason"] == f"behind first of {user_name()}"
    studies["first"].repository.leases.release(lease)


def test_study_is_moved_before_another(studies: dict[str, Replayed]) -> None:
    do(studies, "move", "third", "--before", "first")
    assert [row["study"] for row in queue(studies)] == ["third", "first", "second"]
    do(studies, "move", "second", "--priority", "5")
    assert [row["study"] for row in queue(studies)] == ["second", "third", "first"]


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
