"""Verdicts as data: the sentence of an earlier one is kept as what was told."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_STUDY = sa.table(
    "autotune_study", sa.column("id"), sa.column("name"), sa.column("verdict", sa.Text())
)


def upgrade() -> None:
    """Give stored verdicts a version, the name of their study, and their sentence under its new name."""
    connection = op.get_bind()
    decided = sa.select(_STUDY).where(_STUDY.c.verdict.is_not(None))
    for id_, name, stored in connection.execute(decided).all():
        body = json.loads(stored)
        if "version" not in body:
            body |= {"version": 1, "study": name, "told": body.pop("sentence", "")}
            changed = _STUDY.update().where(_STUDY.c.id == id_)
            connection.execute(changed.values(verdict=json.dumps(body)))
