"""Composition of a step of a configuration, from its run under the profiler."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.analysis.findings import Finding, findings
from autotune.analysis.verdict import Verdict
from autotune.measurement.bottleneck import STRAGGLER, breakdown
from autotune.measurement.measure import Measure
from launchers.site import lowest_capability
from search_spaces import Facts
from storage import Attempts, Purpose, Repository, StoredAttempt, StoredStudy

LABELS = {
    "compute": "forward and backward pass",
    "communication": "communication not hidden",
    STRAGGLER: "waiting for the slowest rank",
    "optimizer": "optimizer",
    "loader": "waiting for the loader",
    "copies": "copying batches",
    "synchronisation": "reading the loss",
    "launching": "the rest: Python, launching kernels",
}
"""Name of each part of a step in words."""
_MILLI = 1e3


@dataclass(frozen=True)
class Part:
    """Part of a step, in milliseconds."""

    name: str
    label: str
    before: float
    after: float


@dataclass(frozen=True)
class StepMade:
    """Composition of a step of the baseline and of the recommended configuration.

    The shares are those under the profiler; the time of a step is the confirmed one. A single look has
    no interval.

    Attributes:
        before: milliseconds of a step of the baseline.
        after: those of the recommended configuration; equal to `before` where the baseline is kept.
        looks: number of profiled steps of each.
    """

    before: float
    after: float
    parts: tuple[Part, ...]
    looks: tuple[int, int]


def composition(
    repository: Repository, attempts: Attempts, trial: int | None
) -> dict[str, float] | None:
    """Return the shares of a step by part; None if it was not profiled.

    See autotune.measurement.bottleneck.
    """
    profile = _profile(attempts, trial)
    blocks = repository.attempts.blocks(profile.id) if profile else []
    parts = blocks[0].observed.get("parts") if blocks else None
    return breakdown(parts) if parts else None


def before_and_after(
    repository: Repository, attempts: Attempts, verdict: Verdict, measure: Measure
) -> StepMade | None:
    """Return the composition of a step; None unless both were profiled and confirmed."""
    own = attempts.baseline()
    if own is None or verdict.trial is None or not verdict.baseline or not verdict.throughput:
        return None
    rates = verdict.baseline.value, verdict.throughput.value
    steps = [
        _step_seconds(repository, attempts, trial, rate, measure)
        for trial, rate in zip((own.trial, verdict.trial), rates, strict=True)
    ]
    made = [composition(repository, attempts, trial) for trial in (own.trial, verdict.trial)]
    before, after = made
    if before is None or after is None or steps[0] is None or steps[1] is None:
        return None
    first, second = (_MILLI * seconds for seconds in (steps[0], steps[1]))
    parts = [
        Part(name, label, before[name] * first, after[name] * second)
        for name, label in LABELS.items()
    ]
    looks = [_looked(repository, attempts, trial) for trial in (own.trial, verdict.trial)]
    return StepMade(first, second, tuple(parts), (looks[0], looks[1]))


def _step_seconds(
    repository: Repository, attempts: Attempts, trial: int, rate: float, measure: Measure
) -> float | None:
    """Return the seconds of a step at a confirmed rate; None if the trial was not confirmed."""
    run = attempts.of(Purpose.CONFIRM).of_trial(trial).measured().last
    kept = [block for block in repository.attempts.blocks(run.id) if block.kept] if run else []
    if not kept or not rate:
        return None
    steps = sum(block.steps for block in kept)
    if measure.of_energy:
        return sum(block.seconds for block in kept) / steps
    return sum(map(measure.work, kept)) / steps / rate


def _looked(repository: Repository, attempts: Attempts, trial: int) -> int:
    profile = _profile(attempts, trial)
    return repository.attempts.blocks(profile.id)[0].steps if profile else 0


def traces(study: StoredStudy, attempts: Attempts, trials: Iterable[int]) -> Iterator[Path]:
    """Yield the trace of the first rank of each profiled trial, for https://ui.perfetto.dev."""
    for trial in trials:
        if profile := _profile(attempts, trial):
            yield study.paths.attempt(profile.name).trace(0)


def bottlenecks(
    repository: Repository,
    study: StoredStudy,
    attempts: Attempts,
    baseline: dict[str, Any],
    unusable: Sequence[str] = (),
) -> list[Finding]:
    """Return what holds the baseline back, from its profile; nothing without one.

    Args:
        unusable: knobs that cannot act on this job.
    """
    own = attempts.of_baseline().first
    profile = _profile(attempts, own.trial if own else None)
    blocks = repository.attempts.blocks(profile.id) if profile else []
    if not profile or not blocks:
        return []
    if study.facts is not None:
        facts = recorded_facts(study.facts)
    else:
        environment = repository.environments.of_attempt(profile.id) or {"devices": []}
        facts = _guessed(environment, blocks[0].world_size)
    observed: dict[str, Any] = dict(blocks[0].observed)
    observed["unusable"] = [*observed.get("unusable", ()), *unusable]
    return findings(observed, baseline, facts)


def recorded_facts(facts: dict[str, Any]) -> Facts:
    """Return what a study has stored of its machine."""
    capability = facts["capability"]
    lists = {"capability": tuple(capability) if capability else None}
    return Facts(**{**facts, **lists, "rules": tuple(facts.get("rules", ()))})


def _guessed(environment: dict[str, Any], workers: int) -> Facts:
    """Return the facts of a study that kept none, as if its first node were all of them."""
    devices = environment["devices"]
    return Facts(
        "cuda" if devices else "cpu",
        workers,
        lowest_capability(environment),
        backend="nccl" if len(devices) >= workers else "gloo",
    )


def _profile(attempts: Attempts, trial: int | None) -> StoredAttempt | None:
    return attempts.of(Purpose.PROFILE).of_trial(trial).complete().first
