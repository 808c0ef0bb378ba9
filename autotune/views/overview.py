"""Status of studies, for people and for scripts."""

import math
from dataclasses import replace
from typing import Any

from autotune.analysis.standing import Present, Standing
from autotune.analysis.verdict import Kind, Verdict
from autotune.analysis.wording import Terms, duration, quantity
from autotune.config import StudySpec, secrets_withheld
from autotune.errors import OtherVersion
from autotune.measurement.estimate import Ratio
from autotune.views.figure_text import over_yours, short_ratio
from autotune.views.outlook import Outlook, outlook, present_of
from autotune.views.queue_table import waiting_of
from autotune.views.study_figures import as_json, gain_as_json
from autotune.views.verdict_text import shown
from storage import (
    LeaseState,
    Repository,
    SlotHealth,
    StoredStudy,
    StudyState,
)

_NO_SIGNS = {"progress_seconds": None, "slots": None}
"""Signs of a study that does not run."""
_UNKNOWN: dict[str, Any] = {
    **dict.fromkeys(("waiting", "trials", "device_hours", "doing", "next", "metric", "unit")),
    **dict.fromkeys(("baseline_rate", "leading_trial", "leading_ratio", "verdict")),
    **dict.fromkeys(("speedup", "energy_ratio")),
    "trials_by_state": {},
    "budget": dict.fromkeys(("trials", "wall_time", "device_hours")),
    "running": [],
    **_NO_SIGNS,
}
"""Standing of a study whose settings are of another version."""
_UNFINISHED = ("RUNNING", "QUEUED")


def status_of(repository: Repository, name: str) -> dict[str, Any]:
    """Return the standing of a study, for JSON."""
    study = repository.studies.named(name)
    quota = repository.quotas.reasons()(study.owner) if study.state == StudyState.QUEUED else ""
    return standing_of(repository, study, quota, repository.now())


def list_of(repository: Repository, last: int | None) -> list[dict[str, Any]]:
    """Return the standing of studies with their place in the order, for JSON.

    Args:
        last: number of the newest studies to return; None: all.
    """
    quota, now = repository.quotas.reasons(), repository.now()
    places = {study_id: at for at, study_id in enumerate(repository.studies.order(), 1)}
    return [
        {**standing_of(repository, study, quota(study.owner), now), "order": places.get(study.id)}
        for study in repository.studies.all(last)
    ]


def standing_of(
    repository: Repository, study: StoredStudy, quota: str, now: float
) -> dict[str, Any]:
    """Return the standing of a study, for JSON.

    Args:
        quota: quota of its owner that is exhausted; empty: none.
        now: seconds since the epoch, by the database's clock.
    """
    lease = repository.leases.serving(study)
    waiting = waiting_of(repository, study, quota, now)
    known = _known_of(repository, study, lease)
    try:
        spec = secrets_withheld.as_stored(study.spec)
    except OtherVersion as error:
        waits = study.state == StudyState.QUEUED
        told = {"waiting": waiting or str(error)} if waits else {"error": study.error or str(error)}
        return {**_UNKNOWN, **known, **told}
    served = study.state == StudyState.RUNNING and lease is not None
    found = present_of(repository, study, spec)
    standing = found.standing
    health = repository.studies.slots(study.id) if served else None
    seen = _outlook(study, spec, found, now, health, served=served)
    doing = repository.messages.status(study.id) if seen and seen.running else None
    runs = served and not waiting
    signs = _signs_of(repository, study.id, found, now) if runs else _NO_SIGNS
    return {
        **known,
        "waiting": waiting,
        "trials": standing.trials,
        "trials_by_state": standing.by_state,
        "budget": spec.budget.model_dump(),
        "device_hours": round(seen.device_hours, 4) if seen else None,
        "running": list(seen.running) if seen else [],
        "doing": doing.text if doing else None,
        "next": seen.next if seen else None,
        **signs,
        **_figures_of(study, spec, standing),
    }


def _known_of(
    repository: Repository, study: StoredStudy, lease: LeaseState | None
) -> dict[str, Any]:
    """Return what can be told of a study whose settings are not known, for JSON."""
    return {
        "study": study.name,
        "state": study.state.value,
        "owner": study.owner or None,
        "created": study.created,
        "storage": str(repository.database),
        "queue": study.queue,
        "retry_at": study.retry_at,
        "daemon": {"host": lease.machine, "pid": lease.pid} if lease else None,
        "elapsed_seconds": round(study.elapsed, 1),
        "error": study.error if study.state.ended else None,
    }


def _figures_of(study: StoredStudy, spec: StudySpec, now: Standing) -> dict[str, Any]:
    """Return what the trials of a study have shown so far, for JSON."""
    verdict = Verdict.from_dict(study.verdict) if study.verdict else None
    gain = gain_as_json(verdict.speedup if verdict else None, spec.unit)
    return {
        "metric": spec.objective.metric,
        "unit": spec.unit,
        "baseline_rate": now.baseline,
        "leading_trial": now.leading,
        "leading_ratio": as_json(now.ratio),
        **gain,
        "verdict": {**shown(verdict), **gain} if verdict else None,
    }


def _outlook(
    study: StoredStudy,
    spec: StudySpec,
    found: Present,
    now: float,
    health: SlotHealth | None,
    *,
    served: bool,
) -> Outlook | None:
    """Return what a study does, and what comes next; None before it has run.

    Args:
        now: seconds since the epoch, by the database's clock.
        health: what is known of its slots; None: nothing is.
    """
    if study.facts is None:
        return None
    seen = outlook(study, spec, found, now, health)
    return seen if served else replace(seen, running=(), next="")


