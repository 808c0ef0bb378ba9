"""A database: its URL, engine, schema and clock."""

import contextlib
import fcntl
import functools
import glob
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry

from autotune.errors import BadInput, StorageError
from storage import postgres
from storage.fence import install_fence
from storage.sqlite_errors import explain_sqlite_error

VERSION_TABLE = "autotune_alembic_version"
"""Not Alembic's default name, which Optuna's own migrations use."""
_MIGRATIONS = Path(__file__).parent / "migrations"
_SCHEMA_LOCK = 0x6175746F  # an arbitrary number, 'auto', that no other program takes
_OCTAL = re.compile(r"\\([0-7]{3})")
_BUSY_SECONDS = 60
_BUSY_POLL_SECONDS = 0.05
_DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
_LOCAL_FILE_SYSTEMS = {
    *(
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "bcachefs",
        "f2fs",
        "jfs",
        "nilfs2",
        "reiserfs",
    ),
    *("tmpfs", "ramfs", "rootfs", "devtmpfs", "overlay", "aufs", "ecryptfs"),
    *("fuseblk", "vfat", "exfat", "ntfs", "ntfs3", "hfsplus", "apfs", "ubifs"),
    *("squashfs", "erofs", "iso9660", "udf"),  # where SQLite itself says that it cannot write
}
"""Names as in /proc/mounts. Shared file systems have too many names to be listed."""
_SECRET_WORDS = ("password", "passwd", "secret", "token", "sslkey", "sslpassword")
_OF_USER = 0o600
"""Mode of new files."""
_NOW = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "extract(epoch from clock_timestamp())::double precision",
}


class Database:
    """An open database with both schemas, ours and Optuna's, at the newest version."""

    def __init__(self, url: str) -> None:
        """Open the database; create or upgrade the tables.

        Args:
            url: SQLAlchemy URL of a SQLite file or a PostgreSQL database.

        Raises:
            BadInput: the URL cannot be used.
            StorageError: the database cannot be reached, or is newer than this program.
        """
        self.url = parse(url)
        self.engine = _engine(self.url)
        try:
            self._prepare()
            self.optuna()
        except RuntimeError as error:
            raise StorageError(f"storage {self}: {error}") from None
        except (DBAPIError, StorageInternalError, OSError, sqlite3.Error) as error:
            raise StorageError(f"storage {self}: {self.reason(error)}{self._hint()}") from None
        except (TypeError, ValueError) as error:
            raise BadInput(f"storage {self}: an option of the URL is wrong: {error}") from None

    def __str__(self) -> str:
        """Return the URL without its secrets."""
        hidden = self.url.update_query_dict(
            {
                key: "***"
                for key in self.url.query
                if any(word in key.lower() for word in _SECRET_WORDS)
            }
        )
        return hidden.render_as_string(hide_password=True)

    @property
    def folder(self) -> Path | None:
        """Folder of the SQLite file; None for a server."""
        sqlite = self.url.get_backend_name() == "sqlite"
        return Path(str(self.url.database)).parent if sqlite else None

    def now(self) -> str:
        """Return SQL for the database's own clock, in seconds since the epoch."""
        return _NOW[self.engine.dialect.name]

    def optuna(self) -> RDBStorage:
        """Return Optuna's storage, which holds the trials."""
        return self._optuna

    @functools.cached_property
    def _optuna(self) -> RDBStorage:
        # It reads all of Optuna's migrations to see that the tables are at the newest version.
        found = RDBStorage(
            self.url.render_as_string(hide_password=False),
            engine_kwargs=_engine_arguments(self.url),
            skip_table_creation=True,
        )
        install_fence(found.engine)
        return found

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a write transaction. SQLite takes its write lock at the start, not half-way."""
        with _writing(self.engine) as connection:
            yield connection

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
        secrets = [self.url.password, *self.url.query.values()]
        for secret in secrets:
            if isinstance(secret, str) and secret:
                text = text.replace(secret, "***")
        return text

    def _hint(self) -> str:
        if self.folder:
            return ""
        return "; check that the server runs, that the database exists and that it may be written"

    def _prepare(self) -> None:
        if not self._missing() and self._current():
            return
        with self._schema_lock():
            if self._missing():
                self._create_aside()
            elif not self._current():
                _create_tables(self.url, self.engine)

    def _missing(self) -> bool:
        if self.engine.dialect.name != "sqlite":
            return False
        path = Path(str(self.url.database))
        return not path.exists() or (path.is_file() and path.stat().st_size == 0)

    def _create_aside(self) -> None:
        """Create a new SQLite file and give it its name once it is complete.

        Optuna's tables are not created in one transaction there, and half of them would never be
        completed.
        """
        path = Path(str(self.url.database))
        unfinished = path.with_name(path.name + ".new")
        for leftover in path.parent.glob(f"{glob.escape(unfinished.name)}*"):
            leftover.unlink()
        # For this user alone; what SQLite writes beside it has the same mode.
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OF_USER))
        url = self.url.set(database=str(unfinished))
        engine = _engine(url)
        _create_tables(url, engine)
        engine.dispose()  # with its last connection the write-ahead log goes into the file
        unfinished.replace(path)

    def _current(self) -> bool:
        with self.engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
            found = context.get_current_revision()
        head, known = _revisions()
        if found is not None and found not in known:
            raise StorageError(
                f"storage {self} was written by a newer autotune (schema {found}); upgrade autotune"
            )
        return found == head

    @contextlib.contextmanager
    def _schema_lock(self) -> Iterator[None]:
        """Keep other processes from creating the tables at the same time."""
        if self.engine.dialect.name == "postgresql":
            with self.engine.connect() as connection:
                for unlimited in postgres.unlimited():
                    connection.execute(text(unlimited))
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
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _OF_USER)  # others could hold it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


@functools.cache
def _revisions() -> tuple[str | None, frozenset[str]]:
    """Return the newest of our migrations, and all of them."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    script = ScriptDirectory.from_config(config)
    return script.get_current_head(), frozenset(r.revision for r in script.walk_revisions())


