"""Device hours of each owner: kept apart from attempts, as studies are deleted and change owners."""

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from storage.models import StudyRow, UsageRow

_RECENT_DAYS = 1.0
"""Time of which an owner's device hours count against other studies of that owner."""
_HOURS_PER_DAY = 24.0
_SECONDS_PER_HOUR = 3600.0


def add(session: Session, study_id: int, at: float, seconds: float) -> None:
    """Add the time of attempts that have ended to that of their study's owner.

    Other daemons add to the same row. So this comes last in a transaction: one that locks nothing
    afterwards has no part in a deadlock.

    Args:
        at: when they ended.
        seconds: that they took, on all devices of the study.
    """
    if not seconds:
        return
    of_study = select(StudyRow.owner, StudyRow.facts).where(StudyRow.id == study_id)
    owner, facts = session.execute(of_study).one()
    took = seconds * (facts or {}).get("world_size", 1)
    on_server = session.get_bind().dialect.name == "postgresql"
    insert: Any = postgresql.insert if on_server else sqlite.insert
    added = insert(UsageRow).values(
        owner=owner, hour=int(at // _SECONDS_PER_HOUR), device_seconds=took
    )
    total = UsageRow.device_seconds + added.excluded.device_seconds
    session.execute(
        added.on_conflict_do_update(
            index_elements=["owner", "hour"], set_={"device_seconds": total}
        )
    )


def recent_hours(session: Session, now: float, days: float = _RECENT_DAYS) -> dict[str, float]:
    """Return the device hours by owner of attempts that ended in the last days, in whole hours.

    Later hours are those of a clock that was ahead, for however long.
    """
    hour = now / _SECONDS_PER_HOUR
    recent = UsageRow.hour.between(hour - days * _HOURS_PER_DAY - 1.0, hour + 1.0)
    wanted = select(UsageRow.owner, func.sum(UsageRow.device_seconds))
    found = wanted.where(recent).group_by(UsageRow.owner)
    return {owner: took / _SECONDS_PER_HOUR for owner, took in session.execute(found)}
