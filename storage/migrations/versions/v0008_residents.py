"""Attempt whose worker processes an attempt ran in."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add a column; what is there ran in processes of its own."""
    op.add_column("autotune_attempt", sa.Column("resident_of", sa.Integer(), nullable=True))
