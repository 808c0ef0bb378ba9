"""Leases: one holder of each queue, by the database's clock."""

import time

import pytest
from sqlalchemy import text

from autotune.errors import StaleLease
from storage import LeaseHolder, Repository
from storage.lease_keys import waiting_key
from tests.contract.storage.making import (
    CLUSTER,
    LONG,
    at_once,
    database_time,
    pass_time,
    rows,
    submit,
    taken,
)
from tests.support.waiting import wait_for


class TestLease:
    def test_only_one_holds_it(self, repository: Repository) -> None:
        taken(repository, "here")
        assert repository.leases.acquire("here", LeaseHolder("other", 2, LONG)) is None
        assert repository.leases.acquire("here", LeaseHolder("here", 1, LONG)) is None
        assert taken(repository, "there").key == "there"

    def test_a_refused_daemon_leaves_the_holder_as_it_was(self, repository: Repository) -> None:
        taken(repository)
        before = rows(repository)
        repository.leases.acquire(CLUSTER, LeaseHolder("other", 2, 1000 * LONG))
        assert rows(repository) == before

    def test_it_tells_who_holds_it(self, repository: Repository) -> None:
        assert repository.leases.state(CLUSTER) is None
        repository.leases.acquire(CLUSTER, LeaseHolder("ünïcode host", 4_000_000, 30.0))
        state = repository.leases.state(CLUSTER)
        assert state is not None
        assert (state.key, state.host, state.pid) == (CLUSTER, "ünïcode host", 4_000_000)
        assert 25 < state.seconds_left <= 30

    @pytest.mark.long
    def test_it_runs_out(self, repository: Repository) -> None:
        first = taken(repository, seconds=5)
        assert repository.leases.acquire(CLUSTER, LeaseHolder("other", 2, LONG)) is None

        def left() -> float:
            state = repository.leases.state(CLUSTER)
            assert state is not None
            return state.seconds_left

        wait_for(lambda: left() < 0, "it has run out")
        second = repository.leases.acquire(CLUSTER, LeaseHolder("other", 2, LONG))
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
        lease = taken(repository, seconds=LONG)
        for _ in range(4):
            pass_time(repository, 0.9 * LONG)
            repository.leases.renew(lease, LONG)
            assert repository.leases.acquire(CLUSTER, LeaseHolder("other", 2, LONG)) is None

    def test_renewing_does_not_add_to_what_is_left(self, repository: Repository) -> None:
        lease = taken(repository, seconds=1000)
        repository.leases.renew(lease, 5.0)
        state = repository.leases.state(CLUSTER)
        assert state is not None
        assert 0 < state.seconds_left <= 5

    def test_one_that_ran_out_goes_on_if_nobody_took_it(self, repository: Repository) -> None:
        lease = taken(repository, seconds=0.0)
        repository.leases.renew(lease, LONG)
        assert repository.leases.acquire(CLUSTER, LeaseHolder("other", 2, LONG)) is None

    def test_a_lost_one_cannot_be_renewed(self, repository: Repository) -> None:
        lost = taken(repository, seconds=0.0)
        taken(repository)
        before = rows(repository)
        with pytest.raises(StaleLease, match=CLUSTER):
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

    def test_of_many_who_want_it_at_once_one_gets_it(self, repository: Repository) -> None:
        for number in range(4):
            queue = f"host:{number}"
            for _ in range(2):  # the first time there is no row yet
                results = at_once(
                    lambda _, q=queue: repository.leases.acquire(q, LeaseHolder("here", 1, LONG))
                )
                winners = [lease for lease in results if lease]
                assert len(winners) == 1
                repository.leases.release(winners[0])


class TestServing:
    def test_study_that_waits_is_served_by_a_process_that_waits_for_it_alone(
        self, repository: Repository
    ) -> None:
        study, other = submit(repository, "one"), submit(repository, "two")
        lease = taken(repository, waiting_key(study.queue, study.id))
        assert {*repository.leases.serving_all([study, other])} == {study.id}
        repository.leases.release(lease)
        assert repository.leases.serving(study) is None

    def test_key_of_waiting_fits_into_its_column_and_names_the_owner(
        self, repository: Repository
    ) -> None:
        queue = f"ray:{'h' * 150}:6379 {'o' * 85} 12345678"
        keys = {waiting_key(queue, number) for number in (1, 10**9)}
        keys |= {waiting_key(queue.replace("6379", "6380"), 10**9)}
        assert len(keys) == 3
        for key in keys:
            assert key.split(" ")[1] == "o" * 85
            repository.leases.release(taken(repository, key))

    def test_deleted_study_leaves_no_lease_of_waiting(self, repository: Repository) -> None:
        study = submit(repository, "one")
        key = waiting_key(study.queue, study.id)
        repository.leases.release(taken(repository, key))
        repository.studies.request_stop("one")
        repository.studies.delete("one")
        assert repository.leases.state(key) is None
