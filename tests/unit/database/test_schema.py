"""How a database is set up: our tables beside Optuna's, at their versions."""

import gc
import re
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, Integer, MetaData, Table, text

from autotune.errors import BadInput, StorageError
from storage import Database, LeaseHolder, Repository, StudyState, TrialLedger
from storage.models import Base
from storage.schema import VERSION_TABLE
from storage.urls import parse
from tests.unit.database.opening import execute, opened, raw, refusal, tables


class TestSchema:
    def test_our_tables_and_those_of_optuna_have_versions_of_their_own(
        self, storage_url: str
    ) -> None:
        with opened(storage_url) as database:
            Repository(database).studies.submit("first", "c", {}, "/w")
            TrialLedger(database, "first")
        found = tables(storage_url)
        assert {table.name for table in Base.metadata.sorted_tables} <= found
        assert {"studies", "trials", "alembic_version", VERSION_TABLE} <= found
        with raw(storage_url) as engine, engine.connect() as connection:
            ours = connection.scalars(text(f"select version_num from {VERSION_TABLE}")).all()
            theirs = connection.scalars(text("select version_num from alembic_version")).all()
        assert len(ours) == len(theirs) == 1
        assert ours != theirs
        assert re.fullmatch(r"v\d.*", theirs[0])

    def test_all_our_tables_have_our_prefix(self) -> None:
        names = [table.name for table in Base.metadata.sorted_tables]
        assert names
        assert all(name.startswith("autotune_") for name in names)

    def test_the_models_are_what_the_migrations_make(self, storage_url: str) -> None:
        with opened(storage_url) as database:
            assert differences(database, Base.metadata) == []

    def test_a_model_that_no_migration_makes_would_be_seen(self, storage_url: str) -> None:
        changed = MetaData()
        for table in Base.metadata.sorted_tables:
            table.to_metadata(changed)
        changed.tables["autotune_study"].append_column(Column("novel", Integer))
        Table("autotune_novel", changed, Column("id", Integer, primary_key=True))
        with opened(storage_url) as database:
            assert {change[0] for change in differences(database, changed)} == {
                "add_table",
                "add_column",
            }

    def test_opening_again_changes_nothing(self, storage_url: str) -> None:
        with opened(storage_url) as database:
            Repository(database).studies.submit("first", "c", {}, "/w")
        before = tables(storage_url)
        for _ in range(2):
            with opened(storage_url) as database:
                assert Repository(database).studies.named("first").name == "first"
        assert tables(storage_url) == before

    def test_tables_of_another_program_on_a_server_are_left_alone(self, storage_url: str) -> None:
        execute(storage_url, "create table mine (id integer)")
        execute(storage_url, "insert into mine values (7)")
        if parse(storage_url).get_backend_name() == "sqlite":
            with pytest.raises(BadInput, match="holds no studies of autotune"):
                Database(storage_url)
            return
        with opened(storage_url) as database, database.engine.connect() as connection:
            assert connection.scalars(text("select id from mine")).all() == [7]

    def test_a_database_that_optuna_uses_already_is_shared(self, storage_url: str) -> None:
        import optuna

        url = str(parse(storage_url).render_as_string(hide_password=False))
        theirs = optuna.create_study(storage=url, study_name="theirs")
        theirs.add_trial(optuna.trial.create_trial(value=1.0))
        with opened(storage_url) as database:
            Repository(database).studies.submit("ours", "c", {}, "/w")
            TrialLedger(database, "ours")
        assert len(optuna.load_study(storage=url, study_name="theirs").trials) == 1

    def test_one_of_a_newer_program_is_read_and_left_as_it_is(self, storage_url: str) -> None:
        with opened(storage_url) as database:
            Repository(database).studies.submit("first", "c", {}, "/w")
        execute(storage_url, f"update {VERSION_TABLE} set version_num = '9999'")
        with opened(storage_url) as database:
            assert Repository(database).studies.named("first").name == "first"
            for refused in (
                database.check_writable,
                database.upgrade,
                lambda: Repository(database).studies.request_stop("first"),
            ):
                with pytest.raises(StorageError, match=r"newer autotune \(schema 9999.*upgrade"):
                    refused()
        with raw(storage_url) as engine, engine.connect() as connection:
            query = text(f"select version_num from {VERSION_TABLE}")
            assert connection.scalars(query).all() == ["9999"]

    def test_process_that_opened_it_before_an_upgrade_claims_nothing(
        self, storage_url: str
    ) -> None:
        with opened(storage_url) as database:
            repository = Repository(database)
            repository.studies.submit("first", "c", {}, "/w")
            execute(storage_url, f"update {VERSION_TABLE} set version_num = '9999'")
            for refused in (
                lambda: repository.claims.take("c", LeaseHolder("here", 1, 60.0)),
                lambda: repository.studies.request_stop("first"),
            ):
                with pytest.raises(StorageError, match=r"newer autotune \(schema 9999.*upgrade"):
                    refused()
            assert repository.studies.named("first").state == StudyState.QUEUED

    def test_tables_of_an_old_optuna_are_refused(self, storage_url: str) -> None:
        make_optuna_old(storage_url)
        assert "optuna" in refusal(storage_url, StorageError).lower()
        assert "autotune_study" not in tables(storage_url)

    @pytest.mark.parametrize("version", ["v2.6.0.a", "v99.0.0.a"])
    def test_tables_of_another_optuna_are_refused_though_ours_are_right(
        self, storage_url: str, version: str
    ) -> None:
        """Optuna was upgraded, or went back, after the first study: else its queries fail later."""
        with opened(storage_url):
            pass
        execute(storage_url, f"update alembic_version set version_num = '{version}'")
        assert "optuna" in refusal(storage_url, StorageError).lower()

    def test_an_open_that_failed_blocks_no_other(self, postgres_url: str) -> None:
        make_optuna_old(postgres_url)
        failures = []
        try:
            Database(postgres_url)
        except Exception as error:
            failures.append(error)  # whose traceback keeps the connections alive, as a caller's may
        assert failures
        assert advisory_locks(postgres_url) == 0

    def test_opening_leaves_no_lock_behind(self, postgres_url: str) -> None:
        with opened(postgres_url):
            assert advisory_locks(postgres_url) == 0


def advisory_locks(url: str) -> int:
    query = text(
        "select count(*) from pg_locks join pg_database on database = pg_database.oid "
        "where locktype = 'advisory' and datname = current_database()"
    )
    with raw(url) as engine, engine.connect() as connection:
        return int(connection.scalar(query) or 0)


def make_optuna_old(url: str) -> None:
    """The database as an Optuna of some years ago left it."""
    import optuna

    optuna.storages.RDBStorage(parse(url).render_as_string(hide_password=False)).engine.dispose()
    execute(url, "update alembic_version set version_num = 'v2.6.0.a'")
    gc.collect()


def differences(database: Database, metadata: MetaData) -> list[Any]:
    """What alembic would migrate to bring our tables to these models."""

    def ours(_: Any, name: str | None, kind: str, *__: Any) -> bool:
        return kind != "table" or (str(name).startswith("autotune_") and name != VERSION_TABLE)

    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": VERSION_TABLE,
                "include_object": ours,
                "compare_type": True,
            },
        )
        return list(compare_metadata(context, metadata))
