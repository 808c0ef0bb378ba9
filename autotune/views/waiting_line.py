"""The studies that run or wait, in the order in which daemons take them: why each waits, how long."""

from collections.abc import Mapping
from typing import Any

from autotune.analysis.wording import duration
from autotune.config import StudySpec
from autotune.views.overview import status_of
from storage import Repository, StoredStudy, StudyState

_NO_OWNER = "-"


def queue_of(repository: Repository) -> list[dict[str, Any]]:
    """Return the studies that run or wait, for JSON.

    `seconds_left` is what a running study may still take by its `wall_time`, `starts_in` when a
    waiting one begins if those before it in its queue take all of theirs, one after another; each is
    None where that is not known.
    """
    rows: list[dict[str, Any]] = []
    ahead: dict[str, dict[str, Any]] = {}
    for study in repository.studies.waiting_in_order():
        row = _row(repository, study, ahead.get(study.cluster))
        rows.append(row)
        if not study.held:
            ahead[study.cluster] = row
    return rows


def _row(
    repository: Repository, study: StoredStudy, before: Mapping[str, Any] | None
) -> dict[str, Any]:
    standing = status_of(repository, study.name)
    wall_time = StudySpec.model_validate(study.spec).budget.wall_time
    served = study.state == StudyState.RUNNING and standing["daemon"] is not None
    runs = served and not standing["waiting"]
    starts = 0.0 if runs or before is None else _ends(before)
    return {
        "study": study.name,
        "owner": study.owner or None,
        "queue": study.cluster,
        "state": study.state.value,
        "priority": study.priority,
        "held": study.held,
        "daemon": standing["daemon"],
        "reason": _reason(study, standing, None if runs else before),
        "seconds_left": None if wall_time is None else max(0.0, wall_time - study.elapsed),
        "starts_in": None if study.held else starts,
        "created": study.created,
    }


def _ends(row: Mapping[str, Any]) -> float | None:
    """Return the seconds after which a study has ended at the latest; None if unknown."""
    if row["starts_in"] is None or row["seconds_left"] is None:
        return None
    return float(row["starts_in"] + row["seconds_left"])


def _reason(
    study: StoredStudy, standing: Mapping[str, Any], before: Mapping[str, Any] | None
) -> str | None:
    """Return why a study does not run at present; None if it does."""
    if study.held:
        return f"held; autotune release {study.name}"
    if standing["waiting"]:
        return str(standing["waiting"])
    if standing["daemon"] is None:
        return f"no daemon runs it; autotune resume {study.name} starts one"
    if before is not None:
        return f"behind {before['study']} of {before['owner'] or 'an unknown owner'}"
    return None


def table(rows: list[dict[str, Any]]) -> str:
    """Return the queue as text, a line per study, with the reason of each that waits below it."""
    if not rows:
        return "nothing runs or waits"
    lines = [
        f"{'study':30} {'owner':12} {'state':9} {'prio':>4} {'time left':>10} {'starts in':>10}"
    ]
    for row in rows:
        state = "HELD" if row["held"] else row["state"]
        lines.append(
            f"{row['study']:30} {row['owner'] or _NO_OWNER:12} {state:9} "
            f"{row['priority']:>4} {_time(row['seconds_left']):>10} {_time(row['starts_in']):>10}"
        )
        lines += [f"  {row['reason']}"] if row["reason"] else []
    return "\n".join(lines)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return duration(seconds) if seconds else "now"