def describe(status: dict[str, Any]) -> str:
    """Return the standing of a study as text."""
    counted = ", ".join(f"{count} {state}" for state, count in status["trials_by_state"].items())
    lines = [
        f"{status['study']}: {_state(status)}",
        f"  trials    {_of(status['trials'], status['budget']['trials'])}"
        + (f" ({counted})" if counted else ""),
        f"  elapsed   {_of_time(status)}",
        f"  storage   {status['storage']}",
    ]
    if status["daemon"]:
        lines.append(f"  daemon    pid {status['daemon']['pid']} on {status['daemon']['host']}")
    elif status["state"] in _UNFINISHED and (status["retry_at"] or not status["waiting"]):
        lines.append(f"  daemon    none; autotune resume {status['study']} starts one")
    if status["waiting"]:
        lines.append(f"  waits     {status['waiting']}")
    else:
        lines += [f"  running   {text}" for text in status["running"]]
        lines += [f"            {status['doing']}"] if status["doing"] else []
        lines += [f"  next      {status['next']}"] if status["next"] else []
        lines += _signs_shown(status)
    if status["leading_ratio"] and not status["verdict"]:
        ratio = over_yours(_ratio(status["leading_ratio"]), Terms.of(status["unit"]))
        lines.append(f"  leading   trial {status['leading_trial']}, {ratio}, seen once")
    if status["verdict"] and status["state"] != "DONE":
        lines.append(f"  verdict   (before it went on) {status['verdict']['sentence']}")
    if status["error"]:
        lines.append(f"  error     {status['error']}")
    return "\n".join(lines)


def _of(count: int | None, most: int | None) -> str:
    if count is None:
        return "?"
    return f"{count} of {most}" if most is not None else f"{count}"


def _of_time(status: dict[str, Any]) -> str:
    wall_time, hours = status["budget"]["wall_time"], status["device_hours"]
    text = duration(status["elapsed_seconds"])
    text += f" of {duration(wall_time)}" if wall_time is not None else ""
    if hours is None:
        return text
    most = status["budget"]["device_hours"]
    return f"{text}, {quantity(hours)}{f' of {most:g}' if most else ''} device hours"


def table(rows: list[dict[str, Any]], now: float) -> str:
    """Return the studies, a line each.

    Args:
        now: seconds since the epoch, by the database's clock.
    """
    if not rows:
        return "no studies yet"
    lines = [
        f"{'study':30} {'owner':12} {'age':>9} {'order':>5} {'state':18} {'trials':>6}  over yours"
    ]
    for row in rows:
        age = duration(max(0.0, now - row["created"]))
        lines.append(
            f"{row['study']:30} {row['owner'] or '-':12} {age:>9} {row.get('order') or '-':>5} "
            f"{_state(row):18} {_of(row['trials'], None):>6}  {_speedup(row)}"
        )
        lines += [f"  {row['waiting']}"] if row["waiting"] else []
    return "\n".join(lines)


def _speedup(row: dict[str, Any]) -> str:
    """Return the proven speed-up of a study, why there is none, or that of the trial that leads."""
    if row["verdict"]:
        return _proven(row) + (", before it went on" if row["state"] != StudyState.DONE else "")
    if not row["leading_ratio"]:
        return "-"
    terms = Terms.of(row["unit"])
    energy = " energy" if terms.of_energy else ""
    return f"{short_ratio(terms.said(_ratio(row['leading_ratio'])))}{energy}, seen once"


def _proven(row: dict[str, Any]) -> str:
    """Return the speed-up of a study's verdict, or why there is none."""
    if row["verdict"]["kind"] != Kind.BETTER:
        return str(row["verdict"]["kind"]).replace("_", " ")
    if row["speedup"]:
        return short_ratio(_ratio(row["speedup"]))
    return f"{short_ratio(_ratio(row['energy_ratio']))} energy" if row["energy_ratio"] else "-"


def _ratio(body: dict[str, Any]) -> Ratio:
    high = body["high"]
    return Ratio(body["value"], body["low"], math.inf if high is None else high)


def _state(row: dict[str, Any]) -> str:
    if row["state"] in _UNFINISHED and not row["daemon"]:
        return f"{row['state']}, no daemon"
    return "WAITING" if row["waiting"] else str(row["state"])


def _signs_of(repository: Repository, study_id: int, found: Present, now: float) -> dict[str, Any]:
    """Return the signs of life, ready for JSON.

    Args:
        now: seconds since the epoch, by the database's clock.

    Returns:
        `progress_seconds` since a run began, came a block further or ended, up to two more than that;
        `slots` with those `alive`, those `planned` and how many seconds ago what is `away` went; each
        None as long as nothing is known of it.
    """
    doing = repository.messages.status(study_id)
    known = [found.standing.moved, doing.at if doing else None]
    moments = [at for at in known if at is not None] + [a.started for a in found.running]
    return {
        "progress_seconds": round(max(0.0, now - max(moments)), 1) if moments else None,
        "slots": _slots(repository, study_id, now),
    }


def _slots(repository: Repository, study_id: int, now: float) -> dict[str, Any] | None:
    found = repository.studies.slots(study_id)
    if found is None:
        return None
    ago = {what: round(max(0.0, now - since), 1) for what, since in found.away.items()}
    return {"alive": found.alive, "planned": found.planned, "away": ago}


def _signs_shown(status: dict[str, Any]) -> list[str]:
    """Return the signs as lines for a person."""
    lines, slots = [], status["slots"]
    if slots:
        away = [f"; {what} {duration(ago)} ago" for what, ago in slots["away"].items()]
        lines.append(f"  slots     {slots['alive']} of {slots['planned']} alive{''.join(away)}")
    if status["progress_seconds"] is not None:
        lines.append(f"  progress  {duration(status['progress_seconds'])} ago")
    return lines
