"""What every database must do for studies, leases and attempts: on SQLite and on PostgreSQL."""

import inspect
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from autotune.errors import BadInput, LeaseLost, StudyNotFound
from search_spaces import defaults
from storage import (
    AttemptResult,
    Database,
    Lease,
    Purpose,
    Repository,
    StoredBlock,
    StoredNoise,
    StoredStudy,
    StudyState,
)
from storage.models import Base

CLUSTER = "host:here"
LONG = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database of each kind for all tests here; each test finds our tables empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('storage')}/autotune.db"
    server = request.getfixturevalue("postgres_server")
    server.psql("create database contract")
    return str(server.get_uri(database="contract"))


@pytest.fixture(scope="module")
def database(url: str) -> Iterator[Database]:
    opened = Database(url)
    yield opened
    opened.engine.dispose()


@pytest.fixture
def repository(database: Database) -> Repository:
    with database.writing() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())
    return Repository(database)


@pytest.fixture
def lease(repository: Repository) -> Lease:
    return taken(repository)


@pytest.fixture
def study(repository: Repository, lease: Lease) -> StoredStudy:
    """A study that the lease's holder has claimed."""
    submit(repository, "first")
    claimed = repository.studies.claim(lease)
    assert claimed is not None
    return claimed


def submit(repository: Repository, name: str, cluster: str = CLUSTER) -> StoredStudy:
    return repository.studies.submit(name, cluster, {"name": name}, "/somewhere")


def taken(repository: Repository, cluster: str = CLUSTER, seconds: float = LONG) -> Lease:
    lease = repository.leases.acquire(cluster, "here", 1, seconds)
    assert lease is not None
    return lease


def taken_over(repository: Repository, cluster: str = CLUSTER) -> Lease:
    """The lease in the hands of another daemon, whoever held it."""
    state = repository.leases.state(cluster)
    assert state is not None
    repository.leases.reclaim(state)
    return taken(repository, cluster)


def block(index: int = 0, **changes: Any) -> StoredBlock:
    values: dict[str, Any] = {
        "index": index,
        "steps": 10,
        "samples": 320,
        "tokens": 0,
        "seconds": 0.25,
        "rank_seconds": [0.25, 0.24],
        "wait_seconds": 0.01,
        "loss": 1.5,
        "peak_bytes": 1024,
        "kept": True,
        "contended": False,
        "observed": {"step_p50": 0.025, "exposed_seconds": [0.001, 0.002]},
    }
    return StoredBlock(**{**values, **changes})


def rows(repository: Repository) -> dict[str, list[Any]]:
    """Everything in our tables."""
    with repository.database.engine.connect() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(select(table))))
            for table in Base.metadata.sorted_tables
        }


def database_time(repository: Repository) -> float:
    with repository.database.engine.connect() as connection:
        return float(connection.scalar(text(f"select {repository.database.now()}")))


