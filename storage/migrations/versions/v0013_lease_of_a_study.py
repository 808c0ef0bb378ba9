"""A lease per study, where a queue had one; owner, priority and hold of a study."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_STUDY = sa.table("autotune_study", sa.column("id"), sa.column("cluster"))
_LEASE = sa.table(
    "autotune_lease",
    *map(sa.column, ("cluster", "epoch", "host", "pid", "started", "expires")),
)


def upgrade() -> None:
    """Give each study the epoch and the last holder of its queue: its attempts bear them."""
    columns: list[sa.Column[Any]] = [
        sa.Column("owner", sa.String(255), nullable=False, server_default=""),
        sa.Column("priority", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("held", sa.Boolean(), nullable=False, server_default=sa.false()),
    ]
    for column in columns:
        op.add_column("autotune_study", column)
    connection = op.get_bind()
    queues = {row.cluster: row for row in connection.execute(sa.select(_LEASE))}
    for study, queue in connection.execute(sa.select(_STUDY)).all():
        last = queues.get(queue)
        connection.execute(
            _LEASE.insert().values(
                cluster=f"study:{study}",
                epoch=last.epoch if last else 0,
                host=last.host if last else "",
                pid=last.pid if last else 0,
                started=last.started if last else None,
                expires=0.0,
            )
        )
        words = queue.split(" ")
        owned = sa.text("update autotune_study set owner = :owner where id = :id")
        if len(words) > 1:
            connection.execute(owned, {"owner": words[1], "id": study})
