"""The fence: a daemon that lost its lease writes nothing."""

import inspect
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from autotune.errors import StaleLease
from storage import (
    AttemptResult,
    ChoiceReason,
    FinalistChoice,
    Lease,
    LeaseHolder,
    Repository,
    SlotHealth,
    StoredNoise,
    StoredStudy,
)
from storage.owner import user_name
from tests.contract.storage.making import (
    CLUSTER,
    LONG,
    block,
    claim,
    rows,
    submit,
    taken,
    taken_over,
)


def some_environment(repository: Repository) -> int:
    """The id of an environment that is recorded already."""
    with repository.database.engine.connect() as connection:
        return int(
            connection.execute(text("select max(id) from autotune_environment")).scalar_one()
        )


FENCED: dict[str, Callable[[Repository, Lease, int, int], Any]] = {
    "leases.renew": lambda r, lease, study, attempt: r.leases.renew(lease, LONG),
    "attempts.begin": lambda r, lease, study, attempt: r.attempts.begin(lease, study, 5, {}),
    "attempts.finish": lambda r, lease, study, attempt: r.attempts.finish(
        lease, attempt, AttemptResult("COMPLETE", throughput=1.0), [block()]
    ),
    "claims.fail": lambda r, lease, study, attempt: r.claims.fail(lease, study, "late"),
    "claims.add_elapsed": lambda r, lease, study, attempt: r.claims.add_elapsed(lease, study, 1.0),
    "claims.end_search": lambda r, lease, study, attempt: r.claims.end_search(
        lease, r.studies.all()[0], "enough", ["late"]
    ),
    "claims.conclude": lambda r, lease, study, attempt: r.claims.conclude(
        lease, r.studies.all()[0], {"kind": "better"}
    ),
    "claims.record_facts": lambda r, lease, study, attempt: r.claims.record_facts(
        lease, study, {"device": "cpu"}
    ),
    "claims.stop": lambda r, lease, study, attempt: r.claims.stop(lease, study),
    "claims.put_back": lambda r, lease, study, attempt: r.claims.put_back(lease, study),
    "claims.record_standing": lambda r, lease, study, attempt: r.claims.record_standing(
        lease, study, {}
    ),
    "claims.record_slots": lambda r, lease, study, attempt: r.claims.record_slots(
        lease, study, SlotHealth(1, 2, {})
    ),
    "messages.say": lambda r, lease, study, attempt: r.messages.say(lease, study, "late"),
    "messages.set_status": lambda r, lease, study, attempt: r.messages.set_status(
        lease, study, "late"
    ),
    "environments.record": lambda r, lease, study, attempt: r.environments.record(lease, {"a": 1}),
    "noise.record": lambda r, lease, study, attempt: r.noise.record(
        lease,
        study,
        some_environment(r),
        StoredNoise(0.01, 3, None),
        workload="gpt",
        world_size=2,
    ),
    "choices.record": lambda r, lease, study, attempt: r.choices.record(
        lease, study, [FinalistChoice(0, ChoiceReason.FINALIST)]
    ),
    "recommendations.record": lambda r, lease, study, attempt: r.recommendations.record(
        lease, study, 0, {"late": True}
    ),
}


class TestFence:
    def test_every_write_of_a_daemon_is_tried_here(self, repository: Repository) -> None:
        taking_a_lease = {
            f"{noun}.{name}"
            for noun, kept in vars(repository).items()
            for name, method in inspect.getmembers(kept, inspect.ismethod)
            if "lease" in inspect.signature(method).parameters
            and not noun.startswith("_")
            and not name.startswith("_")
        }
        assert taking_a_lease == {*FENCED, "leases.release"}

    @pytest.mark.parametrize("write", FENCED)
    def test_a_daemon_that_lost_its_lease_writes_nothing(
        self, repository: Repository, lease: Lease, study: StoredStudy, write: str
    ) -> None:
        repository.environments.record(lease, {})
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        submit(repository, "second")
        taken_over(repository)
        before = rows(repository)
        with pytest.raises(StaleLease, match=lease.key):
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
        forgeries = [
            Lease("nowhere", 1, token=lease.token),
            Lease(lease.key, lease.epoch + 1, token=lease.token),
            Lease(lease.key, 0, token=lease.token),
            Lease(lease.key, lease.epoch),
        ]
        for forged in forgeries:
            with pytest.raises(StaleLease):
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
                except StaleLease:
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


def test_a_daemon_that_was_left_behind_by_its_study_writes_no_more(repository: Repository) -> None:
    """It may only be frozen; nobody has taken its lease, so that alone would let it write."""
    submit(repository, "moved")
    claimed = repository.claims.take(CLUSTER, LeaseHolder("here", 1, LONG))
    assert claimed is not None
    lease, study = claimed.lease, claimed.study
    repository.studies.enqueue("moved", queue="elsewhere")
    assert repository.studies.named("moved").queue == CLUSTER, "its daemon lives"
    repository.leases.renew(lease, 0.0)
    repository.studies.enqueue("moved", queue="elsewhere")
    moved = repository.studies.named("moved")
    assert (moved.queue, moved.owner) == ("elsewhere", user_name())
    with pytest.raises(StaleLease):
        repository.attempts.begin(lease, study.id, 0, {})
    theirs = claim(repository, taken(repository, "elsewhere"))
    assert theirs is not None
    assert theirs.name == "moved"
