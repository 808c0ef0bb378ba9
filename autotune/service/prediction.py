"""Prediction of what a study may take, from its settings and the queue alone: nothing is run."""

from autotune.analysis.wording import counted, duration
from autotune.config import StudySpec
from autotune.service.daemon import queue_for
from storage import Repository

_SECONDS_PER_HOUR = 3600.0


def predicted(repository: Repository, spec: StudySpec) -> str:
    """Return the largest number of trials, time and device hours, and what is before it."""
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
    queue = queue_for(spec)
    studies = repository.studies
    others = [s for s in studies.of_ids(studies.order()) if s.queue == queue and not s.held]
    before = [study.name for study in others if study.name != spec.name]
    lines.append(
        f"Before it: {', '.join(before)}." if before else "Nothing runs or waits before it."
    )
    return "\n".join(lines)
