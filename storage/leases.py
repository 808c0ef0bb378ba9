"""Leases: at most one daemon runs a study, and a queue is known to have a daemon.

A process that waits for a single study of a queue has a lease of its own, too.
"""

import contextlib
import secrets
from collections.abc import Collection, Iterable

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from autotune.errors import StaleLease
from storage.host import Moment, is_gone, started
from storage.lease_keys import key_of, waiting_key
from storage.models import LeaseRow
from storage.records import Lease, LeaseHolder, LeaseState, StoredStudy, StudyState
from storage.transactions import Transactions

_TOKEN_BYTES = 16


class Leases:
    """Leases on studies and queues, judged by the database's clock."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def acquire(self, key: str, holder: LeaseHolder) -> Lease | None:
        """Take a lease if it is free; return None if it is held.

        The key is the name of a queue, or that of `waiting_key`. The lease of a study is taken by
        claiming the study.

        A holder on this machine whose process is dead no longer holds it.
        """
        with self._transactions.writing() as session:
            now = self._transactions.moment(session)
            row = session.get(LeaseRow, key, with_for_update=True)
            if row is not None and is_held(row, now):
                return None
            if row is None:
                row = free(key)
                session.add(row)
            taken = hand_over(row, holder, now)
            try:
                session.flush()
            except IntegrityError:
                return None  # another daemon was first to take it
            return taken

    def renew(self, lease: Lease, seconds: float) -> None:
        """Extend the lease to this many seconds from now.

        Raises:
            StaleLease: another daemon has it.
        """
        with self._transactions.fenced(lease) as session:
            until = self._transactions.moment(session).until(seconds)
            session.execute(update(LeaseRow).where(LeaseRow.key == lease.key).values(until))

    def release(self, lease: Lease) -> None:
        """Let another daemon have the lease at once."""
        with contextlib.suppress(StaleLease):
            self.renew(lease, 0.0)

    def state(self, key: str) -> LeaseState | None:
        """Return the present or last holder of a lease; None if there was none."""
        return self._states([key]).get(key)

    def _states(self, keys: Collection[str]) -> dict[str, LeaseState]:
        """Return the present or last holders of leases, by key."""
        with self._transactions.reading() as session:
            wanted = select(LeaseRow).where(LeaseRow.key.in_(keys), LeaseRow.host != "")
            rows = session.scalars(wanted).all()
            if not rows:
                return {}
            now = self._transactions.moment(session)
            return {
                row.key: LeaseState(
                    row.key,
                    row.epoch,
                    row.host,
                    row.pid,
                    now.left(row),
                    is_gone(row.host, row.pid, row.started),
                )
                for row in rows
            }

    def serving(self, study: StoredStudy) -> LeaseState | None:
        """Return the process that runs a study, or that a waiting one will be run by; None: none."""
        return self.serving_all([study]).get(study.id)

    def serving_all(self, studies: Iterable[StoredStudy]) -> dict[int, LeaseState]:
        """Return the processes that serve studies, by the id of the study; others are left out.

        A waiting study is served by the daemon of its queue, or by a process that waits for it alone.
        """
        keys = {study.id: _keys(study) for study in studies}
        held = self.holders({key for several in keys.values() for key in several})
        found = {
            one: [held[key] for key in several if key in held] for one, several in keys.items()
        }
        return {one: serving[0] for one, serving in found.items() if serving}

    def holder(self, key: str) -> LeaseState | None:
        """Return the present holder of a lease; None if it is free or its holder is dead."""
        return self.holders([key]).get(key)

    def holders(self, keys: Collection[str]) -> dict[str, LeaseState]:
        """Return the present holders of leases, by key, without those that are free or whose is dead."""
        found = self._states(keys)
        return {key: one for key, one in found.items() if one.seconds_left > 0 and not one.gone}


def _keys(study: StoredStudy) -> list[str]:
    """Return the keys of the leases by which a study is served, the most telling one first."""
    waits = [study.queue, waiting_key(study.queue, study.id)]
    return [key_of(study.id), *(waits if study.state == StudyState.QUEUED else ())]


def free(key: str) -> LeaseRow:
    """Return the row of a lease that was never held."""
    return LeaseRow(key=key, epoch=0, host="", pid=0, expires=0.0)


def hand_over(row: LeaseRow, holder: LeaseHolder, now: Moment) -> Lease:
    """Give a lease to a process; return it."""
    pid_before, since = (row.pid, row.started) if row.host == holder.host else (None, None)
    row.epoch, row.host, row.pid = row.epoch + 1, holder.host, holder.pid
    row.started, row.token = started(holder.host, holder.pid), secrets.token_hex(_TOKEN_BYTES)
    extend(row, now, holder.seconds)
    return Lease(row.key, row.epoch, pid_before, since, row.token)


def extend(row: LeaseRow, now: Moment, seconds: float) -> None:
    """Let a lease last for this many seconds from now."""
    for name, value in now.until(seconds).items():
        setattr(row, name, value)


def is_held(row: LeaseRow, now: Moment) -> bool:
    """Return whether a lease is held by a process that is not known to be dead."""
    return may_return(row, now, 0.0)


def may_return(row: LeaseRow, now: Moment, seconds: float) -> bool:
    """Return whether a lease is held, or ended less than this long ago with a holder that may live."""
    return now.left(row) > -seconds and not is_gone(row.host, row.pid, row.started)


def revoke(row: LeaseRow) -> None:
    """Take a lease from a holder that has let it expire.

    The holder may only be asleep: it can write no more.
    """
    row.epoch, row.token = row.epoch + 1, None