def at_once(action: Callable[[int], Any], count: int = 8) -> list[Any]:
    """Results of action(0), action(1), ... that threads begin at the same moment."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> Any:
        barrier.wait(30)
        return action(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


class TestStudies:
    def test_a_submitted_study_waits_in_the_queue_as_it_was_given(
        self, repository: Repository
    ) -> None:
        spec = {"ünïcode": "训练 🚀", "nested": {"list": [1, 2.5, True, None, 2**53]}, "": ""}
        before = database_time(repository)
        given = repository.studies.submit("first", CLUSTER, spec, "/a folder/ü")
        after = database_time(repository)

        found = repository.studies.named("first")
        assert found == given
        assert (found.name, found.cluster, found.workdir) == ("first", CLUSTER, "/a folder/ü")
        assert found.spec == spec
        assert found.state is StudyState.QUEUED
        assert (found.stop_requested, found.error, found.verdict) == (False, None, None)
        assert found.elapsed == 0.0
        assert before <= found.created <= after

    def test_studies_are_listed_oldest_first(self, repository: Repository) -> None:
        assert repository.studies.all() == []
        for name in ("b", "c", "a"):
            submit(repository, name)
        assert [study.name for study in repository.studies.all()] == ["b", "c", "a"]

    def test_an_unknown_study_is_an_error_that_names_those_there_are(
        self, repository: Repository
    ) -> None:
        with pytest.raises(StudyNotFound, match=r"'typo'.*holds none"):
            repository.studies.named("typo")
        submit(repository, "first")
        submit(repository, "second")
        with pytest.raises(StudyNotFound, match=r"'typo'.*first, second"):
            repository.studies.named("typo")

    def test_names_are_told_apart_by_case(self, repository: Repository) -> None:
        submit(repository, "first")
        submit(repository, "First")
        assert repository.studies.named("First").id != repository.studies.named("first").id

    def test_a_duplicate_name_is_refused_and_changes_nothing(self, repository: Repository) -> None:
        submit(repository, "first")
        before = rows(repository)
        with pytest.raises(BadInput, match="first"):
            repository.studies.submit("first", "host:elsewhere", {"other": 1}, "/other")
        assert rows(repository) == before
        submit(repository, "second")  # the connection is still of use

    def test_of_many_who_submit_one_name_at_once_one_succeeds(self, repository: Repository) -> None:
        def action(number: int) -> bool:
            try:
                repository.studies.submit("first", CLUSTER, {"number": number}, "/w")
            except BadInput:
                return False
            return True

        outcomes = at_once(action)
        assert outcomes.count(True) == 1
        assert repository.studies.named("first").spec == {"number": outcomes.index(True)}

    @pytest.mark.parametrize("state", [StudyState.STOPPED, StudyState.FAILED, StudyState.DONE])
    def test_an_ended_study_goes_on(
        self, repository: Repository, lease: Lease, study: StoredStudy, state: StudyState
    ) -> None:
        repository.studies.finish(lease, study.id, state, verdict={"kind": "better"}, error="why")
        repository.studies.request_stop("first")
        repository.studies.enqueue("first")

        found = repository.studies.named("first")
        assert found.state is StudyState.QUEUED
        assert (found.stop_requested, found.error) == (False, None)
        assert found.spec == study.spec
        assert found.verdict == {"kind": "better"}
        claimed = repository.studies.claim(lease)
        assert claimed is not None
        assert claimed.id == study.id

    def test_a_new_spec_takes_the_place_of_the_old_one(self, repository: Repository) -> None:
        submit(repository, "first")
        submit(repository, "second")
        repository.studies.enqueue("first", {"budget": 2})
        assert repository.studies.named("first").spec == {"budget": 2}
        assert repository.studies.named("second").spec == {"name": "second"}

    def test_a_running_study_is_not_queued_again(
        self, repository: Repository, study: StoredStudy
    ) -> None:
        repository.studies.enqueue("first")
        assert repository.studies.named("first").state is StudyState.RUNNING

    def test_a_queued_study_stops_at_once_and_is_not_claimed(
        self, repository: Repository, lease: Lease
    ) -> None:
        submit(repository, "first")
        submit(repository, "second")
        repository.studies.request_stop("first")
        assert repository.studies.named("first").state is StudyState.STOPPED
        claimed = repository.studies.claim(lease)
        assert claimed is not None
        assert claimed.name == "second"

    def test_a_running_study_hears_the_request_to_stop(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        other = submit(repository, "second")
        assert repository.studies.add_elapsed(lease, study.id, 0.0) is False
        repository.studies.request_stop("first")
        assert repository.studies.named("first").state is StudyState.RUNNING
        assert repository.studies.add_elapsed(lease, study.id, 0.0) is True
        assert repository.studies.named("second").stop_requested is False
        assert repository.studies.named("second").state is other.state

    def test_how_a_study_ended_is_kept(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        submit(repository, "second")
        repository.studies.request_stop("first")
        repository.studies.finish(lease, study.id, StudyState.DONE, verdict={"sentence": "2x"})
        found = repository.studies.named("first")
        assert (found.state, found.verdict) == (StudyState.DONE, {"sentence": "2x"})
        assert (found.stop_requested, found.error) == (False, None)

        repository.studies.finish(lease, study.id, StudyState.FAILED, error="no agent")
        found = repository.studies.named("first")
        assert (found.state, found.error) == (StudyState.FAILED, "no agent")
        assert found.verdict == {"sentence": "2x"}
        assert repository.studies.named("second").state is StudyState.QUEUED

    def test_an_unbounded_interval_in_a_verdict_is_kept(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        # A finalist that failed in its second round has one ratio, hence no upper bound.
        verdict = {"finalists": [{"ratio_to_recommended": {"value": 0.9, "high": math.inf}}]}
        repository.studies.finish(lease, study.id, StudyState.DONE, verdict=verdict)
        found = repository.studies.named("first").verdict
        assert found is not None
        ratio = found["finalists"][0]["ratio_to_recommended"]
        assert ratio["value"] == 0.9
        assert ratio["high"] in (math.inf, None)

    def test_running_time_adds_up(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        at_once(lambda _: repository.studies.add_elapsed(lease, study.id, 1.5))
        assert repository.studies.named("first").elapsed == pytest.approx(12.0)


class TestQueue:
    def test_claims_come_in_the_order_of_submission(
        self, repository: Repository, lease: Lease
    ) -> None:
        for name in ("b", "a", "c"):
            submit(repository, name)
        claimed = []
        while study := repository.studies.claim(lease):
            assert study.state is StudyState.RUNNING
            assert repository.studies.named(study.name) == study
            claimed.append(study.name)
            repository.studies.finish(lease, study.id, StudyState.DONE)
        assert claimed == ["b", "a", "c"]

    def test_a_study_that_was_left_running_comes_first(
        self, repository: Repository, lease: Lease
    ) -> None:
        submit(repository, "old")
        repository.studies.request_stop("old")
        submit(repository, "left behind")
        claimed = repository.studies.claim(lease)
        assert claimed is not None
        assert claimed.name == "left behind"
        repository.studies.enqueue("old")  # older, and queued; the other still runs

        successor = taken_over(repository)
        for _ in range(2):  # until it is finished
            claimed = repository.studies.claim(successor)
            assert claimed is not None
            assert claimed.name == "left behind"
        repository.studies.finish(successor, claimed.id, StudyState.DONE)
        claimed = repository.studies.claim(successor)
        assert claimed is not None
        assert claimed.name == "old"

    def test_only_studies_of_the_own_cluster_are_claimed(self, repository: Repository) -> None:
        here, there = taken(repository, "here"), taken(repository, "there")
        submit(repository, "first", "there")
        assert repository.studies.claim(here) is None
        claimed = repository.studies.claim(there)
        assert claimed is not None
        assert repository.studies.claim(here) is None

    @pytest.mark.parametrize("state", [StudyState.STOPPED, StudyState.FAILED, StudyState.DONE])
    def test_ended_studies_are_not_claimed(
        self, repository: Repository, lease: Lease, study: StoredStudy, state: StudyState
    ) -> None:
        repository.studies.finish(lease, study.id, state)
        before = rows(repository)
        assert repository.studies.claim(lease) is None
        assert rows(repository) == before

    def test_a_claim_gives_up_the_attempts_that_were_never_recorded(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        recorded = repository.attempts.begin(lease, study.id, 0, {})
        repository.attempts.finish(lease, recorded.id, AttemptResult("CRASH"), [])
        repository.attempts.begin(lease, study.id, 1, {})
        repository.attempts.begin(lease, study.id, 1, {}, Purpose.CONFIRM, round_=1)
        other = submit(repository, "second")
        repository.attempts.begin(lease, other.id, 1, {})

        successor = taken_over(repository)
        before = database_time(repository)
        claimed = repository.studies.claim(successor)
        assert claimed is not None
        assert claimed.id == study.id
        crashed, *abandoned = repository.attempts.of(study.id)
        assert crashed.result.state == "CRASH"
        for attempt in abandoned:
            assert attempt.result.state == "ABANDONED"
            assert not attempt.running
            assert attempt.ended is not None
            assert before <= attempt.ended <= database_time(repository)
        assert [a.result.state for a in repository.attempts.of(other.id)] == ["RUNNING"]

        again = repository.attempts.begin(successor, study.id, 1, {})
        assert again.attempt == 2

    def test_an_attempt_that_was_given_up_cannot_be_recorded(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        repository.studies.claim(lease)  # the same daemon, after an outage: its lease is still good
        before = rows(repository)
        with pytest.raises(LeaseLost):
            repository.attempts.finish(lease, attempt.id, AttemptResult("COMPLETE"), [block()])
        assert rows(repository) == before


class TestLease:
    def test_only_one_holds_it(self, repository: Repository) -> None:
        taken(repository, "here")
        assert repository.leases.acquire("here", "other", 2, LONG) is None
        assert repository.leases.acquire("here", "here", 1, LONG) is None
        assert taken(repository, "there").cluster == "there"

    def test_a_refused_daemon_leaves_the_holder_as_it_was(self, repository: Repository) -> None:
        taken(repository)
        before = rows(repository)
        repository.leases.acquire(CLUSTER, "other", 2, 1000 * LONG)
        assert rows(repository) == before

    def test_it_tells_who_holds_it(self, repository: Repository) -> None:
        assert repository.leases.state(CLUSTER) is None
        repository.leases.acquire(CLUSTER, "ünïcode host", 4_000_000, 30.0)
        state = repository.leases.state(CLUSTER)
        assert state is not None
        assert (state.cluster, state.host, state.pid) == (CLUSTER, "ünïcode host", 4_000_000)
        assert 25 < state.seconds_left <= 30

    def test_it_runs_out(self, repository: Repository) -> None:
        first = taken(repository, seconds=2)
        assert repository.leases.acquire(CLUSTER, "other", 2, LONG) is None
        time.sleep(2.05)
        state = repository.leases.state(CLUSTER)
        assert state is not None
        assert state.seconds_left < 0
        second = repository.leases.acquire(CLUSTER, "other", 2, LONG)
        assert second is not None
        assert second.epoch > first.epoch
        state = repository.leases.state(CLUSTER)
        assert state is not None
        assert (state.epoch, state.host, state.pid) == (second.epoch, "other", 2)

    def test_it_runs_out_by_the_clock_of_the_database(self, repository: Repository) -> None:
        before = database_time(repository)
        taken(repository, seconds=100.0)
        after = database_time(repository)
        with repository.database.engine.connect() as connection:
            expires = connection.scalar(text("select expires from autotune_lease"))
        assert before + 100 <= expires <= after + 100

    def test_the_clock_of_the_database_moves_within_a_transaction(
        self, repository: Repository
    ) -> None:
        clock = text(f"select {repository.database.now()}")
        with repository.database.writing() as connection:
            before = connection.scalar(clock)
            time.sleep(0.05)
            after = connection.scalar(clock)
        assert 0.03 < after - before < 30
        assert abs(after - time.time()) < 30

    def test_its_epoch_grows_with_every_holder(self, repository: Repository) -> None:
        epochs = []
        for _ in range(4):
            lease = taken(repository)
            epochs.append(lease.epoch)
            repository.leases.renew(lease, LONG)
            repository.leases.release(lease)
        assert epochs == sorted(set(epochs))

    def test_it_can_be_renewed_for_as_long_as_one_likes(self, repository: Repository) -> None:
        lease = taken(repository, seconds=3)
        for _ in range(4):
            time.sleep(0.9)
            repository.leases.renew(lease, 3)
            assert repository.leases.acquire(CLUSTER, "other", 2, LONG) is None

    def test_renewing_does_not_add_to_what_is_left(self, repository: Repository) -> None:
        lease = taken(repository, seconds=1000)
        repository.leases.renew(lease, 5.0)
        state = repository.leases.state(CLUSTER)
        assert state is not None
        assert 0 < state.seconds_left <= 5

    def test_one_that_ran_out_goes_on_if_nobody_took_it(self, repository: Repository) -> None:
        lease = taken(repository, seconds=0.0)
        repository.leases.renew(lease, LONG)
        assert repository.leases.acquire(CLUSTER, "other", 2, LONG) is None

    def test_a_lost_one_cannot_be_renewed(self, repository: Repository) -> None:
        lost = taken(repository, seconds=0.0)
        taken(repository)
        before = rows(repository)
        with pytest.raises(LeaseLost, match=CLUSTER):
            repository.leases.renew(lost, LONG)
        assert rows(repository) == before

    def test_a_released_one_is_free_at_once(self, repository: Repository) -> None:
        first = taken(repository)
        repository.leases.release(first)
        second = taken(repository)
        assert second.epoch > first.epoch

    def test_releasing_a_lost_one_does_not_hurt_its_new_holder(
        self, repository: Repository
    ) -> None:
        lost = taken(repository, seconds=0.0)
        taken(repository)
        before = rows(repository)
        repository.leases.release(lost)
        assert rows(repository) == before

    def test_that_of_a_dead_holder_can_be_reclaimed(self, repository: Repository) -> None:
        dead = taken(repository)
        state = repository.leases.state(CLUSTER)
        assert state is not None
        repository.leases.reclaim(state)
        successor = taken(repository)
        assert successor.epoch > dead.epoch

    def test_reclaiming_what_has_changed_hands_has_no_effect(self, repository: Repository) -> None:
        taken(repository)
        taken(repository, "elsewhere")
        seen = repository.leases.state(CLUSTER)
        assert seen is not None
        taken_over(repository)
        before = rows(repository)
        repository.leases.reclaim(seen)
        assert rows(repository) == before

    def test_of_many_who_want_it_at_once_one_gets_it(self, repository: Repository) -> None:
        for number in range(4):
            cluster = f"host:{number}"
            for _ in range(2):  # the first time there is no row yet
                results = at_once(
                    lambda _, c=cluster: repository.leases.acquire(c, "here", 1, LONG)
                )
                winners = [lease for lease in results if lease]
                assert len(winners) == 1
                repository.leases.release(winners[0])


def some_environment(repository: Repository) -> int:
    """The id of an environment that is recorded already."""
    with repository.database.engine.connect() as connection:
        return int(
            connection.execute(text("select max(id) from autotune_environment")).scalar_one()
        )


FENCED: dict[str, Callable[[Repository, Lease, int, int], Any]] = {
    "renew": lambda r, lease, study, attempt: r.renew(lease, LONG),
    "claim": lambda r, lease, study, attempt: r.claim(lease),
    "begin_attempt": lambda r, lease, study, attempt: r.begin_attempt(lease, study, 5, {}),
    "finish_attempt": lambda r, lease, study, attempt: r.finish_attempt(
        lease, attempt, AttemptResult("COMPLETE", throughput=1.0), [block()]
    ),
    "finish_study": lambda r, lease, study, attempt: r.finish_study(
        lease, study, StudyState.DONE, verdict={"kind": "better"}, error="late"
    ),
    "add_elapsed": lambda r, lease, study, attempt: r.add_elapsed(lease, study, 1.0),
    "say": lambda r, lease, study, attempt: r.say(lease, study, "late"),
    "record_environment": lambda r, lease, study, attempt: r.record_environment(lease, {"a": 1}),
    "record_noise": lambda r, lease, study, attempt: r.record_noise(
        lease,
        study,
        some_environment(r),
        StoredNoise(0.01, 3, None),
        workload="gpt",
        world_size=2,
    ),
    "recommend": lambda r, lease, study, attempt: r.recommend(lease, study, 0, {"late": True}),
}


class TestFence:
    def test_every_write_of_a_daemon_is_tried_here(self) -> None:
        methods = inspect.getmembers(Repository, inspect.isfunction)
        taking_a_lease = {
            name
            for name, method in methods
            if "lease" in inspect.signature(method).parameters and not name.startswith("_")
        }
        assert taking_a_lease == {*FENCED, "release"}

    @pytest.mark.parametrize("write", FENCED)
    def test_a_daemon_that_lost_its_lease_writes_nothing(
        self, repository: Repository, lease: Lease, study: StoredStudy, write: str
    ) -> None:
        repository.environments.record(lease, {})
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        submit(repository, "second")
        taken_over(repository)
        before = rows(repository)
        with pytest.raises(LeaseLost, match=CLUSTER):
            FENCED[write](repository, lease, study.id, attempt.id)
        assert rows(repository) == before

    @pytest.mark.parametrize("write", FENCED)
    def test_the_holder_of_the_lease_writes(
        self, repository: Repository, lease: Lease, study: StoredStudy, write: str
    ) -> None:
        repository.environments.record(lease, {})
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        before = rows(repository)
        FENCED[write](repository, lease, study.id, attempt.id)
        assert rows(repository) != before

    def test_a_lease_that_was_never_given_is_none(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        before = rows(repository)
        for forged in (Lease("nowhere", 1), Lease(CLUSTER, lease.epoch + 1), Lease(CLUSTER, 0)):
            with pytest.raises(LeaseLost):
                repository.messages.say(forged, study.id, "forged")
        assert rows(repository) == before

    def test_nothing_is_written_after_the_lease_has_changed_hands(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        """Whatever a daemon was in the middle of is either there when its successor has the lease,
        or never."""

        def write_until_lost(_: int) -> int:
            for written in range(10_000):
                try:
                    repository.messages.say(lease, study.id, "still here")
                except LeaseLost:
                    return written
            raise AssertionError("never noticed")

        with ThreadPoolExecutor(4) as pool:
            writers = [pool.submit(write_until_lost, number) for number in range(4)]
            while len(repository.messages.of(study.id)) < 10:
                time.sleep(0.01)
            taken_over(repository)
            seen = len(repository.messages.of(study.id))
            written = sum(writer.result(60) for writer in writers)
        assert len(repository.messages.of(study.id)) == seen == written


class TestAttempts:
    def test_a_begun_attempt_is_running(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        knobs = {"micro_batch": 8, "precision": "bf16", "compile": True, "x": 0.1, "none": None}
        before = database_time(repository)
        attempt = repository.attempts.begin(lease, study.id, 3, knobs)
        assert [attempt] == repository.attempts.of(study.id)
        assert (attempt.trial, attempt.purpose, attempt.round, attempt.attempt) == (
            3,
            "search",
            0,
            1,
        )
        # Knobs that are newer than the record were at their defaults.
        assert attempt.knobs == {**defaults(), **knobs}
        assert all(type(attempt.knobs[name]) is type(value) for name, value in knobs.items())
        assert attempt.running
        assert attempt.ended is None
        assert before <= attempt.started <= database_time(repository)
        assert repository.attempts.blocks(attempt.id) == []

    def test_attempts_are_counted_per_study_trial_and_round(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        other = submit(repository, "second")

        def begin(study_id: int, trial: int, round_: int) -> int:
            purpose = Purpose.CONFIRM if round_ else Purpose.SEARCH
            begun = repository.attempts.begin(lease, study_id, trial, {}, purpose, round_=round_)
            return begun.attempt

        assert [begin(study.id, 0, 0) for _ in range(3)] == [1, 2, 3]
        assert begin(study.id, 1, 0) == 1
        assert begin(other.id, 0, 0) == 1
        assert [begin(study.id, 0, 1) for _ in range(2)] == [1, 2]
        assert begin(study.id, 0, 2) == 1
        assert begin(study.id, 0, 0) == 4
        purposes = [(a.purpose, a.round) for a in repository.attempts.of(study.id)]
        assert purposes == [
            *[("search", 0)] * 4,
            *[("confirm", 1)] * 2,
            ("confirm", 2),
            ("search", 0),
        ]

    def test_numbers_given_out_at_once_are_all_different(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        begun = at_once(lambda _: repository.attempts.begin(lease, study.id, 0, {}))
        assert sorted(attempt.attempt for attempt in begun) == list(range(1, 9))

    def test_a_result_is_kept_with_its_blocks(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        environment = repository.environments.record(lease, {"cpu": "x"})
        result = AttemptResult(
            state="COMPLETE",
            cause="ünïcode 🚀\n'quoted'; drop table autotune_attempt; --",
            log_tail="line\r\n\ttab \x1b[31mred\x1b[0m" * 500,
            throughput=1234.5678901234567,
            half_width=1 / 3,
            block_half_width=1 / 4,
            sigma_run=1 / 9,
            contended=True,
            steady=False,
            peak_bytes=2**43 + 1,
            wall_seconds=12.25,
        )
        blocks = [
            block(
                index,
                steps=7,
                samples=2**40 + index,
                tokens=2**53 + 1,
                seconds=0.1 + index,
                rank_seconds=[0.1, 1e-9, 2 / 3],
                wait_seconds=0.0,
                loss=-1e300,
                peak_bytes=2**41 + index,
                kept=index > 1,
            )
            for index in range(4)
        ]
        attempt = repository.attempts.begin(lease, study.id, 0, {"micro_batch": 1})
        other = repository.attempts.begin(lease, study.id, 1, {})
        repository.attempts.finish(lease, attempt.id, result, blocks[::-1], environment)

        found, untouched = repository.attempts.of(study.id)
        assert found.result == result
        assert not found.running
        assert found.knobs == {**defaults(), "micro_batch": 1}
        assert found.ended is not None
        assert found.started <= found.ended <= database_time(repository)
        assert repository.attempts.blocks(attempt.id) == blocks
        assert untouched.running
        assert repository.attempts.blocks(other.id) == []

    def test_noise_is_found_by_later_studies_in_the_same_environment(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        here = repository.environments.record(lease, {"cpu": "x"})
        there = repository.environments.record(lease, {"cpu": "y"})
        later = submit(repository, "second")

        def record(environment: int, sigma: float, world_size: int = 2) -> None:
            noise = StoredNoise(sigma, 3, None)
            repository.noise.record(
                lease, study.id, environment, noise, workload="gpt", world_size=world_size
            )

        def before(study_id: int, environment: int) -> StoredNoise | None:
            return repository.noise.of_others(study_id, environment, workload="gpt", world_size=2)

        assert before(later.id, here) is None
        record(here, 0.01)
        record(here, 0.02)
        record(here, 0.03, world_size=4)
        assert before(later.id, here) == StoredNoise(0.02, 3, None)
        assert before(study.id, here) is None  # its own is no news to it
        assert before(later.id, there) is None
        assert repository.noise.of(study.id) == StoredNoise(0.03, 3, None)

    def test_a_result_without_a_figure_stays_without(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        repository.attempts.finish(lease, attempt.id, AttemptResult("HANG"), [])
        [found] = repository.attempts.of(study.id)
        assert found.result == AttemptResult("HANG")

    def test_a_result_is_recorded_exactly_once(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        repository.attempts.finish(lease, attempt.id, AttemptResult("CRASH"), [block(0)])
        before = rows(repository)
        with pytest.raises(LeaseLost, match=str(attempt.id)):
            repository.attempts.finish(
                lease, attempt.id, AttemptResult("COMPLETE", throughput=9.0), [block(1)]
            )
        assert rows(repository) == before

    def test_an_attempt_that_was_never_begun_cannot_be_recorded(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        before = rows(repository)
        with pytest.raises(LeaseLost):
            repository.attempts.finish(lease, 12345, AttemptResult("COMPLETE"), [])
        assert rows(repository) == before

    def test_of_many_who_record_at_once_one_does(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        attempt = repository.attempts.begin(lease, study.id, 0, {})

        def record(number: int) -> bool:
            try:
                repository.attempts.finish(
                    lease,
                    attempt.id,
                    AttemptResult("COMPLETE", throughput=float(number)),
                    [block(index=number)],
                )
            except LeaseLost:
                return False
            return True

        outcomes = at_once(record)
        assert outcomes.count(True) == 1
        [found] = repository.attempts.of(study.id)
        assert found.result.throughput == outcomes.index(True)
        assert [b.index for b in repository.attempts.blocks(attempt.id)] == [outcomes.index(True)]

    def test_a_result_and_its_blocks_are_kept_together_or_not_at_all(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        before = rows(repository)
        with pytest.raises(IntegrityError):
            repository.attempts.finish(
                lease, attempt.id, AttemptResult("COMPLETE"), [block(0), block(1), block(1)]
            )
        assert rows(repository) == before
        repository.attempts.finish(lease, attempt.id, AttemptResult("COMPLETE"), [block(0)])

    @pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf], ids=str)
    def test_a_block_whose_loss_is_no_number_is_kept(
        self, repository: Repository, lease: Lease, study: StoredStudy, loss: float
    ) -> None:
        """Training that diverges is measured like any other; its blocks come to the records."""
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        result = AttemptResult("ERROR", "the loss is nan in block 0")
        repository.attempts.finish(lease, attempt.id, result, [block(0, loss=loss)])
        assert repository.attempts.of(study.id)[0].result == result
        [found] = repository.attempts.blocks(attempt.id)
        assert repr(found.loss) == repr(loss)

    def test_a_block_whose_time_is_no_number_is_kept(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        strange = block(0, seconds=math.nan, rank_seconds=[math.nan, math.inf, 1.0])
        repository.attempts.finish(lease, attempt.id, AttemptResult("ERROR"), [strange])
        assert repository.attempts.of(study.id)[0].result.state == "ERROR"
        [found] = repository.attempts.blocks(attempt.id)
        assert math.isnan(found.seconds)

    @pytest.mark.parametrize("strange", ["\0", "\udc80", "\x01\x7f", "\ufffe"], ids=ascii)
    def test_whatever_a_rank_printed_is_kept(
        self, repository: Repository, lease: Lease, study: StoredStudy, strange: str
    ) -> None:
        """A rank's last words come from the user's code; they may hold any byte."""
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        result = AttemptResult(
            "CRASH", cause=f"before{strange}after", log_tail=f"first{strange}last"
        )
        repository.attempts.finish(lease, attempt.id, result, [block()])
        [found] = repository.attempts.of(study.id)
        assert found.result.state == "CRASH"
        assert found.result.cause.startswith("before")
        assert found.result.cause.endswith("after")
        assert found.result.log_tail.startswith("first")
        assert found.result.log_tail.endswith("last")


class TestMessages:
    def test_they_come_in_order_and_only_once(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        other = submit(repository, "second")
        assert repository.messages.of(study.id) == []
        before = database_time(repository)
        for message in ("one", "zwei\nZeilen", "三"):
            repository.messages.say(lease, study.id, message)
            repository.messages.say(lease, other.id, "aside")
        found = repository.messages.of(study.id)
        assert [message.text for message in found] == ["one", "zwei\nZeilen", "三"]
        assert [message.number for message in found] == sorted({m.number for m in found})
        assert before <= found[0].at <= found[-1].at <= database_time(repository)
        assert repository.messages.of(study.id, found[0].number) == found[1:]
        assert repository.messages.of(study.id, found[-1].number) == []
        assert len(repository.messages.of(other.id)) == 3

    def test_one_with_a_nul_byte_is_kept(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        repository.messages.say(lease, study.id, "before\0after")
        [found] = repository.messages.of(study.id)
        assert found.text.startswith("before")
        assert found.text.endswith("after")


class TestRecommendations:
    def test_the_newest_counts(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        other = submit(repository, "second")
        assert repository.recommendations.newest_of(study.id) is None
        repository.recommendations.record(lease, study.id, 7, {"knobs": {"micro_batch": 32}})
        repository.recommendations.record(
            lease, study.id, 2, {"knobs": {"micro_batch": 8}, "ü": [1.5, None]}
        )
        repository.recommendations.record(lease, other.id, 9, {"other": True})
        assert repository.recommendations.newest_of(study.id) == {
            "knobs": {"micro_batch": 8},
            "ü": [1.5, None],
        }
        assert repository.recommendations.newest_of(other.id) == {"other": True}


class TestEnvironments:
    def test_one_is_stored_once(self, repository: Repository, lease: Lease) -> None:
        body = {"cpu": "x", "devices": [{"name": "H100", "memory": 2**36}], "nccl": None}
        first = repository.environments.record(lease, body)
        reordered = json.loads(json.dumps(dict(reversed(body.items()))))
        assert repository.environments.record(lease, reordered) == first
        assert repository.environments.record(lease, {**body, "cpu": "y"}) != first
        assert len(rows(repository)["autotune_environment"]) == 2

    def test_it_is_stored_once_by_many_at_once_and_across_clusters(
        self, repository: Repository
    ) -> None:
        leases = [taken(repository, f"host:{number}") for number in range(8)]
        numbers = at_once(lambda n: repository.environments.record(leases[n], {"cpu": "x"}))
        assert len(set(numbers)) == 1
        assert len(rows(repository)["autotune_environment"]) == 1

    def test_an_attempt_cannot_refer_to_one_that_is_not_there(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        before = rows(repository)
        with pytest.raises(IntegrityError):
            repository.attempts.finish(lease, attempt.id, AttemptResult("COMPLETE"), [], 12345)
        assert rows(repository) == before


WRITER = """
import sys
from storage import Database, Lease, Repository
url, cluster, epoch, study, who = sys.argv[1:]
repository = Repository(Database(url))
print("ready", flush=True)
sys.stdin.readline()
for number in range(15):
    repository.messages.say(Lease(cluster, int(epoch)), int(study), f"{who} {number}")
    repository.attempts.begin(Lease(cluster, int(epoch)), int(study), 0, {"who": who})
