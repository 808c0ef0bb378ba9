"""The leases of clusters: at most one daemon runs the studies of each."""

import contextlib
import secrets

from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from autotune.errors import LeaseLost
from storage.clocks import Moment
from storage.holders import is_gone, started
from storage.models import LeaseRow
from storage.records import Lease, LeaseState
from storage.transactions import Transactions

_TOKEN_BYTES = 16


class Leases:
    """Leases on clusters, judged by the database's clock."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def acquire(self, cluster: str, host: str, pid: int, seconds: float) -> Lease | None:
        """Take the lease of a cluster if it is free; return None if it is held.

        A holder on this machine whose process is dead no longer holds it.
        """
        with self._transactions.writing() as session:
            now = self._transactions.moment(session)
            row = session.get(LeaseRow, cluster, with_for_update=True)
            if row is not None and is_held(row, now):
                return None
            if row is None:
                row = LeaseRow(cluster=cluster, epoch=0)
            pid_before, since = (row.pid, row.started) if row.host == host else (None, None)
            row.epoch, row.host, row.pid = row.epoch + 1, host, pid
            token = secrets.token_hex(_TOKEN_BYTES)
            row.started, row.token = started(host, pid), token
            for name, value in now.until(seconds).items():
                setattr(row, name, value)
            session.add(row)
            try:
                session.flush()
            except IntegrityError:
                return None  # another daemon was first to open this cluster
            return Lease(cluster, row.epoch, pid_before, since, token)

    def renew(self, lease: Lease, seconds: float) -> None:
        """Extend the lease to this many seconds from now.

        Raises:
            LeaseLost: another daemon has it.
        """
        with self._transactions.fenced(lease) as session:
            until = self._transactions.moment(session).until(seconds)
            session.execute(update(LeaseRow).where(LeaseRow.cluster == lease.cluster).values(until))

    def release(self, lease: Lease) -> None:
        """Let another daemon have the lease at once."""
        with contextlib.suppress(LeaseLost):
            self.renew(lease, 0.0)

    def reclaim(self, state: LeaseState) -> None:
        """End the lease of a holder that is known to be dead; no effect if it has changed hands."""
        with self._transactions.writing() as session:
            session.execute(
                update(LeaseRow)
                .where(LeaseRow.cluster == state.cluster, LeaseRow.epoch == state.epoch)
                .values(expires=0.0, boot_expires=0.0)
            )

    def state(self, cluster: str) -> LeaseState | None:
        """Return the present or last holder of a cluster's lease; None if there was none."""
        with self._transactions.reading() as session:
            row = session.get(LeaseRow, cluster)
            if row is None:
                return None
            left = self._transactions.moment(session).left(row)
            gone = is_gone(row.host, row.pid, row.started)
            return LeaseState(row.cluster, row.epoch, row.host, row.pid, left, gone)

    def holder(self, cluster: str) -> LeaseState | None:
        """Return the present holder of a cluster's lease; None if it is free or its holder is dead."""
        state = self.state(cluster)
        held = state is not None and state.seconds_left > 0 and not state.gone
        return state if held else None


def is_held(row: LeaseRow, now: Moment) -> bool:
    """Return whether a lease is held by a process that is not known to be dead."""
    return now.left(row) > 0 and not is_gone(row.host, row.pid, row.started)


def revoke(row: LeaseRow) -> None:
    """Take a lease from a holder that has let it expire.

    The holder may only be asleep: it can write no more.
    """
    row.epoch, row.token = row.epoch + 1, None
