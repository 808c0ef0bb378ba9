"""Raw rate and ratio of attempts beside the baseline; messages as a code with data."""

import json
import re
from itertools import pairwise

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_STUDY = sa.table("autotune_study", sa.column("id"), sa.column("spec", sa.Text()))
_ATTEMPT = sa.table(
    "autotune_attempt",
    *map(
        sa.column, ("id", "study_id", "trial", "purpose", "round", "state", "knobs", "throughput")
    ),
    *map(sa.column, ("raw_throughput", "ratio")),
)
_BLOCK = sa.table(
    "autotune_block",
    *map(sa.column, ("attempt_id", "steps", "samples", "tokens", "seconds", "kept")),
)
_MESSAGE = sa.table(
    "autotune_message", sa.column("id"), sa.column("text"), sa.column("code"), sa.column("data")
)

_FEWEST_BLOCKS = 4
"""Blocks of two cycles, below which a trial had no ratio."""
_LEFT_OUT = re.compile(r"Left out: (?P<reason>.*)\.", re.DOTALL)
_SPACE = re.compile(r"(About )?[\d,]+ configurations? remains?,")
_EXPECTATION = re.compile(r"The model takes .* to bring (?P<gain>[\d.]+)%\.", re.DOTALL)


def upgrade() -> None:
    """Add columns; fill those of trials beside the baseline, and of messages by their words."""
    for name in ("raw_throughput", "ratio"):
        op.add_column("autotune_attempt", sa.Column(name, sa.Float(), nullable=True))
    code = sa.Column("code", sa.String(length=32), nullable=False, server_default="")
    op.add_column("autotune_message", code)
    op.add_column("autotune_message", sa.Column("data", sa.Text(), nullable=True))
    connection = op.get_bind()
    for study, spec in connection.execute(sa.select(_STUDY.c.id, _STUDY.c.spec)).all():
        _fill_ratios(connection, study, _counted(spec))
    for number, text in connection.execute(sa.select(_MESSAGE.c.id, _MESSAGE.c.text)).all():
        if found := _meaning(text):
            changed = _MESSAGE.update().where(_MESSAGE.c.id == number)
            connection.execute(changed.values(code=found[0], data=json.dumps(found[1])))


def _counted(spec: str) -> str:
    """Return the column of a block that the rates of a study count."""
    metric = json.loads(spec).get("objective", {}).get("metric", "samples_per_second")
    return str(metric).removesuffix("_per_second")


def _fill_ratios(connection: sa.Connection, study: int, counted: str) -> None:
    own = sa.select(_ATTEMPT).where(_ATTEMPT.c.study_id == study).order_by(_ATTEMPT.c.id)
    attempts = connection.execute(own).all()
    first = {
        one.knobs: one.throughput
        for one in reversed(attempts)
        if one.purpose == "search" and one.state == "COMPLETE"
    }
    for beside, trial in pairwise(attempts):
        paired = beside.purpose == "pace" and beside.round == trial.trial
        if not (paired and trial.purpose == "search" and trial.throughput):
            continue
        rates = [_rate(connection, one.id, counted) for one in (beside, trial)]
        own_rate = first.get(beside.knobs)
        if own_rate and all(rates):
            changed = _ATTEMPT.update().where(_ATTEMPT.c.id == trial.id)
            values = {"raw_throughput": rates[1], "ratio": trial.throughput / own_rate}
            connection.execute(changed.values(**values))


def _rate(connection: sa.Connection, attempt: int, counted: str) -> float | None:
    """Return the rate of an attempt by its blocks; None if there were too few for a ratio."""
    kept = sa.select(_BLOCK).where(_BLOCK.c.attempt_id == attempt, _BLOCK.c.kept)
    blocks = connection.execute(kept).all()
    seconds = sum(block.seconds or 0.0 for block in blocks)
    if len(blocks) < _FEWEST_BLOCKS or not seconds:
        return None
    return float(sum(getattr(block, counted) for block in blocks) / seconds)


def _meaning(text: str) -> tuple[str, dict[str, object] | None] | None:
    """Return code and data of a message; None if it is only to be read."""
    if found := _LEFT_OUT.fullmatch(text):
        return "left_out", {"reason": found["reason"]}
    if _SPACE.match(text):
        return "space", {}
    if found := _EXPECTATION.fullmatch(text):
        return "expectation", {"gain": float(found["gain"]) / 100}
    return None
