"""Prediction of what a study may take, from its settings and the queue alone: nothing is run."""

import contextlib
from collections.abc import Iterator

from autotune.analysis.wording import counted, duration
from autotune.config import StudySpec
from autotune.errors import StudyNotFound
from autotune.service.queues import queue_for
from storage import Repository, StudyState
from storage.holders import user_name

_SECONDS_PER_HOUR = 3600.0


def predicted(repository: Repository, spec: StudySpec, priority: int | None = None) -> str:
    """Return the largest number of trials, time and device hours, and what the study waits for.

    Args:
        repository: that it would be queued in.
        spec: of the study.
        priority: that it would begin with; None: as it is stored, or 0.
    """
    budget, ranks = spec.budget, spec.resources.known_workers
    trials = "trials without a limit" if budget.trials is None else counted(budget.trials, "trial")
    time = "no limit of time" if budget.wall_time is None else duration(budget.wall_time)
    hours = budget.device_hours
    if ranks and budget.wall_time is not None:
        by_time = ranks * budget.wall_time / _SECONDS_PER_HOUR
        hours = by_time if hours is None else min(hours, by_time)
    used = "device hours without a limit" if hours is None else f"{hours:.3g} device hours"
    on = f"{counted(ranks, 'rank')}" if ranks else "as many ranks as there are devices"
    lines = [f"{spec.name}: at most {trials}, {time}, {used}, on {on}. Nothing was started."]
    return "\n".join([*lines, *_waits_for(repository, spec, priority)])


def _waits_for(repository: Repository, spec: StudySpec, priority: int | None) -> Iterator[str]:
    """Return what is before a study in its queue, and the quota that keeps it waiting."""
    studies, owner, runs = repository.studies, user_name(), False
    with contextlib.suppress(StudyNotFound):
        known = studies.named(spec.name)
        owner, runs = known.owner or owner, known.state == StudyState.RUNNING
    ahead = studies.ahead_of(spec.name, queue_for(spec), owner=owner, priority=priority)
    names = [study.name for study in studies.of_ids(ahead)]
    yield f"Before it: {', '.join(names)}." if names else "Nothing runs or waits before it."
    if not runs and (reason := repository.quotas.reasons()(owner)):
        yield f"It waits for the {reason}."
