"""Where a study stands, as its daemon has stored it; an index with all that recent hours are made of."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Add the column, without which figures are computed from all attempts; widen an index."""
    op.add_column("autotune_study", sa.Column("standing", sa.Text()))
    op.drop_index("ix_autotune_attempt_ended", "autotune_attempt")
    recent = ["ended", "study_id", "wall_seconds"]
    op.create_index("ix_autotune_attempt_recent", "autotune_attempt", recent)
