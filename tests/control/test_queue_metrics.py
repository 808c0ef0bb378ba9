"""Metrics and health of a daemon, over HTTP on loopback."""

import contextlib
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from autotune.service import queue_metrics
from autotune.service.queue_metrics import SILENT_SECONDS, QueueMetrics
from autotune.service.queues import this_queue
from storage import Database, LeaseHolder, Repository
from storage.database import _NOW
from storage.lease_keys import waiting_key
from storage.models import StudyRow
from tests.control.replayed import Replayed
from tests.support.steering import Command
from tests.support.waiting import wait_for


class Page:
    """Server of a queue's metrics, by a daemon that was silent for `silence` seconds."""

    silence = 0.0

    def __init__(self, played: Replayed) -> None:
        self._port = QueueMetrics(played.repository, lambda: self.silence).serve(0)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=30) as page:
            return str(page.read().decode())


@pytest.fixture
def page(played: Replayed) -> Page:
    return Page(played)


def test_metrics_count_studies_and_tell_what_runs(played: Replayed, page: Page) -> None:
    played.submit()
    found = page.get("/metrics").splitlines()
    assert 'autotune_studies{state="QUEUED"} 1.0' in found
    assert age_without_daemon(found) >= 0
    played.repository.claims.take(this_queue(), LeaseHolder("here", 1, 60.0))
    found = page.get("/metrics").splitlines()
    assert 'autotune_studies{state="RUNNING"} 1.0' in found
    assert 'autotune_waiting{study="played"} 0.0' in found
    assert 'autotune_longest_silence_seconds{study="played"} 60.0' in found
    assert not [line for line in found if line.startswith("autotune_without_daemon_seconds{")]


def age_without_daemon(lines: list[str]) -> float:
    start = 'autotune_without_daemon_seconds{study="played"} '
    [age] = [line.removeprefix(start) for line in lines if line.startswith(start)]
    return float(age)


@pytest.mark.parametrize("place", ["slurm:lab", "host:slurm-lab", "host:played"])
def test_study_that_waits_for_a_batch_job_misses_no_daemon(
    played: Replayed, page: Page, place: str
) -> None:
    played.submit()
    played.repository.studies.move(played.name, f"{place} ann 0a")
    assert 'study="played"' not in page.get("/metrics")


def test_study_for_which_a_process_waits_misses_no_daemon(played: Replayed, page: Page) -> None:
    played.submit()
    study, leases = played.study(), played.repository.leases
    lease = leases.acquire(waiting_key(study.queue, study.id), LeaseHolder("here", 1, 60.0))
    assert 'study="played"' not in page.get("/metrics")
    played.repository.studies.move(played.name, "host:elsewhere ann 0a")
    assert age_without_daemon(page.get("/metrics").splitlines()) >= 0
    assert lease is not None


def test_study_that_has_failed_is_told_for_a_day(
    played: Replayed, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.submit()
    claim = played.repository.claims.take(this_queue(), LeaseHolder("here", 1, 60.0))
    assert claim is not None
    played.repository.claims.fail(claim.lease, claim.study.id, "wrong")
    assert 'autotune_failed{study="played"} 1.0' in page.get("/metrics").splitlines()
    monkeypatch.setattr(queue_metrics, "_RECENT_SECONDS", 0.0)
    assert 'study="played"' not in page.get("/metrics")


def test_page_on_operations_has_a_row_for_each_metric(played: Replayed) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| `(autotune_\w+)` \| (.*?) \|", page, re.MULTILINE)
    found = {one.name: one for one in QueueMetrics(played.repository, lambda: 0.0).collect()}
    assert [name for name, _ in rows] == [*found]
    for name, labels in rows:
        assert {*found[name]._labelnames} == {*re.findall(r"`(\w+)`", labels)}


@pytest.mark.parametrize("off_by", [-36_000, 36_000])
def test_age_goes_by_the_clock_of_the_database(
    played: Replayed, page: Page, monkeypatch: pytest.MonkeyPatch, off_by: int
) -> None:
    monkeypatch.setitem(_NOW, "sqlite", f"{_NOW['sqlite']} + {off_by}")
    played.submit()
    with played.repository.database.writing() as connection:
        connection.execute(update(StudyRow).values(created=StudyRow.created - 600.0))
    found = page.get("/metrics").splitlines()
    assert 600.0 <= age_without_daemon(found) < 4200.0


def test_health_is_that_of_the_daemon(page: Page) -> None:
    assert page.get("/healthz") == "ok"
    page.silence = SILENT_SECONDS + 1
    with pytest.raises(urllib.error.HTTPError) as told:
        page.get("/healthz")
    assert told.value.code == 503
    assert "no sign of life" in told.value.read().decode()


def test_metrics_of_a_storage_that_does_not_answer_say_so(postgres_server: Any) -> None:
    postgres_server.psql("create database away")
    url = str(postgres_server.get_uri(database="away"))
    database = Database(url)
    port = QueueMetrics(Repository(database), lambda: 0.0).serve(0)
    database.engine.dispose()
    database.optuna().engine.dispose()
    postgres_server.psql("drop database away (force)")
    for path in ("/metrics", "/healthz"):
        with pytest.raises(urllib.error.HTTPError) as told:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=180)
        assert told.value.code == 503
        assert 'database "away" does not exist' in told.value.read().decode()


def test_metrics_leave_out_a_study_that_is_deleted_meanwhile(
    played: Replayed, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.submit()
    claimed = played.repository.claims.take(this_queue(), LeaseHolder("here", 1, 60.0))
    assert claimed is not None
    plain, studies = queue_metrics.status_of, played.repository.studies

    def meanwhile(repository: Repository, name: str) -> dict[str, Any]:
        played.repository.claims.stop(claimed.lease, claimed.study.id)
        studies.delete(name)
        return plain(repository, name)

    monkeypatch.setattr(queue_metrics, "status_of", meanwhile)
    found = page.get("/metrics")
    assert 'autotune_studies{state="RUNNING"} 1.0' in found
    assert 'study="played"' not in found


@pytest.mark.long
def test_daemon_serves_them_at_the_port_that_it_tells(played: Replayed) -> None:
    played.submit()
    played.repository.studies.arrange(played.name, held=True)
    options = ["daemon", "--metrics-port", "0", "--storage", played.url]
    daemon = Command(["-m", "autotune", *options], played.folder)
    try:
        told = wait_for(
            lambda: re.search(r"metrics: (http://\S+)/metrics", daemon.output()), "its port is told"
        )
        with urllib.request.urlopen(f"{told[1]}/healthz", timeout=180) as page:
            assert page.read() == b"ok"
        with urllib.request.urlopen(f"{told[1]}/metrics", timeout=180) as page:
            assert b'autotune_studies{state="HELD"} 1.0' in page.read().splitlines()
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0, daemon.output()
    finally:
        with contextlib.suppress(ProcessLookupError):
            daemon.send(signal.SIGKILL)
