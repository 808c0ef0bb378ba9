"""A database: its URL, engine, schema and clock."""

import contextlib
import fcntl
import functools
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from autotune.errors import BadInput, StorageError, StorageUnreachable
from storage import schema
from storage.disk import full, lacks_space
from storage.engines import (
    OF_USER,
    engine_arguments,
    explain_sqlite_error,
    is_away,
    open_engine,
    open_to_read,
    refuse_log_of_earlier,
    unlimited,
    writing,
    written_aside,
)
from storage.fence import install_fence
from storage.urls import parse

_SCHEMA_LOCK = 0x6175746F  # an arbitrary number, 'auto', that no other program takes
_SECRET_WORDS = ("password", "passwd", "secret", "token", "sslkey", "sslpassword")
_NO_ROOM = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_WRITE")
"""Errors of a file that SQLite writes."""
_NO_STORAGE = "{path} holds no studies of autotune; name the file of a storage, or of a backup"
_IDENTITY = (
    "select concat_ws(' ', system_identifier, d.oid, current_schema()) "
    "from pg_control_system(), pg_database d where datname = current_database()"
)
_NOW = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "extract(epoch from clock_timestamp())::double precision",
}


class Database:
    """An open database.

    One of an older schema is read through a copy as it was when it was opened; one of a newer schema
    is read as it is.
    """

    def __init__(self, url: str, *, existing: bool = False) -> None:
        """Open the database; create the tables where there are none.

        Args:
            url: SQLAlchemy URL of a SQLite file or a PostgreSQL database.
            existing: whether a SQLite file without the tables is refused.

        Raises:
            BadInput: the URL cannot be used, or its SQLite file is of another program.
            StorageUnreachable: its server does not answer at present.
            StorageError: the database cannot be used.
        """
        self.url = parse(url)
        self._refuse_file_of_others(existing=existing)
        self.engine = open_engine(self.url)
        self.schema = ""
        """Version of its tables where it is not that of this program: it is read only then."""
        try:
            try:
                self._open_tables()
            except (DBAPIError, StorageInternalError) as error:
                if self.folder or is_away(self.url, _original(error)):
                    raise
                self._open_tables()  # the server may have come back between connection and question
        except RuntimeError as error:
            raise StorageError(f"storage {self}: {error}") from None
        except (DBAPIError, StorageInternalError, OSError, sqlite3.Error) as error:
            kind = StorageUnreachable if is_away(self.url, _original(error)) else StorageError
            raise kind(f"storage {self}: {self.reason(error)}{self._hint()}") from None
        except (TypeError, ValueError) as error:
            raise BadInput(f"storage {self}: an option of the URL is wrong: {error}") from None

    def __str__(self) -> str:
        """Return the URL without its secrets."""
        hidden = self.url.update_query_dict(dict.fromkeys(self._secrets(), "***"))
        return hidden.render_as_string(hide_password=True)

    @property
    def folder(self) -> Path | None:
        """Folder of the SQLite file; None for a server."""
        sqlite = self.url.get_backend_name() == "sqlite"
        return Path(str(self.url.database)).parent if sqlite else None

    def identity(self) -> str:
        """Return what tells a database of PostgreSQL from all others, whatever its URL.

        A URL with `localhost`, or of a tunnel, leads to another database on another machine.

        Raises:
            StorageError: the server does not answer, or does not tell.
        """
        engine = open_engine(self.url)  # that of a database of an older schema reads a copy
        try:
            with engine.connect() as connection:
                return str(connection.scalar(text(_IDENTITY)))
        except DBAPIError as error:
            raise StorageError(f"storage {self}: {self.reason(error)}") from None
        finally:
            engine.dispose()

    def now(self) -> str:
        """Return SQL for the database's own clock, in seconds since the epoch."""
        return _NOW[self.engine.dialect.name]

    def optuna(self) -> RDBStorage:
        """Return Optuna's storage, which holds the trials."""
        return self._optuna

    @functools.cached_property
    def _optuna(self) -> RDBStorage:
        # It reads all of Optuna's migrations to see that the tables are at the newest version.
        url = self.engine.url
        found = RDBStorage(
            url.render_as_string(hide_password=False),
            engine_kwargs=engine_arguments(url),
            skip_table_creation=True,
        )
        install_fence(found.engine)
        return found

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a write transaction. SQLite takes its write lock at the start, not half-way.

        Raises:
            StorageError: the tables are those of another version.
        """
        self.check_writable()
        with writing(self.engine) as connection:
            yield connection

    def check_writable(self) -> None:
        """Check that the tables are those of this program.

        Raises:
            StorageError: they are of another version, with what to do.
        """
        if not self.schema:
            return
        _refuse_newer(self, self.schema)
        newest, _ = schema.revisions()
        raise StorageError(
            f"storage {self} has schema {self.schema}, and this autotune writes {newest}: what it "
            "holds can be read. `autotune storage upgrade` brings it to the newer one, which "
            "earlier versions then can only read"
        )

    def check_not_upgraded(self, connection: Connection) -> None:
        """Check that the tables still are those of this program.

        Another process may have upgraded them since they were opened.

        Raises:
            StorageError: they are of another version, with what to do.
        """
        found = schema.present_revision(connection)
        if found != schema.revisions()[0]:
            self.schema = found
        self.check_writable()

    def back_up(self, path: Path) -> None:
        """Copy the database, as it is now, into a new SQLite file at the newest schema.

        Raises:
            BadInput: the file cannot be created, or exists.
            StorageError: the database is of a newer program, or the copy failed.
        """
        if self.schema:
            _refuse_newer(self, self.schema)
        try:
            write_copy(self.engine, path)
        except DBAPIError as error:  # of a server
            raise StorageError(f"storage {self}: {self.reason(error)}") from None

    def restore(self, backup: Engine) -> None:
        """Copy the rows of another database into this one.

        Args:
            backup: database of the newest schema, see `copy_of_file`.

        Raises:
            StorageError: this one holds anything, ours or of Optuna alone, or cannot be written.
        """
        self.check_writable()
        if there := self.optuna().get_all_studies():
            raise StorageError(
                f"storage {self} has {len(there)} studies of Optuna: restore into a new one"
            )
        if tables := schema.filled(self.engine):
            raise StorageError(
                f"storage {self} is in use, or was: it holds rows in {', '.join(tables)} (leases of "
                "daemons, or the history of deleted studies, say); restore into a new one"
            )
        try:
            schema.copy_rows(backup, self.engine)
        except DBAPIError as error:
            raise StorageError(f"storage {self}: {self.reason(error)}") from None

    def problems(self) -> list[str]:
        """Return what SQLite finds wrong with its file; a server checks its own."""
        if self.folder is None:
            return []
        engine = open_engine(self.url)  # that of a database of an older schema reads a copy
        found: list[str] = []
        try:
            with engine.connect() as connection:
                found.extend(_unsound(connection))
                found.extend(_torn(connection))
        except DBAPIError as error:
            found.append(self.reason(error))
        finally:
            engine.dispose()
        return found

    def forget_connections(self) -> None:
        """Drop pooled connections.

        Connections of PostgreSQL may lead to a server that is no longer the primary, and would do
        so for ever.
        """
        if self.folder is None:
            self.engine.dispose()
            self.optuna().engine.dispose()

    def reason(self, error: BaseException) -> str:
        """Return the driver's message in one line without secrets; for SQLite, an explanation."""
        if self.folder:
            return explain_sqlite_error(_original(error), Path(str(self.url.database)))
        text = cause_of(error)
        for secret in filter(None, (self.url.password, *chain(*self._secrets().values()))):
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> dict[str, Sequence[str]]:
        """Return the options of the URL that hold secrets, with their values."""
        options = self.url.normalized_query
        return {
            key: options[key] for key in options if any(w in key.lower() for w in _SECRET_WORDS)
        }

    def _hint(self) -> str:
        if self.folder:
            return ""
        return "; check that the server runs, that the database exists and that it may be written"

    def _refuse_file_of_others(self, *, existing: bool) -> None:
        """Refuse a SQLite file with tables that are neither ours nor Optuna's, which stays as it is.

        Args:
            existing: whether ours have to be there.

        Raises:
            BadInput: it is of another program, or gone without its log.
        """
        path = Path(str(self.url.database))
        if self.folder is None:
            return
        with contextlib.suppress(OSError):  # opening it tells what is wrong
            refuse_log_of_earlier(path)
        if not path.is_file():
            return
        with contextlib.suppress(DBAPIError, OSError):  # opening it tells what is wrong
            reader = open_to_read(path)
            lacks = existing and schema.revision_of(reader) is None
            if lacks or schema.is_strange(reader):
                raise BadInput(_NO_STORAGE.format(path=path))

    def _open_tables(self) -> None:
        """Prepare the tables and Optuna's storage; may be repeated."""
        self._prepare()
        self.optuna()

    def _prepare(self) -> None:
        """Create what is missing; prepare to read what is of another version."""
        found = None if self._missing() else schema.revision_of(self.engine)
        if found is None:
            with self._schema_lock(self.engine):
                if self._missing():
                    self._create_aside()
                elif schema.revision_of(self.engine) is None:
                    schema.create(self.engine)
            return
        newest, known = schema.revisions()
        if found != newest:
            self.schema = found
        if self.schema in known:
            self._read_copy()

    def _read_copy(self) -> None:
        """Read a copy at the newest schema from now on."""
        self._copy = tempfile.TemporaryDirectory(prefix="autotune-", ignore_cleanup_errors=True)
        original, path = self.engine, Path(self._copy.name) / "autotune.db"
        with _telling_full_temporary_disk():
            self.engine = schema.copied(original, path, newest=True)
        original.dispose()

    def upgrade(self, backup: Path | None = None) -> tuple[str, str]:
        """Bring the tables to the newest schema; return the schemas before and after.

        Args:
            backup: file for a copy of the database as it was; None: there is none.

        Raises:
            StorageError: a daemon runs studies there, the database is of a newer program, or cannot be
                written or copied.
        """
        newest, _ = schema.revisions()
        if not self.schema:
            return newest, newest
        _refuse_newer(self, self.schema)
        engine = open_engine(self.url)
        try:
            before = self._upgrade(engine, backup)
        except (DBAPIError, StorageInternalError, OSError) as error:
            raise StorageError(f"storage {self}: {self.reason(error)}") from None
        self.engine.dispose()
        self.engine, self.schema = engine, ""
        self.__dict__.pop("_optuna", None)
        return before, newest

    def _upgrade(self, engine: Engine, backup: Path | None) -> str:
        """Bring the tables to the newest schema; return the schema that they had until then.

        Another process may have brought them there since this database was opened.
        """
        with self._schema_lock(engine):
            before = schema.revision_of(engine) or self.schema
            if before == schema.revisions()[0]:
                return before
            with engine.connect() as connection:
                self._refuse_users(connection)
            if backup is not None:
                schema.copied(engine, backup, newest=False).dispose()
            try:
                # Once more: the copy may have taken minutes, in which a daemon was started.
                schema.create(engine, check=self._refuse_users)
            except StorageError:
                if backup is not None:
                    backup.unlink()  # nothing was changed
                raise
            return before

    def _refuse_users(self, connection: Connection) -> None:
        """Refuse to go on while a daemon has a lease."""
        if busy := schema.holders(connection, _NOW[connection.dialect.name]):
            raise StorageError(
                f"storage {self} is in use by {', '.join(busy)}: stop what runs there first; the "
                "lease of a daemon that has died runs out within ten seconds"
            )

    def _missing(self) -> bool:
        if self.folder is None:
            return False
        path = Path(str(self.url.database))
        return not path.exists() or (path.is_file() and path.stat().st_size == 0)

    def _create_aside(self) -> None:
        """Create a new SQLite file and give it its name once it is complete.

        Optuna's tables are not created in one transaction there, and half of them would never be
        completed.
        """
        with written_aside(Path(str(self.url.database))) as unfinished:
            engine = open_engine(self.url.set(database=str(unfinished)))
            schema.create(engine)
            engine.dispose()  # with its last connection the write-ahead log goes into the file

    @contextlib.contextmanager
    def _schema_lock(self, engine: Engine) -> Iterator[None]:
        """Keep other processes from creating the tables at the same time."""
        if engine.dialect.name == "postgresql":
            with engine.connect() as connection:
                for setting in unlimited():
                    connection.execute(text(setting))
                # The lock belongs to the transaction: in any case it ends with it.
                connection.execute(
                    text("select pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK}
                )
                try:
                    yield
                finally:
                    connection.rollback()
            return
        path = f"{self.url.database}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, OF_USER)  # others could hold it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _unsound(connection: Connection) -> list[str]:
    """Return what is wrong with the pages of a SQLite file."""
    found = connection.execute(text("pragma integrity_check")).scalars().all()
    return [line for line in found if line != "ok"]


def _torn(connection: Connection) -> list[str]:
    """Return the rows of a SQLite file that refer to rows which are not there."""
    return [
        f"a row of {table} refers to a row of {parent} that is not there"
        for table, _, parent, _ in connection.execute(text("pragma foreign_key_check"))
    ]


def schema_of_file(path: Path) -> str:
    """Return the schema of the storage in a SQLite file, which stays as it is.

    Raises:
        BadInput: there is no file, or it is no storage of autotune.
        StorageError: it cannot be read.
    """
    try:
        if path.is_dir():
            raise BadInput(f"{path} is a folder; name the SQLite file")
        if not path.is_file():
            raise BadInput(f"there is no {path}")
        found = schema.revision_of(open_to_read(path))
    except (DBAPIError, OSError) as error:
        raise StorageError(f"{path}: {explain_sqlite_error(_original(error), path)}") from None
    if found is None:
        raise BadInput(_NO_STORAGE.format(path=path))
    return found


def write_copy(source: Engine, path: Path) -> None:
    """Copy a database into a new SQLite file at the newest schema.

    Raises:
        BadInput: the file cannot be created, or exists.
        StorageError: it cannot be written.
        DBAPIError: the server that is copied has failed.
    """
    try:
        schema.copied(source, path, newest=True).dispose()
    except OSError as error:
        raise BadInput(
            f"{path} cannot be created ({error.strerror}); name a new file, in a folder that exists "
            "and that you may write to"
        ) from None
    except (DBAPIError, StorageInternalError) as error:
        original = _original(error)
        if not isinstance(original, sqlite3.Error):
            raise
        raise StorageError(f"{path}: {explain_sqlite_error(original, path)}") from None


@contextlib.contextmanager
def copy_of_file(path: Path) -> Iterator[Engine]:
    """Open a copy, at the newest schema, of the storage in a SQLite file, which stays as it is.

    Daemons that ran there hold no lease in the copy.

    Raises:
        BadInput: there is no file, or it is no storage of autotune.
        StorageError: it cannot be read, or is of a newer program.
    """
    _refuse_newer(path, schema_of_file(path))
    with tempfile.TemporaryDirectory(prefix="autotune-", ignore_cleanup_errors=True) as folder:
        try:
            with _telling_full_temporary_disk():
                copy = schema.copied(open_to_read(path), Path(folder) / "autotune.db", newest=True)
                schema.expire_leases(copy)
        except DBAPIError as error:
            raise StorageError(f"{path}: {explain_sqlite_error(_original(error), path)}") from None
        yield copy
        copy.dispose()


@contextlib.contextmanager
def _telling_full_temporary_disk() -> Iterator[None]:
    """Tell a lack of room for a copy in the temporary folder, which is not that of the original."""
    try:
        yield
    except (DBAPIError, StorageInternalError, OSError) as error:
        found = _original(error)
        name = getattr(found, "sqlite_errorname", "")
        if name not in _NO_ROOM and not lacks_space(found):  # the original is only read
            raise
        raise StorageError(
            f"{full(Path(tempfile.gettempdir()))}, where the storage is copied to be read ({found}); "
            "free some, or set TMPDIR"
        ) from None


def _refuse_newer(storage: object, found: str) -> None:
    """Refuse a schema that this program does not know."""
    newest, known = schema.revisions()
    if found not in known:
        raise StorageError(
            f"storage {storage} was written by a newer autotune (schema {found}, this one writes "
            f"{newest}): what it holds can be read; to go on with it, upgrade autotune here"
        )


def cause_of(error: BaseException) -> str:
    """Return the database driver's message in one line."""
    original = _original(error)
    lines = str(original).strip().splitlines()
    return lines[0] if lines else type(original).__name__


def _original(error: BaseException) -> BaseException:
    """Return the driver's own error."""
    while isinstance(error, StorageInternalError) and error.__cause__:
        error = error.__cause__
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig
    return error
