"""Two users with a role each in one PostgreSQL, under the policies of docs/security.md."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, delete, func, select, text, update
from sqlalchemy.exc import ProgrammingError

from autotune.errors import BadInput, StaleLease, StorageError
from storage import Claim, Database, EventKind, LeaseHolder, Quota, Repository, StoredNoise
from storage.lease_keys import key_of, waiting_key
from storage.models import Base, ChoiceRow, LeaseRow, NoiseRow, RecommendationRow, UsageRow
from storage.records import AttemptResult, AttemptState, ChoiceReason, FinalistChoice
from storage.urls import parse

SECURITY = Path(__file__).parents[3] / "docs" / "security.md"
OF_A_STUDY = [mapper.class_ for mapper in Base.registry.mappers if "study_id" in mapper.columns]
HOLDER = LeaseHolder("here", 1, 60.0)


@pytest.fixture(scope="module")
def tenants(postgres_server: Any) -> Iterator[dict[str, Repository]]:
    """The repository as each role has it."""
    postgres_server.psql("create database tenants")
    url = str(postgres_server.get_uri(database="tenants"))
    Database(url).engine.dispose()
    [policies] = re.findall(r"```sql\n(.*?)```", SECURITY.read_text(), re.DOTALL)
    engine = create_engine(parse(url))
    with engine.begin() as connection:
        connection.exec_driver_sql(policies.replace("%", "%%"))
        for statement in re.findall(r"^(?:grant|revoke) .*?;", policies, re.DOTALL | re.MULTILINE):
            connection.execute(text(statement))  # once more, as after an upgrade
        for role in ("alice", "bob"):
            connection.execute(text(f"create role {role} login in role autotune_user"))
    engine.dispose()
    found = {
        role: Repository(Database(url.replace("postgres:", f"{role}:")))
        for role in ("alice", "bob")
    }
    yield found
    for repository in found.values():
        repository.database.engine.dispose()
    postgres_server.psql("drop database tenants (force)")
    postgres_server.psql("drop role alice; drop role bob; drop role autotune_user")


def claimed_study(alice: Repository, name: str) -> Claim:
    """Submit a study of alice's and claim it."""
    alice.studies.submit(name, "host:here alice 0", {}, "/w", owner="alice")
    claimed = alice.claims.take("host:here alice 0", HOLDER)
    assert claimed is not None
    return claimed


def test_role_reads_studies_of_others_and_changes_its_own_only(
    tenants: dict[str, Repository],
) -> None:
    alice, bob = tenants["alice"], tenants["bob"]
    claimed = claimed_study(alice, "hers")
    alice.attempts.begin(claimed.lease, claimed.study.id, 0, {})
    assert bob.studies.named("hers").owner == "alice"
    assert len(bob.attempts.of(claimed.study.id)) == 1
    for change in (
        lambda: bob.studies.request_stop("hers"),
        lambda: bob.studies.arrange("hers", priority=1),
        lambda: bob.studies.enqueue("hers", {"a": 1}),
        lambda: bob.studies.move("hers", "host:here bob 0"),
        lambda: bob.studies.delete("hers"),
    ):
        with pytest.raises(BadInput, match="a study of alice"):
            change()
    assert bob.claims.take("host:here alice 0", HOLDER) is None
    with pytest.raises(StaleLease):
        bob.claims.fail(claimed.lease, claimed.study.id, "spoilt")
    assert alice.leases.holder(key_of(claimed.study.id)) is not None
    waits = waiting_key(claimed.study.queue, claimed.study.id)
    assert alice.leases.acquire(waits, HOLDER) is not None
    with pytest.raises(StorageError):
        bob.leases.acquire(waiting_key(claimed.study.queue, 7), HOLDER)
    alice.claims.stop(claimed.lease, claimed.study.id)
    alice.studies.delete("hers")
    assert alice.leases.state(waits) is None
    history = bob.events.of("hers")
    assert [event.what for event in history] == [
        *(EventKind.SUBMITTED, EventKind.BEGUN, EventKind.STOPPED, EventKind.DELETED)
    ]
    assert {event.role for event in history} == {"alice"}


def test_role_cannot_act_in_the_name_of_another(tenants: dict[str, Repository]) -> None:
    with pytest.raises(StorageError, match="row-level security"):
        tenants["bob"].studies.submit("foreign", "host:here alice 0", {}, "/w", owner="alice")
    with pytest.raises(StorageError, match="permission denied"):
        tenants["bob"].quotas.set(Quota("bob", studies=100))


