"""A study that a newer version has stored, in the same tables, stays as it is."""

import json
from collections.abc import Iterator

import pytest
from sqlalchemy import update

import autotune
from autotune.service.daemon import Daemon
from autotune.service.queue_metrics import QueueMetrics
from autotune.service.queues import this_queue
from autotune.service.submission import InProcessRunner
from autotune.views.overview import describe, status_of
from storage import EventKind, LeaseHolder
from storage.models import EventRow, StudyRow
from tests.control.replayed import Replayed
from tests.support.steering import ask
from tests.support.waiting import wait_for

SHORT = {
    "budget": {"trials": 3, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2, "baseline_runs": 1},
}
REASON = f"another version of autotune: {autotune.__version__} does not know budget.novel, novel;"


def change(played: Replayed, **spec: object) -> None:
    with played.repository.database.writing() as connection:
        connection.execute(update(StudyRow).where(StudyRow.name == played.name).values(spec=spec))


@pytest.fixture
def newer(played: Replayed) -> Iterator[Replayed]:
    played.submit(**SHORT)
    before = played.study().spec
    change(played, **{**before, "budget": {**before["budget"], "novel": 1}, "novel": {}})
    yield played


def test_it_is_listed_with_what_is_known_of_it(newer: Replayed) -> None:
    other = Replayed(newer.folder, newer.repository.database, "other")
    other.submit(**SHORT)
    told = ask("list", "--storage", newer.url, cwd=newer.folder, check=True).stdout
    assert REASON in told
    found = ask("list", "--json", "--storage", newer.url, cwd=newer.folder, check=True).stdout
    first, second = json.loads(found)
    assert (first["study"], first["state"], first["trials"]) == ("played", "QUEUED", None)
    assert REASON in first["waiting"]
    assert first.keys() == second.keys()
    assert REASON in describe(status_of(newer.repository, "played"))
    refused = ask("report", "played", "--storage", newer.url, cwd=newer.folder)
    assert refused.returncode == 2
    assert REASON in refused.stderr


def test_metrics_go_on_while_a_daemon_of_its_version_runs_it(newer: Replayed) -> None:
    holder = LeaseHolder("elsewhere", 1, 60.0)
    assert newer.repository.claims.take(this_queue(), holder) is not None
    found = {one.name: one.samples for one in QueueMetrics(newer.repository, lambda: 0.0).collect()}
    [waits] = found["autotune_waiting"]
    assert (waits.labels["study"], waits.value) == ("played", 0.0)


def test_daemon_leaves_it_in_the_queue_until_it_knows_its_settings(newer: Replayed) -> None:
    study = newer.study()
    daemon = Daemon(newer.repository, study.queue, newer.machine.open, only=study.id)
    here = InProcessRunner(newer.repository, study, daemon)
    here()
    wait_for(lambda: newer.study().retry_at is not None, "the daemon has left it")
    assert newer.study().state == "QUEUED"
    assert REASON in str(newer.study().error)
    known = {**study.spec, "budget": {**study.spec["budget"]}}
    del known["novel"], known["budget"]["novel"]
    newer.repository.studies.enqueue("played", known)

    def ended() -> bool:
        here()
        return newer.study().state.ended

    wait_for(ended, "the study ends")
    newer.assert_complete(trials=3)
    assert EventKind.FAILED not in [one.what for one in newer.repository.events.of("played")]


def test_history_shows_an_event_of_an_unknown_kind_as_its_text(newer: Replayed) -> None:
    with newer.repository.database.writing() as connection:
        connection.execute(update(EventRow).values(what="novel"))
    told = ask("history", "played", "--storage", newer.url, cwd=newer.folder, check=True)
    assert " novel " in told.stdout
