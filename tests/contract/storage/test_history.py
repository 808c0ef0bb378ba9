"""History of studies, by account and command; quotas of owners."""

from collections.abc import Iterator

import pytest
from sqlalchemy import update

from autotune.errors import BadInput
from storage import (
    EVERY_OWNER,
    AttemptResult,
    Attempts,
    Claim,
    EventKind,
    Lease,
    LeaseHolder,
    MessageKind,
    Quota,
    Repository,
    Retry,
    StoredAttempt,
    StoredStudy,
)
from storage.models import AttemptRow, LeaseRow, UsageRow
from storage.owner import user_name
from tests.contract.storage.making import (
    CLUSTER,
    LONG,
    at_once,
    database_time,
    end,
    pass_time,
    rows,
    submit,
)
from tests.support.records import end_lease

FIRST, SECOND = (LeaseHolder("here", pid, LONG) for pid in (1, 2))


def told(repository: Repository, name: str = "first") -> list[EventKind]:
    return [event.what for event in repository.events.of(name)]


def take(repository: Repository, holder: LeaseHolder = FIRST) -> Claim:
    found = repository.claims.take(CLUSTER, holder)
    assert found is not None
    return found


class TestEvents:
    def test_requests_are_recorded_in_order(self, repository: Repository) -> None:
        submit(repository, "first")
        repository.studies.arrange("first", priority=3)
        repository.studies.arrange("first", held=True)
        repository.studies.arrange("first", held=True, priority=3)  # changes nothing
        repository.studies.arrange("first", held=False)
        repository.studies.move("first", "host:there")
        repository.studies.request_stop("first")
        repository.studies.request_stop("first")  # it has ended
        repository.studies.enqueue("first", queue=CLUSTER)
        repository.studies.request_stop("first")
        repository.studies.delete("first")
        assert told(repository) == [
            *(EventKind.SUBMITTED, EventKind.PRIORITY, EventKind.HELD, EventKind.RELEASED),
            *(EventKind.MOVED, EventKind.STOPPED, EventKind.MOVED, EventKind.RESUMED),
            *(EventKind.STOPPED, EventKind.DELETED),
        ]
        assert [e.detail for e in repository.events.of("first", 9)[:4]] == [
            "3",
            "",
            "",
            "host:there",
        ]

    def test_life_of_a_study_under_daemons_is_recorded(self, repository: Repository) -> None:
        submit(repository, "first")
        claimed = take(repository)
        repository.studies.request_stop("first")
        repository.studies.enqueue("first")
        repository.claims.stop(claimed.lease, claimed.study.id)  # it was resumed meanwhile
        repository.leases.release(claimed.lease)
        take(repository)
        state = repository.leases.state(claimed.lease.key)
        assert state is not None
        end_lease(repository, state)
        claimed = take(repository, SECOND)
        repository.claims.put_back(claimed.lease, claimed.study.id, Retry("no room", 0.0, 1))
        repository.leases.release(claimed.lease)
        claimed = take(repository, SECOND)
        end(repository, claimed.lease, claimed.study)
        found = repository.events.of("first")
        assert [event.what for event in found] == [
            *(EventKind.SUBMITTED, EventKind.BEGUN, EventKind.STOP_REQUESTED, EventKind.RESUMED),
            *(EventKind.REQUEUED, EventKind.BEGUN, EventKind.TAKEN_OVER, EventKind.REQUEUED),
            EventKind.DONE,
        ]
        assert found[6].detail == "process 2, from process 1 on here"
        assert found[7].detail == "no room"

    def test_tries_of_a_study_that_waits_are_recorded_once_for_each_reason(
        self, repository: Repository
    ) -> None:
        submit(repository, "first")
        waiting = MessageKind.WAITING
        for number in range(1, 51):
            claimed = take(repository)
            why = "no cluster" if number < 50 else "no room"
            repository.messages.say(claimed.lease, claimed.study.id, why, kind=waiting)
            repository.claims.put_back(claimed.lease, claimed.study.id, Retry(why, 0.0, number))
            repository.leases.release(claimed.lease)
        assert [(event.what, event.detail) for event in repository.events.of("first")[2:]] == [
            (EventKind.REQUEUED, "no cluster"),
            (EventKind.REQUEUED, "no room"),
        ]
        found = repository.messages.of(claimed.study.id)
        assert [message.text for message in found] == ["no cluster", "no room"]

    def test_try_that_succeeds_is_recorded_once(self, repository: Repository) -> None:
        submit(repository, "first")
        for number in (1, 2):
            claimed = take(repository)
            retry = Retry("no cluster", 0.0, number)
            repository.claims.put_back(claimed.lease, claimed.study.id, retry)
            repository.leases.release(claimed.lease)
        repository.studies.arrange("first", priority=3)
        claimed = take(repository, SECOND)
        before = told(repository)
        for _ in range(2):  # once more by a daemon whose storage was away
            repository.claims.record_facts(claimed.lease, claimed.study.id, {"world_size": 4})
        assert before[-2:] == [EventKind.REQUEUED, EventKind.PRIORITY]
        assert told(repository) == [*before, EventKind.BEGUN]
        assert repository.events.of("first")[-1].detail == "process 2"

    def test_study_that_fails_again_and_again_once_it_is_open_fills_no_history(
        self, repository: Repository
    ) -> None:
        submit(repository, "first")
        for number in range(1, 30):
            claimed = take(repository)
            repository.claims.record_facts(claimed.lease, claimed.study.id, {"world_size": 4})
            retry = Retry("a slot is out of use", 0.0, number)
            repository.claims.put_back(claimed.lease, claimed.study.id, retry)
            repository.leases.release(claimed.lease)
        assert told(repository).count(EventKind.REQUEUED) == 2
        assert told(repository).count(EventKind.BEGUN) == 2

    def test_event_tells_account_role_host_and_command(self, repository: Repository) -> None:
        Repository(repository.database, "start").studies.submit("first", CLUSTER, {}, "/w")
        [event] = repository.events.of("first")
        assert (event.account, event.command, event.study) == (user_name(), "start", "first")
        assert event.host
        assert event.version
        on_server = repository.database.folder is None
        assert event.role == ("postgres" if on_server else None)

    def test_refused_request_leaves_no_event(
        self, repository: Repository, study: StoredStudy
    ) -> None:
        before = rows(repository)
        with pytest.raises(BadInput):
            repository.studies.delete("first")
        with pytest.raises(BadInput):
            repository.studies.arrange("first", held=True)
        assert rows(repository) == before

    def test_history_outlives_its_study(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        repository.claims.fail(lease, study.id, "why")
        repository.studies.delete("first")
        submit(repository, "first")
        assert told(repository)[-3:] == [EventKind.FAILED, EventKind.DELETED, EventKind.SUBMITTED]
        assert len(repository.events.of(last=2)) == 2


def waiting(repository: Repository, *owners: str) -> None:
    for number, owner in enumerate(owners):
        repository.studies.submit(f"{owner}-{number}", CLUSTER, {}, "/w", owner=owner)


def taken_in_order(repository: Repository) -> Iterator[Claim]:
    while found := repository.claims.take(CLUSTER, FIRST):
        yield found


def run_for_an_hour(repository: Repository, run: Claim, trial: int = 0) -> None:
    attempt = repository.attempts.begin(run.lease, run.study.id, trial, {})
    done = AttemptResult("COMPLETE", throughput=1.0, wall_seconds=3600.0)
    repository.attempts.finish(run.lease, attempt.id, done, [])


def begin_an_hour_ago(repository: Repository, run: Claim, trial: int = 0) -> StoredAttempt:
    begun = repository.attempts.begin(run.lease, run.study.id, trial, {})
    with repository.database.writing() as connection:
        own = update(AttemptRow).where(AttemptRow.id == begun.id)
        connection.execute(own.values(started=begun.started - 3600.0))
    return begun


class TestQuotas:
    def test_owner_at_its_number_of_studies_waits_and_others_do_not(
        self, repository: Repository
    ) -> None:
        waiting(repository, "ann", "ann", "bob", "ann", "bob")
        repository.quotas.set(Quota("ann", studies=1))
        found = list(taken_in_order(repository))
        assert [claim.study.name for claim in found] == ["ann-0", "bob-2", "bob-4"]
        assert "1 of 1 studies" in repository.quotas.reasons()("ann")
        assert repository.quotas.reasons()("bob") == ""
        end(repository, found[0].lease, found[0].study)
        assert [claim.study.name for claim in taken_in_order(repository)] == ["ann-1"]

    def test_study_that_no_daemon_runs_any_more_does_not_count(
        self, repository: Repository
    ) -> None:
        """As on a machine that is gone, where nobody goes on with it."""
        repository.studies.submit("left", "host:gone", {}, "/w", owner="ann")
        waiting(repository, "ann")
        gone = repository.claims.take("host:gone", FIRST)
        assert gone is not None
        repository.quotas.set(Quota("ann", studies=1))
        assert repository.claims.take(CLUSTER, SECOND) is None
        pass_time(repository, FIRST.seconds + 3600.0)
        assert repository.quotas.reasons()("ann") == ""
        assert take(repository, SECOND).study.name == "ann-0"
        assert "1 of 1 studies" in repository.quotas.reasons()("ann")

    def test_study_whose_daemon_was_just_cut_off_counts(self, repository: Repository) -> None:
        """It takes its study up again, under any quota."""
        repository.studies.submit("asleep", "host:away", {}, "/w", owner="ann")
        waiting(repository, "ann")
        away = repository.claims.take("host:away", FIRST)
        assert away is not None
        repository.quotas.set(Quota("ann", studies=1))
        pass_time(repository, FIRST.seconds + 1.0)
        assert repository.leases.holder(away.lease.key) is None
        assert repository.claims.take(CLUSTER, SECOND) is None
        assert "1 of 1 studies" in repository.quotas.reasons()("ann")
        assert repository.claims.take("host:away", FIRST, before=away.lease) is not None
        pass_time(repository, FIRST.seconds + 3600.0)
        assert repository.claims.take(CLUSTER, SECOND) is not None

    def test_device_hours_count_within_their_days(self, repository: Repository) -> None:
        waiting(repository, "ann", "ann")
        run = take(repository)
        repository.claims.record_facts(run.lease, run.study.id, {"world_size": 4})
        attempt = repository.attempts.begin(run.lease, run.study.id, 0, {})
        done = AttemptResult("COMPLETE", throughput=1.0, wall_seconds=3600.0)
        repository.attempts.finish(run.lease, attempt.id, done, [])
        repository.quotas.set(Quota("ann", device_hours=4.0, days=7.0))
        assert repository.claims.take(CLUSTER, SECOND) is None
        assert "4 of 4 device hours of the last 7 days" in repository.quotas.reasons()("ann")
        repository.quotas.set(Quota("ann", device_hours=4.1, days=7.0))
        assert repository.claims.take(CLUSTER, SECOND) is not None

    @pytest.mark.parametrize(("ahead", "counts"), [(0, True), (2, False), (24 * 365, False)])
    def test_device_hours_of_a_clock_that_was_ahead_do_not_count(
        self, repository: Repository, ahead: int, counts: bool
    ) -> None:
        waiting(repository, "ann")
        run_for_an_hour(repository, take(repository))
        with repository.database.writing() as connection:
            connection.execute(update(UsageRow).values(hour=UsageRow.hour + ahead))
        repository.quotas.set(Quota("ann", device_hours=0.5))
        assert bool(repository.quotas.reasons()("ann")) is counts

    def test_device_hours_outlive_their_study(self, repository: Repository) -> None:
        waiting(repository, "ann")
        run = take(repository)
        run_for_an_hour(repository, run)
        end(repository, run.lease, run.study)
        repository.studies.delete("ann-0")
        repository.quotas.set(Quota("ann", device_hours=0.5))
        assert "1 of 0.5 device hours" in repository.quotas.reasons()("ann")

    def test_device_hours_stay_with_the_owner_from_whom_a_study_is_taken_over(
        self, repository: Repository
    ) -> None:
        """Those of the attempt that its daemon has left behind as well."""
        waiting(repository, "ann")
        run = take(repository)
        run_for_an_hour(repository, run)
        begin_an_hour_ago(repository, run, 1)
        repository.leases.release(run.lease)
        repository.studies.move("ann-0", "host:there")
        assert repository.studies.named("ann-0").owner == user_name()
        assert repository.claims.take("host:there", SECOND) is not None
        repository.quotas.set(Quota(EVERY_OWNER, device_hours=0.0))
        assert "2 of 0 device hours" in repository.quotas.reasons()("ann")
        assert "0 of 0 device hours" in repository.quotas.reasons()(user_name())

    def test_device_hours_of_a_run_that_a_stop_cuts_off_count_for_the_owner_at_that_time(
        self, repository: Repository
    ) -> None:
        waiting(repository, "ann")
        run = take(repository)
        left = begin_an_hour_ago(repository, run)
        repository.claims.stop(run.lease, run.study.id)
        repository.leases.release(run.lease)
        [cut_off] = repository.attempts.of(run.study.id)
        assert cut_off.result.state == "ABANDONED"
        repository.studies.enqueue("ann-0", queue="host:there")
        resumed = repository.claims.take("host:there", SECOND)
        assert resumed is not None
        repository.quotas.set(Quota(EVERY_OWNER, device_hours=0.0))
        assert "1 of 0 device hours" in repository.quotas.reasons()("ann")
        assert "0 of 0 device hours" in repository.quotas.reasons()(user_name())
        again = repository.attempts.begin(resumed.lease, run.study.id, left.trial, {})
        known = Attempts(repository.attempts.of(run.study.id), {})
        assert not known.saw_daemon_die(again)
        assert known.lost_in_vain(again) == []

    def test_device_hours_of_a_run_that_a_failure_cuts_off_outlive_its_study(
        self, repository: Repository
    ) -> None:
        waiting(repository, "ann")
        run = take(repository)
        begin_an_hour_ago(repository, run)
        repository.claims.fail(run.lease, run.study.id, "why")
        [cut_off] = repository.attempts.of(run.study.id)
        assert cut_off.result.state == "ABANDONED"
        repository.studies.delete("ann-0")
        repository.quotas.set(Quota("ann", device_hours=0.5))
        assert "1 of 0.5 device hours" in repository.quotas.reasons()("ann")

    def test_device_hours_of_studies_that_several_daemons_run_are_all_counted(
        self, repository: Repository
    ) -> None:
        waiting(repository, *["ann"] * 4)
        runs = list(taken_in_order(repository))

        def run(number: int) -> None:
            for trial in range(3):
                run_for_an_hour(repository, runs[number], trial)

        at_once(run, len(runs))
        repository.quotas.set(Quota("ann", device_hours=1.0))
        assert "12 of 1 device hours" in repository.quotas.reasons()("ann")

    def test_hours_of_abandoned_attempts_count_until_the_lease_of_their_daemon_ended(
        self, repository: Repository
    ) -> None:
        waiting(repository, "ann")
        run = take(repository)
        repository.claims.record_facts(run.lease, run.study.id, {"world_size": 2})
        attempt = repository.attempts.begin(run.lease, run.study.id, 0, {})
        now = database_time(repository)
        with repository.database.writing() as connection:
            connection.execute(update(AttemptRow).values(started=now - 3 * 3600.0))
            ended = {"expires": now - 3600.0, "boot_expires": 0.0}
            connection.execute(update(LeaseRow).values(ended))
        assert take(repository, SECOND).study.name == "ann-0"
        [found] = repository.attempts.of(run.study.id)
        assert (found.id, found.result.state) == (attempt.id, "ABANDONED")
        assert found.result.wall_seconds == pytest.approx(2 * 3600.0)
        repository.quotas.set(Quota("ann", device_hours=3.9))
        assert "4 of 3.9 device hours" in repository.quotas.reasons()("ann")

    def test_quota_of_every_owner_yields_to_one_of_its_own(self, repository: Repository) -> None:
        waiting(repository, "ann", "ann", "bob", "bob")
        repository.quotas.set(Quota(EVERY_OWNER, studies=1))
        repository.quotas.set(Quota("bob", studies=2))
        names = [claim.study.name for claim in taken_in_order(repository)]
        assert names == ["ann-0", "bob-2", "bob-3"]
        repository.quotas.set(Quota(EVERY_OWNER))
        assert [quota.owner for quota in repository.quotas.all()] == ["bob"]
        assert [claim.study.name for claim in taken_in_order(repository)] == ["ann-1"]

    @pytest.mark.parametrize("own", [{"weight": 3.0}, {"device_hours": 100.0}])
    def test_number_of_every_owner_holds_beside_another_limit_of_its_own(
        self, repository: Repository, own: dict[str, float]
    ) -> None:
        waiting(repository, "ann", "ann")
        repository.quotas.set(Quota(EVERY_OWNER, studies=1))
        repository.quotas.change("ann", own)
        assert [claim.study.name for claim in taken_in_order(repository)] == ["ann-0"]
        assert "1 of 1 studies" in repository.quotas.reasons()("ann")

    def test_hours_and_weight_of_every_owner_hold_beside_a_number_of_its_own(
        self, repository: Repository
    ) -> None:
        repository.quotas.set(Quota(EVERY_OWNER, device_hours=0.0, days=7.0, weight=2.0))
        repository.quotas.change("ann", {"studies": 2})
        assert "0 of 0 device hours of the last 7 days" in repository.quotas.reasons()("ann")
        assert repository.quotas.weight_of("ann") == 2.0
        repository.quotas.change("ann", {"device_hours": 1.0, "weight": 0.5})
        assert repository.quotas.reasons()("ann") == ""
        assert repository.quotas.in_force("ann") == Quota("ann", 2, 1.0, 1.0, 0.5)

    def test_study_of_a_dead_daemon_goes_on_under_an_exhausted_quota(
        self, repository: Repository
    ) -> None:
        waiting(repository, "ann")
        state = repository.leases.state(take(repository).lease.key)
        assert state is not None
        repository.quotas.set(Quota("ann", studies=1))
        end_lease(repository, state)
        assert take(repository, SECOND).study.name == "ann-0"
