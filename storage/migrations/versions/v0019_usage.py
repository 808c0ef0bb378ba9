"""Device hours of owners in a table of their own, which studies may leave."""

import json
from collections import Counter

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"

_STUDY = sa.table("autotune_study", *map(sa.column, ("id", "owner")), sa.column("facts", sa.Text()))
_ATTEMPT = sa.table("autotune_attempt", *map(sa.column, ("study_id", "ended", "wall_seconds")))
_SECONDS_PER_HOUR = 3600


def upgrade() -> None:
    """Add the table and fill it from the attempts that there are; drop their index for that sum."""
    usage = op.create_table(
        "autotune_usage",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("hour", sa.Integer(), primary_key=True),
        sa.Column("device_seconds", sa.Float(), nullable=False),
    )
    op.drop_index("ix_autotune_attempt_recent", "autotune_attempt")
    found = _summed(op.get_bind())
    rows = [
        {"owner": owner, "hour": hour, "device_seconds": seconds}
        for (owner, hour), seconds in found.items()
    ]
    op.bulk_insert(usage, rows)


def _summed(connection: sa.Connection) -> Counter[tuple[str, int]]:
    """Return the seconds on devices of ended attempts by owner and hour."""
    studies = connection.execute(sa.select(_STUDY)).all()
    owners = {one.id: one.owner for one in studies}
    devices = {one.id: json.loads(one.facts or "{}").get("world_size", 1) for one in studies}
    ended = sa.select(_ATTEMPT).where(_ATTEMPT.c.ended.is_not(None), _ATTEMPT.c.wall_seconds > 0)
    found = Counter[tuple[str, int]]()
    for one in connection.execute(ended.execution_options(stream_results=True)):
        hour = int(one.ended // _SECONDS_PER_HOUR)
        found[owners[one.study_id], hour] += devices[one.study_id] * one.wall_seconds
    return found
