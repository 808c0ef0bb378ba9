"""Transactions on the `autotune_*` tables, behind the fence that rejects late writes.

A daemon writes through `fenced` only: in the same transaction it proves that its lease is still the
newest of its study, so that a daemon which was suspended and came back cannot write late.

The row of a lease is always locked before the row of a study, as `fenced` does: two transactions
with different orders could deadlock.
"""

import contextlib
from collections.abc import Iterator

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.orm import Session

from autotune.errors import StorageError, StorageUnreachable
from storage.database import Database
from storage.fence import prove
from storage.host import Moment, on_this_machine
from storage.records import Lease

_CLAIM_LOCK = 0x636C6D61  # an arbitrary number, 'clma', that no other program takes
_READ_ONLY = "25006"
"""read_only_sql_transaction: a standby or a former primary; see PostgreSQL's error codes."""


class Transactions:
    """Transactions on one database, with errors of our own.

    Raises, from each of them:
        StorageUnreachable: the database cannot be reached at present.
        StorageError: the database refuses the statement.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a transaction that writes nothing."""
        with self._translating_errors(), Session(self._database.engine) as session:
            yield session

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a transaction that needs no lease, for requests of users."""
        with (
            self._translating_errors(),
            self._database.writing() as connection,
            Session(connection, expire_on_commit=False) as session,
        ):
            yield session
            session.flush()

    @contextlib.contextmanager
    def fenced(self, lease: Lease) -> Iterator[Session]:
        """Open a transaction of a daemon, which locks the row of its lease until the end.

        Raises:
            StaleLease: another daemon has the lease; nothing is written.
        """
        with self.writing() as session:
            prove(session.connection(), lease)
            yield session

    def now(self, session: Session) -> float:
        """Return the seconds since the epoch, by the database's clock."""
        return float(session.scalar(text(f"select {self._database.now()}")))

    def check_not_upgraded(self, session: Session) -> None:
        """Check that no other process has upgraded the tables.

        Raises:
            StorageError: they are of another version.
        """
        self._database.check_not_upgraded(session.connection())

    def claim_alone(self, session: Session) -> None:
        """Have other claims wait until this transaction ends, for one to count what others took.

        SQLite has one writer in any case.
        """
        if self._database.folder is None:
            session.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _CLAIM_LOCK})

    def moment(self, session: Session) -> Moment:
        """Return the present moment, by the clocks that leases are judged by."""
        now = self.now(session)
        return Moment(now) if self._database.folder is None else on_this_machine(now)

    @contextlib.contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except DBAPIError as error:
            if _is_transient(error):
                self._database.forget_connections()
                kind: type[StorageError] = StorageUnreachable
            else:
                kind = StorageError
            raise kind(f"storage {self._database}: {self._database.reason(error)}") from error


def _is_transient(error: DBAPIError) -> bool:
    """Return whether the database is unreachable or read-only at present, as during a fail-over."""
    gone = isinstance(error, OperationalError | InterfaceError)
    read_only = getattr(error.orig, "sqlstate", None) == _READ_ONLY
    return gone or read_only or error.connection_invalidated
