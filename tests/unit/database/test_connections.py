"""How connections are set up: durable, patient, replaced when they are gone."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError

from autotune.errors import StorageUnreachable
from storage import Database, LeaseHolder, Repository
from tests.unit.database.opening import execute, opened, raw


class TestConnections:
    def test_every_connection_to_sqlite_is_durable_and_patient(self, tmp_path: Path) -> None:
        with opened(f"sqlite:///{tmp_path}/x.db") as database, contextlib.ExitStack() as stack:
            for _ in range(3):
                connection = stack.enter_context(database.engine.connect())
                assert connection.exec_driver_sql("pragma journal_mode").scalar() == "wal"
                assert connection.exec_driver_sql("pragma synchronous").scalar() == 2
                assert connection.exec_driver_sql("pragma foreign_keys").scalar() == 1
                assert connection.exec_driver_sql("pragma busy_timeout").scalar() == 60_000

    def test_so_is_that_of_optuna(self, tmp_path: Path) -> None:
        with (
            opened(f"sqlite:///{tmp_path}/x.db") as database,
            database.optuna().engine.connect() as connection,
        ):
            assert connection.exec_driver_sql("pragma journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("pragma synchronous").scalar() == 2
            assert connection.exec_driver_sql("pragma busy_timeout").scalar() == 60_000

    def test_sqlite_takes_its_write_lock_when_a_writing_transaction_begins(
        self, tmp_path: Path
    ) -> None:
        """Half-way it may be too late: what was read may have changed, which is an error."""
        url = f"sqlite:///{tmp_path}/x.db"
        with (
            opened(url) as database,
            raw(f"{url}?timeout=0") as engine,
            engine.connect() as other,
            database.writing(),
            pytest.raises(OperationalError, match="locked"),
        ):
            other.exec_driver_sql("begin immediate")

    def test_a_sqlite_file_that_somebody_is_writing_to_is_opened_a_little_later(
        self, tmp_path: Path
    ) -> None:
        """Another first start, or a plain Optuna study: not yet in WAL mode, and locked."""
        with raw(f"sqlite:///{tmp_path}/x.db") as engine, engine.connect() as other:
            other.exec_driver_sql("create table trial_values (id integer)")
            other.commit()
            other.exec_driver_sql("begin immediate")
            with ThreadPoolExecutor(1) as pool:
                opening = pool.submit(Database, f"sqlite:///{tmp_path}/x.db")
                time.sleep(0.5)
                other.exec_driver_sql("commit")
                opening.result(180).engine.dispose()

    def test_the_clock_is_in_seconds_since_the_epoch(self, storage_url: str) -> None:
        with opened(storage_url) as database, database.engine.connect() as connection:
            found = connection.scalar(text(f"select {database.now()}"))
            assert isinstance(found, float)
            assert abs(found - time.time()) < 30

    def test_no_statement_is_prepared_which_a_pooler_could_lose(self, postgres_url: str) -> None:
        with opened(postgres_url) as database:
            for engine in (database.engine, database.optuna().engine):
                with engine.connect() as connection:
                    for _ in range(10):
                        connection.execute(text("select count(*) from autotune_study"))
                    prepared = text("select count(*) from pg_prepared_statements")
                    assert connection.execute(prepared).scalar_one() == 0
            database.optuna().engine.dispose()

    def test_a_connection_that_the_server_has_closed_is_replaced(self, postgres_url: str) -> None:
        with opened(postgres_url) as database:
            repository = Repository(database)
            repository.studies.submit("first", "c", {}, "/w")
            execute(
                postgres_url,
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid != pg_backend_pid()",
            )
            assert repository.studies.named("first").name == "first"


class TestLocks:
    """On PostgreSQL no lock outlives its holder, even one whose machine is lost."""

    @pytest.mark.fault(27)
    @pytest.mark.parametrize("whose", ["ours", "Optuna's"])
    def test_every_connection_has_its_limits(self, postgres_url: str, whose: str) -> None:
        with opened(postgres_url) as database, contextlib.ExitStack() as stack:
            engine = database.engine if whose == "ours" else database.optuna().engine
            for _ in range(3):
                connection = stack.enter_context(engine.connect())
                asked = [connection.exec_driver_sql(f"show {name}").scalar() for name in LIMITS]
                assert asked == list(LIMITS.values())
                told = connection.connection.dbapi_connection.info.get_parameters()
                assert told["keepalives_idle"] == "10"
                assert told["tcp_user_timeout"] == "30000"
            database.optuna().engine.dispose()

    def test_what_the_user_wants_stays(self, postgres_url: str) -> None:
        own = "&tcp_user_timeout=7000&options=-c%20lock_timeout%3D7s"
        with opened(postgres_url + own) as database, database.engine.connect() as connection:
            assert connection.exec_driver_sql("show lock_timeout").scalar() == "7s"
            idle = "idle_in_transaction_session_timeout"
            assert connection.exec_driver_sql(f"show {idle}").scalar() == LIMITS[idle]
            told = connection.connection.dbapi_connection.info.get_parameters()
            assert told["tcp_user_timeout"] == "7000"

    @pytest.mark.fault(27)
    def test_a_holder_that_was_lost_in_mid_transaction_holds_nothing_for_long(
        self, postgres_url: str
    ) -> None:
        """Its connection stands: nothing tells the server that nobody is there any more."""
        with opened(postgres_url) as database, opened(postgres_url) as lost:
            repository = Repository(database)
            lease = repository.leases.acquire("c", LeaseHolder("h", 1, 60.0))
            assert lease is not None
            seen = False
            with contextlib.suppress(DBAPIError), lost.writing() as held:
                held.execute(text("update autotune_lease set pid = 2"))
                before = time.monotonic()
                held.execute(text("set local idle_in_transaction_session_timeout = '700ms'"))
                repository.leases.renew(lease, 60.0)  # raises if it waits as long as it may
                assert time.monotonic() - before > 0.6
                state = repository.leases.state("c")
                assert state is not None
                assert state.pid == 1, "what was not committed is undone"
                seen = True
            assert seen, "only the end of what was lost may fail"

    @pytest.mark.fault(27)
    def test_whoever_waits_for_a_lock_in_vain_is_told_and_may_try_again(
        self, postgres_url: str
    ) -> None:
        impatient = "&options=-c%20lock_timeout%3D300ms"
        with opened(postgres_url) as database, opened(postgres_url + impatient) as other:
            repository = Repository(other)
            lease = repository.leases.acquire("c", LeaseHolder("h", 1, 60.0))
            assert lease is not None
            with database.writing() as held:
                held.execute(text("update autotune_lease set pid = 1"))
                with pytest.raises(StorageUnreachable, match="lock timeout"):
                    repository.leases.renew(lease, 60.0)
            repository.leases.renew(lease, 60.0)


LIMITS = {"idle_in_transaction_session_timeout": "20s", "lock_timeout": "30s"}
