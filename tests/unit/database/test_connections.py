"""How connections are set up: durable, patient, replaced when they are gone."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from storage import Database, Repository
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
            other.exec_driver_sql("create table theirs (id integer)")
            other.commit()
            other.exec_driver_sql("begin immediate")
            with ThreadPoolExecutor(1) as pool:
                opening = pool.submit(Database, f"sqlite:///{tmp_path}/x.db")
                time.sleep(0.5)
                other.exec_driver_sql("commit")
                opening.result(30).engine.dispose()

    def test_the_clock_is_in_seconds_since_the_epoch(self, storage_url: str) -> None:
        with opened(storage_url) as database, database.engine.connect() as connection:
            found = connection.scalar(text(f"select {database.now()}"))
            assert isinstance(found, float)
            assert abs(found - time.time()) < 30

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
