"""Fault of an attempt and slots of a study, told by the words of a cause and of a message before."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_ATTEMPT = sa.table(
    "autotune_attempt", sa.column("state"), sa.column("cause", sa.Text()), sa.column("fault")
)
_STUDY = sa.table("autotune_study", sa.column("id"), sa.column("slots"))
_MESSAGE = sa.table("autotune_message", sa.column("study_id"), sa.column("kind"), sa.column("text"))

_NOT_ITS_OWN = "not of its own making: "
_FAULTS = (
    ("LOST", _NOT_ITS_OWN, "node"),
    ("LOST", f"{_NOT_ITS_OWN}%, which it took over: ", "worker"),
    ("LOST", "a disk was full: ", "disk"),
    ("ABANDONED", "its daemon died", "daemon"),
)
"""State, first words of the cause, and fault; later lines overrule earlier ones."""


def upgrade() -> None:
    """Add columns, and fill them from the words."""
    fault = sa.Column("fault", sa.String(length=16), nullable=False, server_default="trial")
    op.add_column("autotune_attempt", fault)
    for state, words, found in _FAULTS:
        begins = _ATTEMPT.c.cause.like(f"{words}%")
        attributed = _ATTEMPT.update().where(_ATTEMPT.c.state == state, begins)
        op.execute(attributed.values(fault=found))
    op.add_column("autotune_study", sa.Column("slots", sa.Text(), nullable=True))
    text = sa.select(sa.func.max(_MESSAGE.c.text)).where(
        _MESSAGE.c.kind == "slots", _MESSAGE.c.study_id == _STUDY.c.id
    )
    op.execute(_STUDY.update().values(slots=text.scalar_subquery()))
    op.execute(_MESSAGE.delete().where(_MESSAGE.c.kind == "slots"))
