"""Time at which a study that could not run is tried again."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add columns; what waits in the queue is to be tried at once, as ever."""
    op.add_column("autotune_study", sa.Column("retry_at", sa.Float(), nullable=True))
    zero = sa.text("0")
    retries = sa.Column("retries", sa.Integer(), nullable=False, server_default=zero)
    op.add_column("autotune_study", retries)