@pytest.mark.parametrize("table", ["autotune_alembic_version", "alembic_version", "version_info"])
def test_role_does_not_change_what_the_tables_are(
    tenants: dict[str, Repository], table: str
) -> None:
    with (
        pytest.raises(ProgrammingError, match="permission denied"),
        tenants["bob"].database.engine.begin() as connection,
    ):
        connection.execute(text(f"delete from {table}"))


def test_role_changes_no_device_hours_of_others_and_removes_none(
    tenants: dict[str, Repository],
) -> None:
    alice, bob = tenants["alice"], tenants["bob"]
    claimed = claimed_study(alice, "timed")
    for trial in range(2):
        attempt = alice.attempts.begin(claimed.lease, claimed.study.id, trial, {})
        result = AttemptResult(AttemptState.COMPLETE, wall_seconds=60.0)
        alice.attempts.finish(claimed.lease, attempt.id, result, [])
    with bob.database.engine.begin() as connection:
        total = select(func.sum(UsageRow.device_seconds))
        assert connection.execute(total).scalar_one() >= 120.0  # with runs that other tests cut off
        assert connection.execute(update(UsageRow).values(device_seconds=0.0)).rowcount == 0
    with (
        pytest.raises(ProgrammingError, match="permission denied"),
        alice.database.engine.begin() as connection,
    ):
        connection.execute(delete(UsageRow))
    alice.claims.stop(claimed.lease, claimed.study.id)
    alice.studies.delete("timed")


def test_role_owns_no_study_of_another_by_a_table_of_its_own(
    tenants: dict[str, Repository],
) -> None:
    alice, bob = tenants["alice"], tenants["bob"]
    claimed = claimed_study(alice, "claimed")
    alice.recommendations.record(claimed.lease, claimed.study.id, 0, {"knobs": {}})
    with bob.database.engine.begin() as connection:
        for statement in (
            "create temp table autotune_study (id integer, owner text)",
            "insert into autotune_study select id, 'bob' from public.autotune_study",
        ):
            connection.execute(text(statement))
        spoilt = update(RecommendationRow).values(body={})
        assert connection.execute(spoilt).rowcount == 0
        assert connection.execute(update(LeaseRow).values(epoch=9)).rowcount == 0
        connection.execute(text("drop table pg_temp.autotune_study"))
    alice.claims.stop(claimed.lease, claimed.study.id)
    alice.studies.delete("claimed")


@pytest.mark.parametrize(
    "model", sorted(OF_A_STUDY, key=str), ids=lambda model: model.__tablename__
)
def test_table_of_studies_has_a_policy(tenants: dict[str, Repository], model: type[Base]) -> None:
    assert {ChoiceRow, NoiseRow} <= {*OF_A_STUDY}
    asked = text(
        "select relrowsecurity and exists (select from pg_policies where tablename = relname)"
        " from pg_class where relname = :name"
    )
    with tenants["alice"].database.engine.connect() as connection:
        assert connection.execute(asked, {"name": model.__tablename__}).scalar_one()


def test_role_changes_no_choice_and_no_noise_of_others(tenants: dict[str, Repository]) -> None:
    alice, bob = tenants["alice"], tenants["bob"]
    claimed = claimed_study(alice, "chosen")
    study = claimed.study.id
    here = alice.environments.record(claimed.lease, {"cpu": "x"})
    noise = StoredNoise(0.01, 3, None)
    alice.noise.record(claimed.lease, study, here, noise, workload="w", world_size=1)
    alice.choices.record(claimed.lease, study, [FinalistChoice(0, ChoiceReason.FINALIST)])
    for model in (ChoiceRow, NoiseRow):
        with bob.database.engine.begin() as connection:
            assert connection.execute(select(func.count()).select_from(model)).scalar_one() == 1
            assert connection.execute(update(model).values(at=1.0)).rowcount == 0
            assert connection.execute(delete(model)).rowcount == 0
    alice.claims.stop(claimed.lease, study)
    alice.studies.delete("chosen")
    with alice.database.engine.begin() as connection:
        assert not connection.execute(select(func.count()).select_from(ChoiceRow)).scalar_one()
