"""Engines of SQLAlchemy for SQLite and PostgreSQL: options, write transactions, errors explained.

Peers of PostgreSQL that died are noticed, and locks do not outlive their holder.
"""

import contextlib
import os
import re
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from autotune.errors import BadInput
from storage.disk import full, is_full

_BUSY_SECONDS = 60
_BUSY_POLL_SECONDS = 0.05
_CONNECT_SECONDS = 10
"""Timeout for a server to answer a new connection."""
_CONNECT: dict[str, int | None] = {
    "connect_timeout": _CONNECT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,  # ms; what was sent and is not acknowledged
    "prepare_threshold": None,  # psycopg's own: poolers lose prepared statements
}
"""Options of libpq, in seconds: a server that has silently gone is noticed within half a minute."""
_ALWAYS = {"hide_parameters": True}
"""Arguments of any engine: what a statement writes is no matter of a traceback."""
_SESSION = {
    "idle_in_transaction_session_timeout": "20s",
    "lock_timeout": "30s",
}
"""Settings of the server.

Transactions here take milliseconds. An idle one belongs to a machine that was lost or stopped, and
a process that waits for its locks outlasts it."""
_SET = "select set_config(name, %s, false) from pg_settings where name = %s and setting = '0'"
_LOGS = ("-wal", "-journal")
"""Suffixes of the files in which SQLite keeps what it has not written into a database yet."""
_BESIDE = (*_LOGS, "-shm")
"""Suffixes of the files that SQLite keeps beside a database."""
OF_USER = 0o600
"""Mode of a new file, for this user alone; what SQLite writes beside it has the same."""
_BACK_LATER = ("53300", "57P01", "57P02", "57P03")
"""Error codes of PostgreSQL: too many connections; shut down, crashed, being started."""
_FULL = re.compile(
    "too many (clients|connections)|connection slots are reserved|no more connections"
)
"""Words of PostgreSQL and PgBouncer for a connection too many, for which libpq gives no code."""
_DAMAGED = ("SQLITE_NOTADB", "SQLITE_CORRUPT")


def engine_arguments(url: URL) -> dict[str, Any]:
    """Return the arguments of create_engine for a URL."""
    if url.get_backend_name() == "sqlite":
        return {**_ALWAYS, "connect_args": {"timeout": _BUSY_SECONDS}}
    return {**_ALWAYS, **_arguments_of_postgres(url)}


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


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield the path of a file that takes the place of `path` once the block has written it.

    A writer that fails, or is killed, leaves nothing of this name that looks complete.

    Raises:
        BadInput: a log of an earlier file of this name is there.
    """
    refuse_log_of_earlier(path)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # OF_USER
    os.close(descriptor)
    unfinished = Path(name)
    try:
        yield unfinished
        unfinished.replace(path)
    except BaseException:
        _remove(unfinished)
        raise


def refuse_log_of_earlier(path: Path) -> None:
    """Refuse to make a SQLite file beside the log of an earlier one, which may hold what it lacks.

    SQLite would write the log into the new file, or remove it with an empty one.

    Raises:
        BadInput: a log is there, and the file is missing or empty.
    """
    logs = [path.with_name(path.name + suffix) for suffix in _LOGS]
    found = [log for log in logs if _bytes_of(log)]
    if found and not _bytes_of(path):  # asked last: another process may be making the file
        raise BadInput(
            f"{found[0]} is of an earlier {path.name}, which is gone, and holds what was written there "
            "last: put that file back, or move its log to where it is; if it is not wanted any more, "
            f"remove {found[0].name}"
        )


def _bytes_of(path: Path) -> int:
    """Return the size of a file; 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _remove(path: Path) -> None:
    """Remove a SQLite file, with the files beside it."""
    for suffix in ("", *_BESIDE):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def open_to_read(path: Path) -> Engine:
    """Return an engine that reads a SQLite file, and writes neither to it nor beside it.

    Without a write-ahead log the file is complete. SQLite then needs no files beside it, and reads
    also where the folder cannot be written.
    """
    logged = path.with_name(f"{path.name}-wal").exists()
    address = f"{path.absolute().as_uri()}?{'mode=ro' if logged else 'immutable=1'}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(address, _BUSY_SECONDS, isolation_level=None, uri=True)

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, **_ALWAYS)
    event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _arguments_of_postgres(url: URL) -> dict[str, Any]:
    """Return arguments for create_engine.

    Options in the URL take precedence, and so do settings that the server has for this user or
    database.
    """
    options = {name: value for name, value in _CONNECT.items() if name not in url.query}
    return {
        "connect_args": options,
        "pool_pre_ping": True,
        "pool_events": [(_on_postgres_connect, "connect")],
    }


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


def unlimited() -> list[str]:
    """Return SQL for a transaction without these limits.

    An example is one that others wait for by intention.
    """
    return [f"set local {name} = 0" for name in _SESSION]


def _on_postgres_connect(connection: Any, _: ConnectionPoolEntry) -> None:
    with connection.cursor() as cursor:
        for name, value in _SESSION.items():
            cursor.execute(_SET, (value, name))
    connection.commit()


def is_away(url: URL, error: BaseException | None = None) -> bool:
    """Return whether the server of a URL does not answer, or is being started or shut down, or full.

    One that refuses a user, a password or a database does answer.

    Args:
        error: what it has answered, if it has.
    """
    if url.get_backend_name() == "sqlite":
        return False
    if getattr(error, "sqlstate", None) in _BACK_LATER or _FULL.search(str(error)):
        return True
    import psycopg  # a tenth of a second, which SQLite does not take
    from psycopg import conninfo, pq

    _, options = url.get_dialect()().create_connect_args(url)
    known = {"connect_timeout": _CONNECT_SECONDS, **options}
    try:
        address = conninfo.make_conninfo(**known)
    except psycopg.Error:  # an option is wrong
        return False
    return pq.PGconn.ping(address.encode()) in (pq.Ping.NO_RESPONSE, pq.Ping.REJECT)


def explain_sqlite_error(error: BaseException, path: Path) -> str:
    """Return why a database file cannot be opened, read or written, and what would help.

    Args:
        error: error of SQLite or of the operating system.
    """
    name = getattr(error, "sqlite_errorname", "")
    said = str(error).strip().partition("\n")[0] or type(error).__name__
    if name == "SQLITE_FULL" or is_full(path.parent):
        return f"{full(path.parent)}, which SQLite needs to write ({said}); free some"
    if path.is_dir():
        return "that is a folder, not a file"
    if name.startswith(_DAMAGED):
        return f"the file is no database of SQLite, or is damaged ({said})"
    if name.startswith("SQLITE_BUSY"):
        return f"another program keeps the file locked ({said})"
    if path.exists() and not os.access(path, os.R_OK):
        return f"it may not be read ({said}): run this as the owner of the file"
    if name.startswith("SQLITE_READONLY") or not _may_be_written(path):
        return (
            f"it may not be written ({said}): SQLite writes to the file and to others beside it, so "
            f"that it and {path.parent} must be writable for you; --storage takes another place"
        )
    return said


def _may_be_written(path: Path) -> bool:
    return os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))
