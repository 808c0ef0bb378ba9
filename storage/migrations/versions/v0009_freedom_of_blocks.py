"""With how many degrees of freedom the interval of a run's blocks is known."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add a column; nobody has written down what is there, but its blocks tell."""
    op.add_column("autotune_attempt", sa.Column("block_freedom", sa.Float(), nullable=True))
