"""Prediction of what a study may take, from its settings and the queue alone: nothing is run."""

import contextlib
from collections.abc import Mapping
from typing import Any

from autotune.analysis.wording import counted, duration, quantity
from autotune.config import StudySpec
from autotune.errors import StudyNotFound
from autotune.service.queues import queue_for
from storage import Repository, StudyState
from storage.owner import user_name

_SECONDS_PER_HOUR = 3600.0


def predicted(
    spec: StudySpec, repository: Repository | None, priority: int | None = None
) -> dict[str, Any]:
    """Return the most that a study may take, and what it waits for, for JSON.

    A limit that is not known is None. `waiting` is the quota that keeps it waiting.

    Args:
        repository: that it would be queued in; None: there is none yet.
        priority: that it would begin with; None: as it is stored, or 0.
    """
    budget, ranks = spec.budget, spec.resources.known_workers
    hours = budget.device_hours
    if ranks and budget.wall_time is not None:
        by_time = ranks * budget.wall_time / _SECONDS_PER_HOUR
        hours = by_time if hours is None else min(hours, by_time)
    return {
        "study": spec.name,
        "trials": budget.trials,
        "wall_time": budget.wall_time,
        "device_hours": hours,
        "ranks": ranks,
        "before": _before(repository, spec, priority) if repository else [],
        "waiting": _quota(repository, spec) if repository else None,
    }


def prediction_text(found: Mapping[str, Any]) -> str:
    """Return in words what `predicted` has found."""
    trials, time, hours, ranks = (
        found[name] for name in ("trials", "wall_time", "device_hours", "ranks")
    )
    most = [
        "trials without a limit" if trials is None else counted(trials, "trial"),
        "no limit of time" if time is None else duration(time),
        "device hours without a limit" if hours is None else f"{quantity(hours)} device hours",
    ]
    on = counted(ranks, "rank") if ranks else "as many ranks as there are devices"
    before = ", ".join(found["before"])
    lines = [
        f"{found['study']}: at most {', '.join(most)}, on {on}. Nothing was started.",
        f"Before it: {before}." if before else "Nothing runs or waits before it.",
    ]
    return "\n".join(
        lines + ([f"It waits for the {found['waiting']}."] if found["waiting"] else [])
    )


def _before(repository: Repository, spec: StudySpec, priority: int | None) -> list[str]:
    """Return the names of the studies before one in its queue."""
    owner, _ = _stored(repository, spec)
    studies = repository.studies
    ahead = studies.ahead_of(spec.name, queue_for(spec), owner=owner, priority=priority)
    return [study.name for study in studies.of_ids(ahead)]


def _quota(repository: Repository, spec: StudySpec) -> str | None:
    """Return the quota that keeps a study waiting; None if there is none, or if it runs."""
    owner, runs = _stored(repository, spec)
    return None if runs else repository.quotas.reasons()(owner) or None


def _stored(repository: Repository, spec: StudySpec) -> tuple[str, bool]:
    """Return the owner that a study has or will have, and whether it runs."""
    with contextlib.suppress(StudyNotFound):
        known = repository.studies.named(spec.name)
        return known.owner or user_name(), known.state == StudyState.RUNNING
    return user_name(), False