def _create_tables(url: URL, engine: Engine) -> None:
    """Create Optuna's tables and ours at their newest versions."""
    optunas = RDBStorage(
        url.render_as_string(hide_password=False), engine_kwargs=_engine_arguments(url)
    )
    optunas.engine.dispose()
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    with _writing(engine) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


@contextlib.contextmanager
def _writing(engine: Engine) -> Iterator[Connection]:
    options = {"autotune_writes": True}
    with engine.connect().execution_options(**options) as connection, connection.begin():
        yield connection


def parse(url: str) -> URL:
    """Return the URL, checked, with the driver that is used here.

    Raises:
        BadInput: the text is no URL, or names an unsupported database.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise BadInput(
            "the storage must be a URL such as sqlite:///autotune.db or "
            "postgresql://user@host/database"
        ) from None
    backend = parsed.drivername.partition("+")[0]
    if backend not in _DRIVERS:
        raise BadInput(
            f"storage of kind {backend!r} is not supported; use sqlite:///FILE or postgresql://..."
        )
    if parsed.drivername not in (backend, _DRIVERS[backend]):
        raise BadInput(
            f"the driver of {parsed.drivername!r} is not used here; use sqlite:///FILE or "
            "postgresql://..."
        )
    parsed = parsed.set(drivername=_DRIVERS[backend])
    if "@" in (parsed.host or ""):
        raise BadInput(
            "storage: write an @ in the password as %40, so that the host can be recognised"
        )
    if backend == "sqlite":
        return _checked_file(parsed)
    return parsed


def _checked_file(url: URL) -> URL:
    if url.host:
        raise BadInput(f"a SQLite file has no host; use sqlite:///{url.host}/... for a file")
    if not url.database or url.database == ":memory:":
        raise BadInput("a study outlives its process: use sqlite:///FILE, not a database in memory")
    path = _where(Path(url.database).expanduser().absolute())
    kind = file_system(path.parent)
    if not is_local(kind):
        raise BadInput(
            f"storage {path} is on {kind or 'an unknown file system'}, which is not known to be local: "
            "on file systems that machines share SQLite loses data; use a local folder or postgresql://..."
        )
    return url.set(database=str(path))


def _where(path: Path) -> Path:
    """Return the real path of the file, which may not exist yet.

    SQLite follows links, too, and writes beside the real file.
    """
    real = Path(os.path.realpath(path))
    if real.is_symlink():  # realpath stops where a chain of links does not end
        raise BadInput(f"storage {path}: this link leads to itself; name another file")
    for folder in (path.parent, real.parent):
        if not folder.is_dir():
            raise BadInput(f"storage {path}: the folder {folder} does not exist; create it first")
    return real


def is_local(kind: str) -> bool:
    """Return whether a file system surely belongs to one machine alone.

    Names are those that `file_system` returns.
    """
    return kind in _LOCAL_FILE_SYSTEMS


def file_system(path: Path) -> str:
    """Return kind of the file system that holds the path, as in /proc/mounts; '' if unknown."""
    resolved = str(path.resolve())
    best, kind = "", ""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, written, mounted_kind, *_ = line.split()
        mount = _OCTAL.sub(lambda found: chr(int(found[1], 8)), written)  # a space is written \\040
        inside = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, mounted_kind
    return kind


def _engine_arguments(url: URL) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": _BUSY_SECONDS}}
    return postgres.engine_arguments(url)


def _engine(url: URL) -> Engine:
    try:
        engine = create_engine(url, **_engine_arguments(url))
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
