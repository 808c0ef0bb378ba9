"""Proof of the lease in every transaction in which a daemon writes.

Our own tables are written through `storage.transactions`, which proves the lease first. Optuna
opens its own transactions, several for one trial. Inside `fencing` each of them proves the lease
before its first write, too, so that a daemon which wakes late while it asks for a trial leaves none
behind.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Connection, Engine, event, update
from sqlalchemy.engine.interfaces import ExecutionContext

from autotune.errors import StaleLease
from storage.models import LeaseRow
from storage.records import Lease

_WRITER: ContextVar[Lease | None] = ContextVar("writer", default=None)
_PROVEN = "autotune_lease_proven"
"""Key in the info of a connection whose transaction holds the row of the lease already."""


def prove(connection: Connection, lease: Lease) -> None:
    """Lock the row of a lease until the transaction ends.

    Raises:
        StaleLease: another daemon has the lease, or it was revoked.
    """
    # A write, not a read: it locks the row until this transaction ends.
    proof = connection.execute(
        update(LeaseRow)
        .where(
            LeaseRow.key == lease.key,
            LeaseRow.epoch == lease.epoch,
            LeaseRow.token == lease.token,
        )
        .values(epoch=lease.epoch)
    )
    if proof.rowcount != 1:
        raise StaleLease(
            f"another daemon has taken over {lease.key}, or its study was stopped while this one "
            "slept; what it did is not written"
        )


@contextlib.contextmanager
def fencing(lease: Lease | None) -> Iterator[None]:
    """Write what Optuna writes in this thread under the lease; None: without a lease."""
    before = _WRITER.set(lease)
    try:
        yield
    finally:
        _WRITER.reset(before)


def install_fence(engine: Engine) -> None:
    """Make `fencing` apply to all transactions of Optuna's engine."""
    event.listen(engine, "begin", _on_begin)
    event.listen(engine, "before_cursor_execute", _on_statement)


def _on_begin(connection: Connection) -> None:
    connection.info.pop(_PROVEN, None)


def _on_statement(
    connection: Connection,
    _cursor: Any,
    statement: str,
    _parameters: Any,
    context: ExecutionContext | None,
    _many: bool,
) -> None:
    lease = _WRITER.get()
    if lease is None or connection.info.get(_PROVEN) or not _locks(statement, context):
        return
    connection.info[_PROVEN] = True  # before the proof, which is a statement as well
    prove(connection, lease)


def _locks(statement: str, context: Any) -> bool:
    """Return whether a statement writes, or locks rows for a write.

    The lease must be locked before that.
    """
    writes = context is not None and (context.isinsert or context.isupdate or context.isdelete)
    return writes or "FOR UPDATE" in statement.upper()
