"""Studies: submitted, stopped, resumed, finished; the order in which daemons claim them."""

import dataclasses
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest
from optuna.exceptions import DuplicatedStudyError
from optuna.study import StudyDirection
from sqlalchemy import event, text, update

from autotune.errors import BadInput, StaleLease, StudyNotFound
from search_spaces import Facts
from storage import (
    AttemptResult,
    AttemptState,
    Fault,
    Lease,
    LeaseHolder,
    Purpose,
    Quota,
    Repository,
    Retry,
    StoredStudy,
    StudyState,
    TrialLedger,
)
from storage.lease_keys import key_of
from storage.models import LeaseRow, StudyRow
from tests.contract.storage.making import (
    CLUSTER,
    LONG,
    at_once,
    block,
    claim,
    database_time,
    end,
    rows,
    submit,
    taken,
    taken_over,
)
from tests.support.records import end_lease
from tests.support.waiting import wait_for


def wait_until_somebody_waits(repository: Repository) -> None:
    """Until a transaction waits for the row that another has locked; SQLite does not tell."""
    if repository.database.engine.dialect.name == "sqlite":
        time.sleep(0.5)
        return
    waiting = text("select count(*) from pg_stat_activity where wait_event_type = 'Lock'")
    with repository.database.engine.connect() as watching:
        watching = watching.execution_options(isolation_level="AUTOCOMMIT")
        wait_for(lambda: watching.scalar(waiting), "somebody waits for a lock", 30)


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
        assert (found.name, found.queue, found.workdir) == ("first", CLUSTER, "/a folder/ü")
        assert found.spec == spec
        assert found.state is StudyState.QUEUED
        assert (found.stop_requested, found.error, found.verdict) == (False, None, None)
        assert found.elapsed == 0.0
        assert before <= found.created <= after

    def test_study_of_optuna_keeps_its_name_and_its_trials(self, repository: Repository) -> None:
        theirs = optuna.create_study(storage=repository.database.optuna(), study_name="a")
        theirs.enqueue_trial({"x": 1.0})
        with pytest.raises(BadInput, match="a study named 'a' that another program has made"):
            submit(repository, "a")
        assert repository.studies.all() == []
        assert [trial.state.name for trial in theirs.trials] == ["WAITING"]
        submit(repository, "b")

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
        end(repository, lease, study, state, {"kind": "better"})
        repository.studies.request_stop("first")
        repository.studies.enqueue("first")

        found = repository.studies.named("first")
        assert found.state is StudyState.QUEUED
        assert (found.stop_requested, found.error) == (False, None)
        assert found.spec == study.spec
        assert found.verdict == {"kind": "better"}
        claimed = claim(repository, lease)
        assert claimed is not None
        assert claimed.id == study.id

    def test_no_other_program_makes_trials_of_its_name_before_it_is_begun(
        self, repository: Repository
    ) -> None:
        submit(repository, "first")
        optunas = repository.database.optuna()
        with pytest.raises(DuplicatedStudyError):
            optuna.create_study(storage=optunas, study_name="first")
        opened = optuna.load_study(storage=optunas, study_name="first")
        assert opened.directions == [StudyDirection.MAXIMIZE]
        assert TrialLedger(repository.database, "first").trials() == []

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
        claimed = claim(repository, lease)
        assert claimed is not None
        assert claimed.name == "second"

    def test_a_running_study_hears_the_request_to_stop(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        other = submit(repository, "second")
        assert repository.claims.add_elapsed(lease, study.id, 0.0) is False
        repository.studies.request_stop("first")
        assert repository.studies.named("first").state is StudyState.RUNNING
        assert repository.claims.add_elapsed(lease, study.id, 0.0) is True
        assert repository.studies.named("second").stop_requested is False
        assert repository.studies.named("second").state is other.state

    def test_a_stop_that_nobody_has_heard_yet_is_carried_out_before_the_study_goes_on(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        repository.studies.request_stop("first")
        repository.studies.enqueue("first", {"budget": 2})
        assert repository.claims.add_elapsed(lease, study.id, 0.0) is True
        assert repository.claims.stop(lease, study.id) is StudyState.QUEUED
        claimed = claim(repository, lease)
        assert claimed is not None
        assert (claimed.id, claimed.spec) == (study.id, {"budget": 2})
        assert repository.claims.add_elapsed(lease, study.id, 0.0) is False
        repository.studies.request_stop("first")
        assert (
            repository.claims.stop(lease, study.id) is StudyState.STOPPED
        )  # asked once, done once

    def test_what_was_asked_last_counts(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        repository.studies.request_stop("first")
        repository.studies.enqueue("first")
        repository.studies.request_stop("first")
        assert repository.claims.add_elapsed(lease, study.id, 0.0) is True
        assert repository.claims.stop(lease, study.id) is StudyState.STOPPED
        assert claim(repository, lease) is None

    def test_a_resume_that_follows_a_stop_outlives_the_daemon(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        running = repository.attempts.begin(lease, study.id, 0, {})
        repository.studies.request_stop("first")
        repository.studies.enqueue("first")
        successor = taken_over(repository)
        claimed = claim(repository, successor)
        assert claimed is not None
        assert claimed.stop_requested is False
        assert [a.result.state for a in repository.attempts.of(study.id)] == ["ABANDONED"]
        assert running.running

    def test_a_request_to_stop_holds_nothing_that_a_heartbeat_needs(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        """Both lock the lease and then the study: in different orders they could lock each other out."""
        renew = update(LeaseRow).values(expires=LeaseRow.expires + 1)
        count = update(StudyRow).values(elapsed=StudyRow.elapsed + 1)
        with ThreadPoolExecutor(1) as pool:
            with repository.database.writing() as heartbeat:
                heartbeat.execute(renew)
                stopping = pool.submit(repository.studies.request_stop, "first")
                wait_until_somebody_waits(repository)
                heartbeat.execute(count)
            stopping.result(30)
        found = repository.studies.named("first")
        assert (found.stop_requested, found.elapsed) == (True, 1.0)
        assert lease.key == key_of(study.id)

    def test_facts_about_its_machine_are_kept(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        other = submit(repository, "second")
        assert study.facts is None
        facts = dataclasses.asdict(Facts("cuda", 16, (9, 0), 512, "nccl", 2))
        repository.claims.record_facts(lease, study.id, facts)
        assert repository.studies.named("first").facts == json.loads(json.dumps(facts))
        assert repository.studies.named("second") == other

    def test_why_the_search_ended_is_said_once_and_kept_until_there_is_more_budget(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        assert study.search_ended is None
        repository.claims.end_search(lease, study, "enough", ["The search ends: enough."])
        assert [m.text for m in repository.messages.of(study.id)] == ["The search ends: enough."]
        repository.studies.enqueue("first", study.spec)
        assert repository.studies.named("first").search_ended == "enough"
        repository.studies.enqueue("first", {**study.spec, "logs": "all"})
        assert repository.studies.named("first").search_ended == "enough"
        repository.studies.enqueue("first", {**study.spec, "budget": 9})
        assert repository.studies.named("first").search_ended is None
        # The daemon has not heard of the new budget yet: what it ends is the old search.
        repository.claims.end_search(lease, study, "enough", [])
        assert repository.studies.named("first").search_ended is None

    def test_more_budget_at_the_last_moment_is_still_spent(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        repository.studies.enqueue("first", {**study.spec, "budget": 9})
        assert repository.claims.conclude(lease, study, {"kind": "better"}) == StudyState.QUEUED
        again = claim(repository, lease)
        assert again is not None and again.spec["budget"] == 9
        assert repository.claims.conclude(lease, again, {"kind": "better"}) == StudyState.DONE
        assert repository.studies.named("first").verdict == {"kind": "better"}

    def test_how_a_study_ended_is_kept(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        submit(repository, "second")
        repository.studies.request_stop("first")
        end(repository, lease, study, verdict={"sentence": "2x"})
        found = repository.studies.named("first")
        assert (found.state, found.verdict) == (StudyState.DONE, {"sentence": "2x"})
        assert (found.stop_requested, found.error) == (False, None)

        repository.claims.fail(lease, study.id, "no agent")
        found = repository.studies.named("first")
        assert (found.state, found.error) == (StudyState.FAILED, "no agent")
        assert found.verdict == {"sentence": "2x"}
        assert repository.studies.named("second").state is StudyState.QUEUED

    def test_an_unbounded_interval_in_a_verdict_is_kept(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        # A finalist that failed in its second round has one ratio, hence no upper bound.
        verdict = {"finalists": [{"ratio_to_recommended": {"value": 0.9, "high": math.inf}}]}
        end(repository, lease, study, verdict=verdict)
        found = repository.studies.named("first").verdict
        assert found is not None
        ratio = found["finalists"][0]["ratio_to_recommended"]
        assert ratio["value"] == 0.9
        assert ratio["high"] in (math.inf, None)

    def test_running_time_adds_up(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        at_once(lambda _: repository.claims.add_elapsed(lease, study.id, 1.5))
        assert repository.studies.named("first").elapsed == pytest.approx(12.0)


class TestQueue:
    def test_claims_come_in_the_order_of_submission(
        self, repository: Repository, lease: Lease
    ) -> None:
        for name in ("b", "a", "c"):
            submit(repository, name)
        claimed = []
        while study := claim(repository, lease):
            assert study.state is StudyState.RUNNING
            assert repository.studies.named(study.name) == study
            claimed.append(study.name)
            end(repository, lease, study)
        assert claimed == ["b", "a", "c"]

    def test_a_study_that_was_left_running_comes_first(
        self, repository: Repository, lease: Lease
    ) -> None:
        submit(repository, "old")
        repository.studies.request_stop("old")
        submit(repository, "left behind")
        claimed = claim(repository, lease)
        assert claimed is not None
        assert claimed.name == "left behind"
        repository.studies.enqueue("old")  # older, and queued; the other still runs

        successor = taken_over(repository)
        for _ in range(2):  # until it is finished
            claimed = claim(repository, successor)
            assert claimed is not None
            assert claimed.name == "left behind"
        end(repository, successor, claimed)
        claimed = claim(repository, successor)
        assert claimed is not None
        assert claimed.name == "old"

    def test_only_studies_of_the_own_cluster_are_claimed(self, repository: Repository) -> None:
        here, there = taken(repository, "here"), taken(repository, "there")
        submit(repository, "first", "there")
        assert claim(repository, here) is None
        claimed = claim(repository, there)
        assert claimed is not None
        assert claim(repository, here) is None

    def test_daemons_of_one_queue_have_a_study_each(self, repository: Repository) -> None:
        for number in range(6):
            submit(repository, str(number))

        def taken_by(number: int) -> str | None:
            found = repository.claims.take(CLUSTER, LeaseHolder("here", number, LONG))
            return found.study.name if found else None

        found = at_once(taken_by)
        assert sorted(filter(None, found)) == ["0", "1", "2", "3", "4", "5"]
        assert found.count(None) == 2

    def test_lease_of_one_study_is_no_right_to_another(self, repository: Repository) -> None:
        submit(repository, "first")
        submit(repository, "second")
        first, second = [
            repository.claims.take(CLUSTER, LeaseHolder("here", pid, LONG)) for pid in (1, 2)
        ]
        assert first is not None and second is not None
        repository.studies.request_stop("first")
        assert repository.claims.add_elapsed(second.lease, second.study.id, 1.0) is False
        state = repository.leases.state(first.lease.key)
        assert state is not None
        end_lease(repository, state)
        assert claim(repository, taken(repository)) is not None
        with pytest.raises(StaleLease):
            repository.claims.add_elapsed(first.lease, first.study.id, 1.0)
        repository.claims.add_elapsed(second.lease, second.study.id, 1.0)

    def test_higher_priority_comes_first_then_the_owner_who_has_used_less_then_age(
        self, repository: Repository
    ) -> None:
        for name, owner in (("a", "ann"), ("b", "bob"), ("c", "bob"), ("d", "ann"), ("e", "ann")):
            repository.studies.submit(name, CLUSTER, {}, "/w", owner=owner)
        repository.studies.arrange("d", priority=1)
        used = repository.studies.submit("used", "host:elsewhere", {}, "/w", owner="ann")
        run = repository.claims.take("host:elsewhere", LeaseHolder("there", 1, LONG))
        assert run is not None
        attempt = repository.attempts.begin(run.lease, used.id, 0, {})
        done = AttemptResult("COMPLETE", throughput=1.0, wall_seconds=60.0)
        repository.attempts.finish(run.lease, attempt.id, done, [])
        repository.studies.arrange("e", held=True)

        names = []
        while found := repository.claims.take(CLUSTER, LeaseHolder("here", 1, LONG)):
            names.append(found.study.name)
        assert names == ["d", "b", "c", "a"]
        studies = repository.studies
        waiting = [study.name for study in studies.of_ids(studies.order())]
        assert waiting.index("e") == len(waiting) - 1
        repository.studies.arrange("e", held=False)
        assert repository.claims.take(CLUSTER, LeaseHolder("here", 1, LONG)) is not None

    def test_only_what_waits_can_be_held(self, repository: Repository, study: StoredStudy) -> None:
        with pytest.raises(BadInput, match="is RUNNING, and only a study that waits"):
            repository.studies.arrange(study.name, held=True)

    @pytest.mark.parametrize("state", [StudyState.STOPPED, StudyState.FAILED, StudyState.DONE])
    def test_ended_studies_are_not_claimed(
        self, repository: Repository, lease: Lease, study: StoredStudy, state: StudyState
    ) -> None:
        end(repository, lease, study, state)
        before = rows(repository)
        assert claim(repository, lease) is None
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
        claimed = claim(repository, successor)
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
        claim(repository, lease)  # the same daemon, after an outage: its lease is still good
        before = rows(repository)
        with pytest.raises(StaleLease):
            repository.attempts.finish(lease, attempt.id, AttemptResult("COMPLETE"), [block()])
        assert rows(repository) == before


class TestRetry:
    """A study that could not run waits for its next try."""

    LATER = Retry("no cluster", LONG, 3)

    def test_it_is_not_claimed_before_then_and_others_are(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        running = repository.attempts.begin(lease, study.id, 0, {})
        submit(repository, "second")
        before = database_time(repository)
        assert repository.claims.put_back(lease, study.id, self.LATER) is StudyState.QUEUED
        found = repository.studies.named("first")
        assert (found.error, found.retries) == ("no cluster", 3)
        assert found.retry_at is not None
        assert before + LONG <= found.retry_at < before + 2 * LONG
        assert repository.studies.any_open(CLUSTER)
        [given_up] = repository.attempts.of(study.id)
        assert (given_up.id, given_up.result.state) == (running.id, AttemptState.ABANDONED)
        claimed = claim(repository, lease)
        assert claimed is not None
        assert claimed.name == "second"

    def test_then_it_is_and_remembers_how_often_it_failed(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        repository.claims.put_back(lease, study.id, Retry("no cluster", 0.0, 3))
        claimed = claim(repository, lease)
        assert claimed is not None
        assert (claimed.error, claimed.retry_at, claimed.retries) == (None, None, 3)
        end(repository, lease, study)
        assert repository.studies.named("first").retries == 0

    def test_whoever_asks_has_it_tried_at_once(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        repository.claims.put_back(lease, study.id, self.LATER)
        repository.studies.enqueue("first")
        claimed = claim(repository, lease)
        assert claimed is not None
        assert claimed.retries == 0

    def test_it_can_be_stopped(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        repository.claims.put_back(lease, study.id, self.LATER)
        repository.studies.request_stop("first")
        found = repository.studies.named("first")
        assert (found.state, found.error, found.retry_at) == (StudyState.STOPPED, None, None)

    def test_what_was_asked_meanwhile_counts(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        repository.studies.request_stop("first")
        assert repository.claims.put_back(lease, study.id, self.LATER) is StudyState.STOPPED
        repository.studies.enqueue("first")
        assert claim(repository, lease) is not None
        repository.studies.request_stop("first")
        repository.studies.enqueue("first")
        assert repository.claims.put_back(lease, study.id, self.LATER) is StudyState.QUEUED
        assert repository.studies.named("first").retry_at is None


class TestWhyAnAttemptIsGivenUp:
    """Only what died with its daemon may be to blame for that."""

    @staticmethod
    def fault(repository: Repository, study: StoredStudy) -> Fault:
        [given_up] = repository.attempts.of(study.id)
        assert given_up.result.state is AttemptState.ABANDONED
        return given_up.result.fault

    def test_its_daemon_died(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        repository.attempts.begin(lease, study.id, 0, {})
        claim(repository, taken_over(repository))
        assert self.fault(repository, study) is Fault.DAEMON

    def test_its_daemon_goes_on_after_an_outage(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        repository.attempts.begin(lease, study.id, 0, {})
        claim(repository, lease)
        assert self.fault(repository, study) is Fault.TRIAL

    @pytest.mark.parametrize("ended", ["stop", "put_back"])
    def test_somebody_wanted_it(
        self, repository: Repository, lease: Lease, study: StoredStudy, ended: str
    ) -> None:
        repository.attempts.begin(lease, study.id, 0, {})
        getattr(repository.claims, ended)(lease, study.id)
        repository.studies.enqueue(study.name)
        claim(repository, taken_over(repository))
        assert self.fault(repository, study) is Fault.TRIAL

    def test_its_daemon_died_and_the_study_has_moved_since(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        later = taken_over(repository)
        claim(repository, later)
        repository.attempts.begin(later, study.id, 0, {})
        repository.leases.release(later)
        repository.studies.move(study.name, "host:elsewhere")
        assert claim(repository, taken(repository, "host:elsewhere")) is not None
        assert self.fault(repository, study) is Fault.DAEMON


def asked_by(
    repository: Repository, read: Callable[[Repository], object]
) -> list[tuple[str, object]]:
    """The statements of a call, with their parameters."""
    engine = repository.database.engine
    asked: list[tuple[str, object]] = []

    def note(_: object, __: object, statement: str, given: object, *___: object) -> None:
        asked.append((statement, given))

    event.listen(engine, "before_cursor_execute", note)
    try:
        read(repository)
    finally:
        event.remove(engine, "before_cursor_execute", note)
    return asked


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_read_of_new_attempts_goes_by_an_index_and_not_through_all_of_them(
    repository: Repository,
) -> None:
    asked = asked_by(repository, lambda repository: repository.attempts.since(1, 7, [6]))
    statement, given = next(one for one in asked if "FROM autotune_attempt" in one[0])
    with repository.database.engine.connect() as connection:
        plan = connection.exec_driver_sql(f"explain query plan {statement}", given)
        found = "\n".join(str(row.detail) for row in plan)
    assert "ix_autotune_attempt_study_id (study_id=? AND rowid>?)" in found


def test_order_of_a_queue_is_found_without_the_attempts(repository: Repository) -> None:
    repository.quotas.set(Quota("ann", device_hours=1.0))
    repository.studies.submit("first", CLUSTER, {}, "/w", owner="ann")
    repository.studies.submit("second", CLUSTER, {}, "/w", owner="bob")
    for read in (
        lambda repository: repository.studies.order(),
        lambda repository: repository.quotas.reasons(),
    ):
        asked = asked_by(repository, read)
        assert any("FROM autotune_usage" in statement for statement, _ in asked)
        assert not any("autotune_attempt" in statement for statement, _ in asked)


def test_daemon_of_a_queue_without_studies_reads_no_quotas(repository: Repository) -> None:
    repository.quotas.set(Quota("ann", device_hours=1.0))
    holder = LeaseHolder("here", 1, LONG)
    asked = asked_by(repository, lambda repository: repository.claims.take(CLUSTER, holder))
    assert not any("autotune_quota" in statement for statement, _ in asked)
