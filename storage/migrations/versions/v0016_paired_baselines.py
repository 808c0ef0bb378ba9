"""The purpose of a baseline beside a trial is called by its name."""

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Rename the purpose in all attempts."""
    op.execute("update autotune_attempt set purpose = 'paired' where purpose = 'pace'")
