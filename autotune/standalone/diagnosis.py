"""Diagnosis of a study's baseline before anything is searched: what limits its speed."""

import dataclasses
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.analysis.findings import Finding, findings, listed
from autotune.analysis.wording import quantity
from autotune.config import StudySpec
from autotune.errors import BadInput
from autotune.measurement.bottleneck import breakdown
from autotune.paths import diagnosis_mark
from autotune.runs.monitors import ProfileMonitor, TimedMonitor
from autotune.runs.one_off import OneOffRuns, why_not
from autotune.runs.request_shapes import profiled
from autotune.runs.study_setup import StudySetup, launcher_of
from autotune.worker.files import make_private
from search_spaces import infeasible
from search_spaces.batch import split_otherwise
from storage import AttemptResult

_PAIRS = 2
_OF_SPEED = {"metric": "samples_per_second", "power_limit": None}
"""Objective of the runs where that of the study is energy: the parts of a step are told in time."""


@dataclass(frozen=True)
class Diagnosis:
    """Result of a diagnosis.

    Attributes:
        findings: the largest share of the step first.
        parts: share of a step by part.
        throughput: of the baseline, in the unit of the objective; where that is energy, samples/s.
        rising: throughput with twice the micro-batch over the baseline's; None if that cannot run.
        traces: one per rank, for Perfetto.
    """

    findings: list[Finding]
    parts: dict[str, float]
    throughput: float
    unit: str
    rising: float | None
    traces: list[Path]


def diagnose(spec: StudySpec, folder: Path, workdir: Path) -> Diagnosis:
    """Profile the baseline, and time it against twice its micro-batch.

    Args:
        folder: for output and traces of the ranks.

    Raises:
        BadInput: the baseline cannot run here; the message has the reason.
    """
    if not spec.workload.observable:
        raise BadInput(
            f"a {spec.workload.noun} cannot be profiled: its ranks are its own; `autotune doctor` says "
            "which knobs act, and `autotune start` measures them"
        )
    if spec.objective.reads_energy:
        spec = spec.model_copy(update={"objective": spec.objective.model_copy(update=_OF_SPEED)})
    is_new = not folder.exists()
    make_private(folder)
    if is_new:
        diagnosis_mark(folder).touch()
    with launcher_of(spec, folder) as launcher:
        return _profiled_baseline(OneOffRuns(StudySetup(spec, launcher), folder, workdir))


def _profiled_baseline(one_off: OneOffRuns) -> Diagnosis:
    setup = one_off.setup
    setup.check_baseline()
    judge = ProfileMonitor()
    result = one_off.run("profile", setup.baseline, judge, profiled)
    if problem := why_not(result):
        raise BadInput(f"the baseline ended in {problem}")
    if not judge.seen:
        raise BadInput(f"the baseline shows nothing: {result.cause}")
    observed: Any = judge.seen[0].block.observed
    beyond_reach = setup.spec.workload.beyond_reach(setup.spec.values())
    throughput, rising = _speed(one_off)
    return Diagnosis(
        findings({**observed, "unusable": beyond_reach}, setup.baseline, setup.facts, rising),
        breakdown(observed["parts"]),
        throughput,
        setup.spec.unit,
        rising,
        one_off.files("profile").traces(),
    )


def _speed(one_off: OneOffRuns) -> tuple[float, float | None]:
    """Return the baseline's throughput, and the ratio of that with twice the micro-batch to it.

    Both are measured alternately. The ratio is None if the larger micro-batch cannot run.

    Raises:
        BadInput: the baseline ends in a failure.
    """
    setup = one_off.setup
    size = 2 * setup.baseline["micro_batch"]
    doubled: dict[str, Any] | None = {**setup.baseline, "micro_batch": size}
    if setup.spec.workload.keeps_global_batch:
        doubled = split_otherwise(setup.baseline, "micro_batch", size)
    free = dataclasses.replace(setup.facts, global_batch_size=None)
    refused = doubled is None or bool(infeasible(doubled, free))
    refused |= not setup.spec.workload.can_set("micro_batch", setup.spec.flags)
    once, twice = [], []
    for number in range(_PAIRS):
        run = _timed(one_off, f"once-{number}", setup.baseline)
        if run.throughput is None:
            raise BadInput(f"the baseline ended in {why_not(run)}")
        once.append(run.throughput)
        if doubled is not None and not refused:
            more = _timed(one_off, f"twice-{number}", doubled).throughput
            refused = more is None
            twice.append(more or 0.0)
    return statistics.fmean(once), None if refused else sum(twice) / sum(once)


def _timed(one_off: OneOffRuns, name: str, knobs: dict[str, Any]) -> AttemptResult:
    return one_off.run(name, knobs, TimedMonitor(one_off.setup.search_limits()))


def described(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the diagnosis as lines for a terminal."""
    more = f"; {diagnosis.rising:.2f}x with twice the micro-batch" if diagnosis.rising else ""
    yield f"Throughput of the baseline: {quantity(diagnosis.throughput)} {diagnosis.unit}{more}"
    yield ""
    yield from listed(diagnosis.findings, emphasis="")
    yield ""
    yield "A step: " + ", ".join(
        f"{name} {share:.1%}"
        for name, share in sorted(diagnosis.parts.items(), key=lambda part: -part[1])
        if share >= 0.0005 and name != "idle"
    )
    for trace in diagnosis.traces:
        yield f"Trace for https://ui.perfetto.dev: {trace}"
