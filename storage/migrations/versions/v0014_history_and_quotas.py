"""Events of studies and quotas of owners; columns named after what they hold."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Rename two columns; add the tables, and indices for claims and recent device hours."""
    op.drop_index("ix_autotune_study_cluster", "autotune_study")
    op.execute("alter table autotune_study rename column cluster to queue")
    op.create_index("ix_autotune_study_queue_state", "autotune_study", ["queue", "state"])
    op.execute("alter table autotune_lease rename column cluster to key")
    op.create_index("ix_autotune_attempt_ended", "autotune_attempt", ["ended"])
    op.create_table(
        "autotune_event",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("study", sa.String(255), nullable=False),
        sa.Column("account", sa.String(255), nullable=False),
        sa.Column("role", sa.String(255)),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("command", sa.String(64), nullable=False),
        sa.Column("what", sa.String(32), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
    )
    op.create_index("ix_autotune_event_study", "autotune_event", ["study"])
    op.create_table(
        "autotune_quota",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("studies", sa.Integer()),
        sa.Column("device_hours", sa.Float()),
        sa.Column("days", sa.Float(), nullable=False),
    )