"""


class TestConcurrency:
    def test_threads_that_write_at_once_lose_nothing(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        def write(who: int) -> None:
            for number in range(12):
                repository.messages.say(lease, study.id, f"{who} {number}")
                repository.attempts.begin(lease, study.id, number % 3, {"who": who})

        at_once(write)
        found = [message.text for message in repository.messages.of(study.id)]
        assert sorted(found) == sorted(f"{w} {n}" for w in range(8) for n in range(12))
        for who in range(8):  # each in the order in which it was said
            said = [line for line in found if line.startswith(f"{who} ")]
            assert said == [f"{who} {number}" for number in range(12)]
        attempts = repository.attempts.of(study.id)
        for trial in range(3):
            numbers = [a.attempt for a in attempts if a.trial == trial]
            assert numbers == list(range(1, 33))

    def test_processes_that_write_at_once_lose_nothing(
        self, repository: Repository, lease: Lease, study: StoredStudy, url: str
    ) -> None:
        writers = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    WRITER,
                    url,
                    CLUSTER,
                    *map(str, (lease.epoch, study.id, who)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for who in range(4)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        for writer in writers:
            writer.communicate(timeout=60)
        assert [writer.returncode for writer in writers] == [0] * 4
        found = [message.text for message in repository.messages.of(study.id)]
        assert sorted(found) == sorted(f"{w} {n}" for w in range(4) for n in range(15))
        numbers = [attempt.attempt for attempt in repository.attempts.of(study.id)]
        assert numbers == list(range(1, 61))

    def test_readers_see_whole_results_while_they_are_written(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        blocks = [block(index) for index in range(5)]
        done = threading.Event()

        def read() -> int:
            looks = 0
            while not done.is_set() or looks == 0:
                for attempt in repository.attempts.of(study.id)[-3:]:
                    if not attempt.running:
                        assert attempt.result.throughput == 2.0
                        assert repository.attempts.blocks(attempt.id) == blocks
                looks += 1
            return looks

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(read) for _ in range(3)]
            try:
                for trial in range(40):
                    attempt = repository.attempts.begin(lease, study.id, trial, {})
                    result = AttemptResult("COMPLETE", throughput=2.0)
                    repository.attempts.finish(lease, attempt.id, result, blocks)
            finally:
                done.set()
            assert all(reader.result(30) for reader in readers)

    def test_a_reader_that_takes_its_time_stops_nobody(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        count = text("select count(*) from autotune_message")
        with repository.database.engine.connect() as reader:
            assert reader.scalar(count) == 0
            started = time.monotonic()
            repository.messages.say(lease, study.id, "meanwhile")
            assert time.monotonic() - started < 5
        with repository.database.engine.connect() as reader:
            assert reader.scalar(count) == 1

    def test_a_writer_waits_for_another_that_takes_its_time(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        with ThreadPoolExecutor(1) as pool:
            with repository.database.writing() as slow:
                slow.execute(text("update autotune_lease set host = 'slow'"))
                waiting = pool.submit(repository.messages.say, lease, study.id, "at last")
                time.sleep(1.0)
                assert not waiting.done()
            waiting.result(30)
        assert [message.text for message in repository.messages.of(study.id)] == ["at last"]

    def test_a_failed_transaction_leaves_nothing_and_blocks_nobody(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        before = rows(repository)
        with pytest.raises(ZeroDivisionError), repository.database.writing() as connection:
            connection.execute(text("delete from autotune_study"))
            _ = 1 / 0
        assert rows(repository) == before
        repository.messages.say(lease, study.id, "goes on")
