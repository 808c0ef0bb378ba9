"""Weight of an owner, beside the quota; an index that has all that the order of a queue goes by."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add the column, and one index in the place of two; owners without a weight have 1."""
    op.add_column("autotune_quota", sa.Column("weight", sa.Float()))
    op.drop_index("ix_autotune_study_state", "autotune_study")
    op.drop_index("ix_autotune_study_queue_state", "autotune_study")
    ordered = ["state", "queue", "held", "retry_at", "priority", "owner", "id"]
    op.create_index("ix_autotune_study_order", "autotune_study", ordered)
