"""Digests of runs as columns of attempts; choices of finalists in a table."""

import itertools
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

_FLOATS = (
    *("disturbed_share", "foreign_cpu", "clock_mhz", "watts", "sample_joules"),
    *("step_mean", "step_median", "step_p95", "step_correlation"),
)
_ATTEMPT = sa.table("autotune_attempt", *map(sa.column, ("id", "steps", *_FLOATS)))
_BLOCK = sa.table(
    "autotune_block",
    *map(sa.column, ("attempt_id", "index", "steps", "samples", "seconds", "kept", "contended")),
    sa.column("observed", sa.Text()),
)
_MESSAGE = sa.table(
    "autotune_message",
    *map(sa.column, ("id", "study_id", "at", "code")),
    sa.column("data", sa.Text()),
)
_CHOICE = sa.table(
    "autotune_choice",
    *map(sa.column, ("study_id", "choice", "at", "trial", "reason", "detail")),
    sa.column("expected"),
)
_ROWS = 1000
"""Attempts that are changed at a time."""
_STEPS_OF_A_PERCENTILE = 20
"""Steps of a block of which the 95th percentile is below the longest."""


def upgrade() -> None:
    """Add columns and table; fill them from blocks and messages, as far as these tell.

    The correlation of steps stays unknown for runs of earlier versions.
    """
    op.add_column("autotune_attempt", sa.Column("steps", sa.Integer()))
    for name in _FLOATS:
        op.add_column("autotune_attempt", sa.Column(name, sa.Float()))
    op.create_table(
        "autotune_choice",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("study_id", sa.Integer(), sa.ForeignKey("autotune_study.id"), nullable=False),
        sa.Column("choice", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("trial", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("expected", sa.Float()),
        sa.Column("expected_low", sa.Float()),
        sa.Column("expected_high", sa.Float()),
    )
    op.create_index("ix_autotune_choice_study_id", "autotune_choice", ["study_id"])
    connection = op.get_bind()
    _fill_attempts(connection)
    _move_choices(connection)


def _fill_attempts(connection: sa.Connection) -> None:
    timed = _BLOCK.c.kept | _BLOCK.c.contended
    ordered = sa.select(_BLOCK).where(timed).order_by(_BLOCK.c.attempt_id, _BLOCK.c.index)
    rows = connection.execute(ordered.execution_options(stream_results=True)).mappings()
    found = (
        {"of": attempt, **_digest([dict(block) for block in blocks])}
        for attempt, blocks in itertools.groupby(rows, itemgetter("attempt_id"))
    )
    columns: Any = {name: sa.bindparam(name) for name in ("steps", *_FLOATS[:-1])}
    changed = _ATTEMPT.update().where(_ATTEMPT.c.id == sa.bindparam("of")).values(**columns)
    while several := list(itertools.islice(found, _ROWS)):
        connection.execute(changed, several)


def _digest(timed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of an attempt by the blocks after its warm-up."""
    kept = [block for block in timed if block["kept"] and block["seconds"] is not None]
    told = [json.loads(block["observed"]) for block in kept]
    steps = sum(block["steps"] for block in kept)
    seconds = sum(block["seconds"] for block in kept)
    samples = sum(block["samples"] for block in kept)
    energy = [one.get("energy_joules") for one in told]
    joules = None if not energy or None in energy else sum(energy)
    return {
        "steps": steps or None,
        "disturbed_share": sum(map(bool, (b["contended"] for b in timed))) / len(timed),
        "foreign_cpu": _mean(one.get("foreign_cpu") for one in told),
        "clock_mhz": _median(one.get("clock_mhz") for one in told),
        "watts": None if joules is None or not seconds else joules / seconds,
        "sample_joules": None if joules is None or not samples else joules / samples,
        "step_mean": seconds / steps if steps else None,
        "step_median": _median(one.get("step_p50") for one in told),
        "step_p95": _high_step(kept, told),
    }


def _high_step(
    kept: Sequence[Mapping[str, Any]], told: Sequence[Mapping[str, Any]]
) -> float | None:
    if not any("step_p95" in one for one in told):
        return None
    if statistics.median(block["steps"] for block in kept) >= _STEPS_OF_A_PERCENTILE:
        return _median(one.get("step_p95") for one in told)
    each = sorted((block["seconds"] / block["steps"], block["steps"]) for block in kept)
    left = 0.95 * sum(steps for _, steps in each)
    for seconds, steps in each:
        left -= steps
        if left <= 0:
            return float(seconds)
    return float(each[-1][0])


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _move_choices(connection: sa.Connection) -> None:
    wanted = sa.select(_MESSAGE).where(_MESSAGE.c.code == "finalists").order_by(_MESSAGE.c.id)
    number: dict[int, int] = {}
    for message in connection.execute(wanted).all():
        number[message.study_id] = number.get(message.study_id, 0) + 1
        own = {"study_id": message.study_id, "choice": number[message.study_id], "at": message.at}
        for one in json.loads(message.data or "{}").get("choices", ()):
            told = {name: one.get(name) for name in ("trial", "expected", "reason")}
            connection.execute(_CHOICE.insert().values(**own, **told, detail=one.get("detail", "")))
        changed = _MESSAGE.update().where(_MESSAGE.c.id == message.id)
        connection.execute(changed.values(data=None))
