"""What a step of a configuration is made of, from its run under the profiler."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune.analysis.findings import findings, listed
from autotune.measurement.bottleneck import STRAGGLER, breakdown
from autotune.paths import StudyPaths
from launchers.site import lowest_capability
from search_spaces import Facts
from storage import Attempts, Purpose, Repository, StoredAttempt, StoredStudy

_LABELS = {
    "compute": "forward and backward pass",
    "communication": "communication not hidden",
    STRAGGLER: "waiting for the slowest rank",
    "optimizer": "optimizer",
    "loader": "waiting for the loader",
    "copies": "copying batches",
    "synchronisation": "reading the loss",
    "launching": "the rest: Python, launching kernels",
}
_MICRO = 1e6


def composition(
    repository: Repository, attempts: Attempts, trial: int | None
) -> dict[str, float] | None:
    """Shares of a step by part, see autotune.measurement.bottleneck; None if it was not profiled."""
    profile = _profile(attempts, trial)
    blocks = repository.attempts.blocks(profile.id) if profile else []
    parts = blocks[0].observed.get("parts") if blocks else None
    return breakdown(parts) if parts else None


def composition_table(
    repository: Repository,
    study: StoredStudy,
    attempts: Attempts,
    rates: dict[int, float],
) -> Iterator[str]:
    """One column per profiled trial.

    Args:
        rates: confirmed samples (or tokens) per second of each trial to show, in that order.
    """
    shown = {t: made for t in rates if (made := composition(repository, attempts, t)) is not None}
    if not shown:
        return
    yield "### What a step is made of"
    yield ""
    yield "| part | " + " | ".join(f"trial {trial}" for trial in shown) + " |"
    yield "|---|" + "---|" * len(shown)
    for part, label in _LABELS.items():
        cells = [
            f"{made[part]:.1%}, {made[part] / rates[trial] * _MICRO:,.4g} µs"
            for trial, made in shown.items()
        ]
        yield f"| {label} | " + " | ".join(cells) + " |"
    if any(made["idle"] for made in shown.values()):
        yield "| device idle | " + " | ".join(f"{m['idle']:.1%}" for m in shown.values()) + " |"
    yield ""
    yield (
        "Shares of a step under the profiler, which itself slows small operators down, and the time "
        "that makes of a sample (or token) at the confirmed rate. Traces for https://ui.perfetto.dev:"
    )
    for trial in shown:
        yield f"- trial {trial}: `{_trace(study, attempts, trial)}`"


def held_back(
    repository: Repository,
    study: StoredStudy,
    attempts: Attempts,
    baseline: dict[str, Any],
    unusable: Sequence[str] = (),
) -> Iterator[str]:
    """Yield what holds the baseline back, from its profile.

    Args:
        unusable: knobs that cannot act on this job.
    """
    own = attempts.of_baseline().first
    profile = _profile(attempts, own.trial if own else None)
    blocks = repository.attempts.blocks(profile.id) if profile else []
    if not profile or not blocks:
        return
    if study.facts is not None:
        facts = recorded_facts(study.facts)
    else:
        environment = repository.environments.of_attempt(profile.id) or {"devices": []}
        facts = _guessed(environment, blocks[0].workers)
    observed: dict[str, Any] = dict(blocks[0].observed)
    observed["unusable"] = [*observed.get("unusable", ()), *unusable]
    known = findings(observed, baseline, facts)
    yield "### What holds the baseline back"
    yield ""
    yield from listed(known)


def recorded_facts(facts: dict[str, Any]) -> Facts:
    """What a study has stored of its machine."""
    capability = facts["capability"]
    lists = {"capability": tuple(capability) if capability else None}
    return Facts(**{**facts, **lists, "rules": tuple(facts.get("rules", ()))})


def _guessed(environment: dict[str, Any], workers: int) -> Facts:
    """For a study of an older version, which kept no facts: as if its first node were all."""
    devices = environment["devices"]
    return Facts(
        "cuda" if devices else "cpu",
        workers,
        lowest_capability(environment),
        backend="nccl" if len(devices) >= workers else "gloo",
    )


def _profile(attempts: Attempts, trial: int | None) -> StoredAttempt | None:
    return attempts.of(Purpose.PROFILE).of_trial(trial).complete().first


def _trace(study: StoredStudy, attempts: Attempts, trial: int) -> Path:
    profile = _profile(attempts, trial)
    assert profile is not None
    return StudyPaths(Path(study.workdir), study.name, study.key).attempt(profile.name).trace(0)
