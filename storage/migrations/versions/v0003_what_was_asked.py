"""Kinds of messages, facts about a study's machine, why its search ended, a resume after a stop."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_WAITING = "Waiting: "
"""Former prefix of messages about what a study waits for."""


def upgrade() -> None:
    """Add columns, and tell the messages apart by kind that were told apart by their first word."""
    op.add_column("autotune_study", sa.Column("facts", sa.Text(), nullable=True))
    op.add_column("autotune_study", sa.Column("search_ended", sa.Text(), nullable=True))
    op.add_column(
        "autotune_study",
        sa.Column("resume_requested", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.add_column(
        "autotune_message",
        sa.Column("kind", sa.String(length=16), nullable=False, server_default="said"),
    )
    message = sa.table("autotune_message", sa.column("kind"), sa.column("text", sa.Text()))
    op.execute(
        message.update()
        .where(message.c.text.startswith(_WAITING))
        .values(kind="waiting", text=sa.func.substr(message.c.text, len(_WAITING) + 1))
    )
