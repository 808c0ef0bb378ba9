"""Token of a lease's holder, and the lease's expiry by the time since boot."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add columns; a lease that is held stays with its holder, by epoch and wall clock alone."""
    op.add_column("autotune_lease", sa.Column("token", sa.String(32), nullable=True))
    op.add_column("autotune_lease", sa.Column("boot", sa.String(64), nullable=True))
    op.add_column("autotune_lease", sa.Column("boot_expires", sa.Float(), nullable=True))
