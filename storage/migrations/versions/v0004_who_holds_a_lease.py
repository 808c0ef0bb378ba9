"""Start time of the process that holds a lease."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add a column; a lease that is held keeps its holder until it runs out."""
    op.add_column("autotune_lease", sa.Column("started", sa.BigInteger(), nullable=True))
