"""The file that a study's settings are from."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add a column; of earlier studies it is not known."""
    op.add_column("autotune_study", sa.Column("file", sa.Text(), nullable=True))
