"""Engines of SQLAlchemy for SQLite and PostgreSQL, and their write transactions."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry

from autotune.errors import BadInput
from storage import postgres

_BUSY_SECONDS = 60
_BUSY_POLL_SECONDS = 0.05


def engine_arguments(url: URL) -> dict[str, Any]:
    """Return the arguments of create_engine for a URL."""
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": _BUSY_SECONDS}}
    return postgres.engine_arguments(url)


def open_engine(url: URL) -> Engine:
    """Return an engine whose transactions begin where SQLAlchemy says.

    Raises:
        BadInput: an option of the URL is wrong, or its driver is not installed.
    """
    try:
        engine = create_engine(url, **engine_arguments(url))
    except NoSuchModuleError as error:
        raise BadInput(f"storage: {error}") from None
    except (TypeError, ValueError) as error:
        options = ", ".join(url.query)
        raise BadInput(f"storage: an option of the URL ({options}) is wrong: {error}") from None
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _on_sqlite_connect(connection: Any, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions begin where SQLAlchemy says, see below
    cursor = connection.cursor()
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    _switch_to_wal(cursor)
    cursor.close()


def _switch_to_wal(cursor: Any) -> None:
    """Turn on the write-ahead log, so that readers do not wait for the writer.

    SQLite's busy timeout does not apply to this statement.
    """
    give_up = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(_BUSY_POLL_SECONDS)


def _on_sqlite_begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("autotune_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextlib.contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a write transaction. SQLite takes its write lock at the start, not half-way."""
    options = {"autotune_writes": True}
    with engine.connect().execution_options(**options) as connection, connection.begin():
        yield connection
