"""Degrees of freedom of the interval of a run's blocks."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add a column, empty for old attempts: their blocks tell the value."""
    op.add_column("autotune_attempt", sa.Column("block_freedom", sa.Float(), nullable=True))
