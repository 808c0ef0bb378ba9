"""The studies that run or wait, in the order in which daemons take them: why each waits, how long."""

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.analysis.wording import duration
from storage import LeaseState, MessageKind, Quota, Repository, StoredStudy, StudyState
from storage.disk import full, is_full

_NO_OWNER = "-"


def queue_of(repository: Repository, order: Sequence[int]) -> list[dict[str, Any]]:
    """Return the studies that run or wait, for JSON.

    `seconds_left` is what a running study may still take by its `wall_time`. `starts_in` is when a
    waiting one begins if those before it in its queue take all of theirs, one after another. Each is
    None where that is not known.

    Args:
        order: ids of the studies, see storage.studies.Studies.order.
    """
    rows: list[dict[str, Any]] = []
    ahead: dict[str, dict[str, Any]] = {}
    reasons, now = functools.cache(repository.quotas.reasons()), repository.now()
    studies = repository.studies.of_ids(order)
    serving = repository.leases.serving_all(studies)
    for number, study in enumerate(studies, 1):
        quota = reasons(study.owner) if study.state == StudyState.QUEUED else ""
        daemon = serving.get(study.id)
        waiting = waiting_of(repository, study, quota, now)
        row = {"order": number, **_row(study, daemon, waiting, ahead.get(study.queue))}
        row["starts_in"] = None if quota else row["starts_in"]
        rows.append(row)
        if not study.held and not quota:
            ahead[study.queue] = row
    return rows


def _row(
    study: StoredStudy,
    daemon: LeaseState | None,
    waiting: str | None,
    before: Mapping[str, Any] | None,
) -> dict[str, Any]:
    wall_time = study.spec.get("budget", {}).get("wall_time")
    runs = study.state == StudyState.RUNNING and daemon is not None and not waiting
    starts = 0.0 if runs or before is None else _ends(before)
    return {
        "study": study.name,
        "owner": study.owner or None,
        "queue": study.queue,
        "state": study.state.value,
        "priority": study.priority,
        "held": study.held,
        "daemon": {"host": daemon.machine, "pid": daemon.pid} if daemon else None,
        "reason": None if runs else _reason(study, waiting, before, served=daemon is not None),
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
    study: StoredStudy, waiting: str | None, before: Mapping[str, Any] | None, *, served: bool
) -> str | None:
    """Return why a study does not run at present; None if it is about to."""
    if study.held:
        return f"held; autotune release {study.name}"
    if waiting:
        return waiting
    if not served:
        return f"no daemon runs it; autotune resume {study.name} starts one"
    if before is not None:
        return f"behind {before['study']} of {before['owner'] or 'an unknown owner'}"
    return None


def waiting_now(repository: Repository, study: StoredStudy) -> str | None:
    """Return why a study waits at this moment; None if it does not."""
    if study.state.ended:
        return None
    quota = repository.quotas.reasons()(study.owner) if study.state == StudyState.QUEUED else ""
    return waiting_of(repository, study, quota, repository.now())


def waiting_of(repository: Repository, study: StoredStudy, quota: str, now: float) -> str | None:
    """Return why a study waits, although it has a daemon or could have one; None if it does not.

    Args:
        quota: quota of its owner that is exhausted; empty: none.
        now: seconds since the epoch, by the database's clock.
    """
    disk = repository.database.folder
    if disk and is_full(disk) and not study.state.ended:
        return f"{full(disk)}, and nothing can be recorded before there is some."
    last = repository.messages.last(study.id) if study.state == StudyState.RUNNING else None
    waits = last is not None and last.kind == MessageKind.WAITING
    return last.text if last and waits else _postponed(study, quota, now)


def _postponed(study: StoredStudy, quota: str, now: float) -> str | None:
    """Return why a queued study is not begun, or tried again later, and when; None if neither."""
    if study.held:
        return f"held; autotune release {study.name}"
    left = 0.0 if study.retry_at is None else study.retry_at - now
    if left <= 0:
        return (quota or None) if study.state == StudyState.QUEUED else None
    at = time.strftime("%H:%M:%S", time.gmtime(time.time() + left))
    again = f"tried again at {at} UTC, in {duration(left)}"
    return f"{study.error}; {again}; autotune resume {study.name}: at once"


def table(rows: list[dict[str, Any]], now: float) -> str:
    """Return the queue as text, a line per study, with the reason of each that waits below it.

    Args:
        now: seconds since the epoch, by the database's clock.
    """
    if not rows:
        return "nothing runs or waits"
    lines = [
        f"{'':>3} {'study':30} {'owner':12} {'age':>9} {'state':9} {'prio':>4} {'time left':>10} "
        f"{'starts in':>10}"
    ]
    for row in rows:
        state = "HELD" if row["held"] else row["state"]
        age = duration(max(0.0, now - row["created"]))
        lines.append(
            f"{row['order']:>3} {row['study']:30} {row['owner'] or _NO_OWNER:12} {age:>9} {state:9} "
            f"{row['priority']:>4} {_time(row['seconds_left']):>10} {_time(row['starts_in']):>10}"
        )
        lines += [f"  {row['reason']}"] if row["reason"] else []
    return "\n".join(lines)


def quota_table(quotas: Sequence[Quota]) -> str:
    """Return quotas, a line each."""
    if not quotas:
        return "no quota: studies run as they come, and owners share alike"
    lines = [f"{'owner':20} {'studies':>8} {'device hours':>13} {'days':>6} {'weight':>7}"]
    for one in quotas:
        hours, days = ("-", "-") if one.device_hours is None else (one.device_hours, one.days)
        studies = "-" if one.studies is None else one.studies
        weight = 1.0 if one.weight is None else one.weight
        lines.append(f"{one.owner:20} {studies:>8} {hours:>13} {days:>6} {weight:>7g}")
    return "\n".join(lines)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return duration(seconds) if seconds else "now"
