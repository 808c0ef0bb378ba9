"""Schema of a database: its version, its tables, and copies of older databases.

Only `upgrade` changes the schema of a database that has one. An older database is read through a
copy that is brought to the present schema.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from optuna.storages import RDBStorage
from optuna.storages._rdb.models import BaseModel
from sqlalchemy import URL, Connection, Engine, MetaData, Table, inspect, select, text

from storage.engines import (
    OF_USER,
    engine_arguments,
    open_engine,
    unlimited,
    writing,
    written_aside,
)
from storage.host import is_gone
from storage.lease_keys import is_waiting
from storage.models import Base

VERSION_TABLE = "autotune_alembic_version"
"""Not Alembic's default name, which Optuna's own migrations use."""
_VERSION_TABLES = (VERSION_TABLE, "alembic_version", "version_info")
"""Tables that say what a database is, and not what it holds."""
_MIGRATIONS = Path(__file__).parent / "migrations"
_ROWS = 1000
"""Rows that are copied at a time."""


@functools.cache
def revisions() -> tuple[str, frozenset[str]]:
    """Return the newest of our schemas, and all of them."""
    script = ScriptDirectory.from_config(_config())
    return str(script.get_current_head()), frozenset(r.revision for r in script.walk_revisions())


def revision_of(engine: Engine) -> str | None:
    """Return the schema of a database; None where it has none of our tables."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        return context.get_current_revision()


def present_revision(connection: Connection) -> str:
    """Return the schema of a database with our tables, as a transaction sees it."""
    return str(connection.scalar(text(f"select version_num from {VERSION_TABLE}")))


def is_strange(engine: Engine) -> bool:
    """Return whether a database has tables, and none of ours nor of Optuna."""
    known = {VERSION_TABLE, *BaseModel.metadata.tables}
    tables = set(inspect(engine).get_table_names())
    return bool(tables) and not tables & known


def create(
    engine: Engine,
    revision: str = "head",
    check: Callable[[Connection], object] = lambda _: None,
) -> None:
    """Create Optuna's tables and ours, or bring ours to a newer schema.

    Args:
        check: raises if ours are to stay as they were. It is called last in their transaction.
    """
    address = engine.url.render_as_string(hide_password=False)
    optunas = RDBStorage(address, engine_kwargs=engine_arguments(engine.url))
    optunas.engine.dispose()
    config = _config()
    with writing(engine) as connection:
        for setting in unlimited() if engine.dialect.name == "postgresql" else ():
            connection.execute(text(setting))  # a migration idles while it computes
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        check(connection)


def holders(connection: Connection, now: str) -> list[str]:
    """Return the processes that hold a lease in a database of any schema, in words.

    One that waits for a single study uses nothing of it, and looks at the schema before it does.

    Args:
        now: SQL for the database's clock.
    """
    table = Table("autotune_lease", MetaData(), autoload_with=connection)
    held = connection.execute(select(table).where(text(f"expires > {now}"))).mappings()
    living = [
        row
        for row in held
        if not is_waiting(row.get("key", ""))
        and not is_gone(row["host"], row["pid"], row.get("started"))
    ]
    return sorted({f"process {row['pid']} on {row['host'].split()[0]}" for row in living})


def copied(source: Engine, path: Path, *, newest: bool) -> Engine:
    """Copy a database of any of our schemas into a new SQLite file; return its engine.

    Args:
        path: of the file, which is written by this process alone, or else not at all.
        newest: bring the copy to the newest schema.

    Raises:
        OSError: the file exists, or cannot be created.
    """
    path.touch(OF_USER, exist_ok=False)
    try:
        with written_aside(path) as unfinished:
            target = _engine_of(unfinished)
            create(target, revision_of(source) or "head")
            copy_rows(source, target)
            if newest:
                create(target)
            target.dispose()  # with its last connection the write-ahead log goes into the file
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return _engine_of(path)


def _engine_of(path: Path) -> Engine:
    return open_engine(URL.create("sqlite", database=str(path)))


def expire_leases(engine: Engine) -> None:
    """Let the leases of a copy be over, as if they had had no holder.

    The daemons that hold them write to the original, and none of the copy is their successor.
    """
    over = "expires = 0, boot_expires = 0, host = '', pid = 0, started = null"
    with writing(engine) as connection:
        connection.execute(text(f"update autotune_lease set {over}"))


def copy_rows(source: Engine, target: Engine) -> None:
    """Copy the rows of Optuna's tables and ours into the empty tables of another database."""
    there = MetaData()
    there.reflect(target)
    known = set(inspect(source).get_table_names())
    with _at_one_moment(source) as reading, writing(target) as connection:
        for table in there.sorted_tables:
            if table.name in known and table.name not in _VERSION_TABLES:
                for rows in _rows(reading, Table(table.name, MetaData(), autoload_with=source)):
                    connection.execute(table.insert(), rows)
        if target.dialect.name == "postgresql":
            for table in there.sorted_tables:
                _advance_sequence(connection, table)


def filled(engine: Engine) -> list[str]:
    """Return the names of our tables that have rows."""
    with engine.connect() as connection:
        tables = Base.metadata.sorted_tables
        return [one.name for one in tables if connection.execute(select(one).limit(1)).first()]


@contextlib.contextmanager
def _at_one_moment(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that sees the whole database as it is at its beginning."""
    on_server = engine.dialect.name == "postgresql"
    options = {"isolation_level": "REPEATABLE READ"} if on_server else {}
    with engine.connect().execution_options(**options) as connection:
        for setting in unlimited() if on_server else ():
            connection.execute(text(setting))  # it idles while the rows are written elsewhere
        yield connection


def _rows(connection: Connection, table: Table) -> Iterator[list[dict[str, Any]]]:
    # Without a cursor of the server psycopg fetches the whole table at once.
    found = connection.execute(select(table).execution_options(stream_results=True)).mappings()
    while rows := found.fetchmany(_ROWS):
        yield [dict(row) for row in rows]


def _advance_sequence(connection: Connection, table: Table) -> None:
    """Let a serial column go on behind the largest number that was copied."""
    keys = [column for column in table.primary_key if column.autoincrement is True]
    keys += [c for c in table.primary_key if c.server_default is not None and c not in keys]
    for column in keys:
        sequence = "pg_get_serial_sequence(:table, :column)"
        largest = f'(select coalesce(max("{column.name}"), 0) + 1 from {table.name})'
        advance = text(f"select setval({sequence}, {largest}, false)")
        connection.execute(advance, {"table": table.name, "column": column.name})


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config
