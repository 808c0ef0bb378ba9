"""Looking at the baseline of a study before anything is searched: what holds it back?"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.analysis.findings import Finding, findings, listed
from autotune.errors import BadInput
from autotune.measurement.bottleneck import breakdown
from autotune.runs.judging import ProfileRun, TimedRun
from autotune.runs.plan import Plan, launcher_of, profiled
from autotune.runs.probe import Probe, why_not
from autotune.spec import StudySpec
from search_spaces import infeasible

_PAIRS = 2


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        findings: the largest share of the step first.
        parts: share of a step by part.
        rising: throughput with twice the micro-batch over the baseline's; None if that cannot run.
        traces: one per rank, for Perfetto.
    """

    findings: list[Finding]
    parts: dict[str, float]
    rising: float | None
    traces: list[Path]


def diagnose(spec: StudySpec, folder: Path, workdir: Path) -> Diagnosis:
    """Profile the baseline, and time it against twice its micro-batch.

    Args:
        spec: the study.
        folder: for output and traces of the ranks.
        workdir: where the ranks run.

    Raises:
        BadInput: the baseline cannot run here, with the reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with launcher_of(spec, folder) as launcher:
        return _looked_at(Probe(Plan(spec, launcher), folder, workdir))


def _looked_at(probe: Probe) -> Diagnosis:
    plan = probe.plan
    plan.check_baseline()
    judge = ProfileRun()
    result = probe.run("profile", plan.baseline, judge, profiled)
    if problem := why_not(result):
        raise BadInput(f"the baseline ended in {problem}")
    observed: Any = judge.seen[0].block.observed
    rising = _rising(probe)
    return Diagnosis(
        findings(observed, plan.baseline, plan.facts, rising),
        breakdown(observed["parts"]),
        rising,
        probe.files("profile").traces(),
    )


def _rising(probe: Probe) -> float | None:
    """Throughput with twice the micro-batch over the baseline's; None if that cannot run."""
    plan = probe.plan
    doubled = {**plan.baseline, "micro_batch": 2 * plan.baseline["micro_batch"]}
    if infeasible(doubled, dataclasses.replace(plan.facts, global_batch=None)):
        return None
    rates: dict[str, list[float]] = {"once": [], "twice": []}
    for number in range(_PAIRS):
        for name, knobs in (("once", plan.baseline), ("twice", doubled)):
            result = probe.run(f"{name}-{number}", knobs, TimedRun(plan.search_limits()))
            if result.throughput is None:
                return None
            rates[name].append(result.throughput)
    return sum(rates["twice"]) / sum(rates["once"])


def described(diagnosis: Diagnosis) -> Iterator[str]:
    """For people."""
    yield from listed(diagnosis.findings)
    yield ""
    yield "A step: " + ", ".join(
        f"{name} {share:.1%}"
        for name, share in sorted(diagnosis.parts.items(), key=lambda part: -part[1])
        if share >= 0.0005 and name != "idle"
    )
    for trace in diagnosis.traces:
        yield f"Trace for https://ui.perfetto.dev: {trace}"
