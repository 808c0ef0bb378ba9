"""Looking at the baseline of a study before anything is searched: what holds it back?"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.analysis.findings import Finding, findings, listed
from autotune.errors import BadInput
from autotune.measurement.bottleneck import breakdown
from autotune.runs import requests as plan
from autotune.runs.judging import Judge, ProfileRun, TimedRun
from autotune.spec import StudySpec
from autotune.study.bench import PROFILED_STEPS
from autotune.trial.files import TrialFiles
from autotune.trial.protocol import TrialRequest
from launchers import Launcher
from search_spaces import infeasible
from storage import AttemptResult

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
    with plan.launcher(spec, folder) as launcher:
        return _Examination(spec, launcher, folder, workdir).run()


class _Examination:
    def __init__(self, spec: StudySpec, launcher: Launcher, folder: Path, workdir: Path) -> None:
        self._spec = spec
        self._launcher = launcher
        self._folder = folder
        self._workdir = workdir
        self._facts = plan.facts(spec, launcher)

    def run(self) -> Diagnosis:
        baseline = self._spec.full_baseline()
        if problems := infeasible(baseline, self._facts):
            raise BadInput("the baseline cannot run here: " + "; ".join(problems))
        judge = ProfileRun()
        request = self._request("profile", baseline)
        result = self._result(dataclasses.replace(request, profile=PROFILED_STEPS), judge)
        if result.state != "COMPLETE":
            raise BadInput(
                f"the baseline ended in {result.state}: {result.cause}\n{result.log_tail}".rstrip()
            )
        observed: Any = judge.seen[0].block.observed
        rising = self._rising(baseline)
        return Diagnosis(
            findings(observed, baseline, self._facts, rising),
            breakdown(observed["parts"]),
            rising,
            TrialFiles(Path(request.log_dir)).traces(),
        )

    def _rising(self, baseline: dict[str, Any]) -> float | None:
        doubled = {**baseline, "micro_batch": 2 * baseline["micro_batch"]}
        free = dataclasses.replace(self._facts, global_batch=None)
        if infeasible(doubled, free):
            return None
        rates: dict[str, list[float]] = {"once": [], "twice": []}
        for number in range(_PAIRS):
            for name, knobs in (("once", baseline), ("twice", doubled)):
                limits = plan.limits(self._spec, self._spec.measurement.search_precision)
                result = self._result(self._request(f"{name}-{number}", knobs), TimedRun(limits))
                if result.throughput is None:
                    return None
                rates[name].append(result.throughput)
        return sum(rates["twice"]) / sum(rates["once"])

    def _request(self, name: str, knobs: dict[str, Any]) -> TrialRequest:
        return plan.request(
            self._spec,
            self._launcher.slots[0],
            self._launcher.workers,
            name=name,
            knobs=knobs,
            workdir=str(self._workdir),
            log_dir=self._folder / name,
        )

    def _result(self, request: TrialRequest, judge: Judge) -> AttemptResult:
        return judge.result(self._launcher.slots[0].run(request, judge))


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
