"""Order in which daemons take the studies of a queue, and quotas that have an owner's studies wait."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Row, select
from sqlalchemy.orm import Session

from autotune.errors import BadInput
from storage.host import Moment
from storage.lease_keys import key_of
from storage.leases import may_return
from storage.models import LeaseRow, QuotaRow, StudyRow
from storage.records import Quota, StudyState
from storage.transactions import Transactions
from storage.usage import recent_hours

EVERY_OWNER = "*"
"""Owner of the limits and the weight that each owner has where its own are not set."""
OPEN = StudyRow.state.in_([StudyState.RUNNING, StudyState.QUEUED])
PLACED = (StudyRow.id, StudyRow.state, StudyRow.priority, StudyRow.owner)
"""Columns that the order of a queue goes by."""
_AWAY_SECONDS = 300.0
"""Time after the end of a lease in which its holder, asleep or cut off, is expected to return."""


class Quotas:
    """Quotas by owner: what their studies may take. They are read in each claim."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def set(self, quota: Quota) -> None:
        """Store a quota in the place of an earlier one; one that sets nothing removes it."""
        with self._transactions.writing() as session:
            row = session.get(QuotaRow, quota.owner)
            if row is not None:
                session.delete(row)
                session.flush()
            if quota.is_set:
                session.add(QuotaRow(**vars(quota)))

    def change(self, owner: str, limits: Mapping[str, Any]) -> None:
        """Change limits of an owner; those that are not given stay.

        Args:
            owner: an account, or EVERY_OWNER.
            limits: fields of Quota.

        Raises:
            BadInput: days are given, and no device hours that are counted in them.
        """
        with self._transactions.writing() as session:
            row = session.get(QuotaRow, owner, with_for_update=True)
            changed = replace(_quota(row) if row else Quota(owner), **limits)
            if "days" in limits and changed.device_hours is None:
                raise BadInput(f"{owner} has no quota of device hours in days: give --device-hours")
            session.merge(QuotaRow(**vars(changed)))

    def remove(self, owner: str) -> None:
        """Remove the quota of an owner.

        Raises:
            BadInput: there is none.
        """
        with self._transactions.writing() as session:
            row = session.get(QuotaRow, owner)
            if row is None:
                raise BadInput(f"{owner} has no quota of its own; autotune quota lists all")
            session.delete(row)

    def all(self) -> list[Quota]:
        """Return the quotas by name of their owners."""
        with self._transactions.reading() as session:
            return list(quotas_of(session).values())

    def in_force(self, owner: str) -> Quota:
        """Return what applies to an owner: its own limits, and those of every owner."""
        with self._transactions.reading() as session:
            return _in_force(quotas_of(session), owner)

    def weight_of(self, owner: str) -> float:
        """Return the weight of an owner's share of a cluster."""
        weight = self.in_force(owner).weight
        return 1.0 if weight is None else weight

    def reasons(self) -> Callable[[str], str]:
        """Return a function that tells, for an owner, which quota is exhausted at present."""
        with self._transactions.reading() as session:
            return exhausted(session, quotas_of(session), self._transactions.moment(session))


def quotas_of(session: Session) -> dict[str, Quota]:
    """Return the quotas by owner."""
    rows = session.scalars(select(QuotaRow).order_by(QuotaRow.owner))
    return {row.owner: _quota(row) for row in rows}


def _quota(row: QuotaRow) -> Quota:
    return Quota(row.owner, row.studies, row.device_hours, row.days, row.weight)


def _in_force(quotas: Mapping[str, Quota], owner: str) -> Quota:
    """Return what applies to an owner, each limit by itself."""
    every = quotas.get(EVERY_OWNER, Quota(EVERY_OWNER))
    own = quotas.get(owner, Quota(owner))
    hours = every if own.device_hours is None else own
    studies = every.studies if own.studies is None else own.studies
    weight = every.weight if own.weight is None else own.weight
    return Quota(owner, studies, hours.device_hours, hours.days, weight)


def exhausted(session: Session, quotas: Mapping[str, Quota], now: Moment) -> Callable[[str], str]:
    """Return a function that tells, for an owner, which quota is exhausted; empty: none."""
    if not quotas:
        return lambda _: ""
    running = _running(session, now)
    used = {
        days: recent_hours(session, now.wall, days)
        for days in {q.days for q in quotas.values() if q.device_hours is not None}
    }

    def reason(owner: str) -> str:
        quota = _in_force(quotas, owner)
        if quota.studies is not None and running[owner] >= quota.studies:
            return f"quota of {owner}: {running[owner]} of {quota.studies} studies run"
        hours = used.get(quota.days, {}).get(owner, 0.0)
        if quota.device_hours is not None and hours >= quota.device_hours:
            return (
                f"quota of {owner}: {hours:.3g} of {quota.device_hours:g} device hours of the last "
                f"{quota.days:g} days are used"
            )
        return ""

    return reason


def _running(session: Session, now: Moment) -> Counter[str]:
    """Return how many studies of each owner a daemon runs, or may go on with any moment.

    One that was left behind for long takes nothing.
    """
    running = select(StudyRow.id, StudyRow.owner).where(StudyRow.state == StudyState.RUNNING)
    owners = {key_of(study_id): owner for study_id, owner in session.execute(running)}
    leases = session.scalars(select(LeaseRow).where(LeaseRow.key.in_(owners)))
    return Counter(owners[lease.key] for lease in leases if may_return(lease, now, _AWAY_SECONDS))


def places(
    studies: Iterable[Row[int, str, int, str]], used: Mapping[str, float]
) -> list[tuple[bool, int, float, int]]:
    """Return what the order of a queue goes by for each study, in that order; last come the ids.

    Studies that were left running come first, then higher priorities, then owners that have used
    less of the devices lately, then older studies.

    Args:
        studies: id, state, priority and owner of each, see `PLACED`.
        used: device hours by owner.
    """
    return sorted(
        (state != StudyState.RUNNING, -priority, used.get(owner, 0.0), study_id)
        for study_id, state, priority, owner in studies
    )


def open_in(queue: str, only: int | None) -> list[ColumnElement[bool]]:
    """Return the conditions for studies of a queue that wait or run, and are not held.

    Args:
        only: id of the only study to find, held or not; None: all.
    """
    found = StudyRow.held.is_(False) if only is None else StudyRow.id == only
    return [StudyRow.queue == queue, OPEN, found]
