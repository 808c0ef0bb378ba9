"""Names of the studies in a storage, read without changing anything there."""

import contextlib
import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, create_engine, select
from sqlalchemy.exc import SQLAlchemyError

from storage.database import parse
from storage.models import StudyRow

_PATIENCE = 5
"""Seconds for a file that is locked, or a server that does not answer."""


def study_names(url: str) -> frozenset[str]:
    """Read the names of all studies; none where the storage is not there yet, or cannot be read.

    Args:
        url: SQLAlchemy URL of a SQLite file or a PostgreSQL database.

    Raises:
        BadInput: the URL cannot be used.
    """
    parsed = parse(url)
    if parsed.get_backend_name() == "sqlite":
        return _of_file(Path(str(parsed.database)))
    with contextlib.suppress(SQLAlchemyError):
        return _of_server(parsed)
    return frozenset()


def _of_file(path: Path) -> frozenset[str]:
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    statement = str(select(StudyRow.name))
    with contextlib.suppress(sqlite3.Error):
        connection = sqlite3.connect(address, timeout=_PATIENCE, uri=True)
        with contextlib.closing(connection):
            return frozenset(name for (name,) in connection.execute(statement))
    return frozenset()


def _of_server(url: URL) -> frozenset[str]:
    engine = create_engine(url, connect_args={"connect_timeout": _PATIENCE})
    try:
        with engine.connect() as connection:
            return frozenset(connection.scalars(select(StudyRow.name)))
    finally:
        engine.dispose()
