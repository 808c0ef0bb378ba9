"""Figures of a study as data, and their form in JSON; autotune.views.figures collects them."""

import dataclasses
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from autotune.analysis.batches import BatchBest
from autotune.analysis.contributions import Contribution
from autotune.analysis.findings import Finding
from autotune.analysis.rounds import Round
from autotune.analysis.saving import Cost, EnergySaving, Saving
from autotune.analysis.verdict import Kind, Verdict
from autotune.analysis.wording import Terms, counted
from autotune.measurement.estimate import Ratio
from autotune.views.composition import StepMade
from autotune.views.running import Conditions, EnergyUse, Racing, Running
from autotune.views.trial_figures import TrialFigures
from autotune.views.trust import Point
from storage import FinalistChoice, Purpose, SearchEndCause, StoredMessage, StoredNoise, StudyState

VERSION = 1
"""Version of the layout of the data."""


@dataclass(frozen=True)
class KnobChange:
    """Knob with its value in the baseline and in the recommended configuration."""

    knob: str
    before: Any
    after: Any


@dataclass(frozen=True)
class StudyAnswer:
    """Answer of a study.

    Attributes:
        text: the whole verdict in words.
        speedup: ratio of the rates, recommended configuration over baseline; None where there is none.
        trial: recommended one; None if there is none.
        baseline: trial of the baseline; None if it has not run.
        rounds: number of rounds that the speed-up rests on.
        chosen_in: number of earlier rounds, which chose.
        won: rounds that count in which the recommended configuration was the faster one, out of
            `compared`.
        rates: lowest and highest rate of the recommended configuration in its rounds; None before they
            support the answer.
        baseline_rates: those of the baseline.
        confirmed: True if rounds support it, and not only trials that were seen once.
    """

    kind: Kind
    text: str
    provisional: bool
    speedup: Ratio | None
    trial: int | None
    baseline: int | None
    rounds: int
    chosen_in: int
    won: int
    compared: int
    rates: tuple[float, float] | None
    baseline_rates: tuple[float, float] | None
    changes: tuple[KnobChange, ...]

    confirmed: bool

    @property
    def better(self) -> bool:
        """True if another configuration than the baseline is recommended, or leads so far."""
        return self.kind == Kind.BETTER and self.speedup is not None

    @property
    def gain(self) -> Ratio | None:
        """Speed-up of what is better than the baseline; None where nothing is known to be."""
        return self.speedup if self.better else None


@dataclass(frozen=True)
class Search:
    """Search of a study.

    Attributes:
        space: size of the search space, in words; empty if that was not recorded.
        ended: reason why the search ended, in words; None while it goes on.
        end_cause: the reason as data; None while it goes on, or where an earlier version ended it.
        expected_gain: relative gain that one more trial was expected to bring; None if unknown.
        stopped_early: trials ended early, and what that saved.
        choices: trials that were measured again, and the most promising others, each with its reason;
            empty where an earlier version chose.
    """

    space: str
    left_out: tuple[str, ...]
    trials: Mapping[str, int]
    failures: tuple["Failed", ...]
    ended: str | None
    end_cause: SearchEndCause | None
    expected_gain: float | None
    stopped_early: Racing
    choices: tuple[FinalistChoice, ...]


@dataclass(frozen=True)
class Failed:
    """Trials that failed in the same way.

    Attributes:
        cause: of the first of them; figures in the others' may differ.
    """

    state: str
    cause: str
    trials: tuple[int, ...]


@dataclass(frozen=True)
class Runs:
    """Runs for one purpose.

    Attributes:
        count: of those with a result, each of one configuration: a round has several.
    """

    purpose: Purpose
    count: int
    seconds: float


@dataclass(frozen=True)
class Job:
    """Job that is tuned.

    Attributes:
        arguments: of the workload, in words.
        world_size: ranks of a run; None before they are known.
        device: 'cpu' or 'cuda'; empty if that was not recorded.
        batch_before: global batch of the baseline; None where a script has its own, which is not known,
            and before the ranks are.
        batch_after: that of the recommended configuration; None likewise.
        hours_assumed: True if the length of the job is the default.
        run_words: words behind the file in `autotune run FILE`; None if the job loads it in its code.
    """

    workload: str
    arguments: str
    world_size: int | None
    device: str
    backend: str
    batch_before: int | None
    batch_after: int | None
    hours_assumed: bool
    run_words: tuple[str, ...] | None

    def run_with(self, file: str) -> str:
        """Return the command that runs it with a recommendation; empty if it loads that itself."""
        return (
            ""
            if self.run_words is None
            else " ".join(("autotune run", shlex.quote(file), *self.run_words))
        )

    @property
    def ranks(self) -> str:
        """Ranks in words, with what they run on: '2 ranks on the CPU'; empty if they are not known."""
        if self.world_size is None:
            return ""
        where = {"cpu": " on the CPU", "cuda": " on a GPU" if self.world_size == 1 else " on GPUs"}
        return f"{counted(self.world_size, 'rank')}{where.get(self.device, '')}"


@dataclass(frozen=True)
class Losses:
    """Loss by step, from equal weights and batches."""

    reference: tuple[float, ...]
    recommended: tuple[float, ...]


@dataclass(frozen=True)
class Standstill:
    """Reason why an unfinished study makes no progress, in a word or two and in a sentence."""

    title: str
    text: str


@dataclass(frozen=True)
class StudyFigures:
    """All figures of a study.

    Attributes:
        served: True if a daemon runs the study, or serves the queue that it waits in.
        waiting: reason why the study waits, though a daemon could run it; None if it does not.
        saving: of time, or of energy where that is the objective; None before rounds support it.
        energy: of both configurations; None where it was not read.
        measured: when the first timed run began and the last one ended, in seconds since the epoch; None
            before there is one.
        rounds: of the confirmation, in order.
        step: composition of a step before and after; None if it was not looked at.
        contributions: gain of each change; empty if that was not measured.
        contribution_rounds: rounds of them that the study asks for.
        batches: best configuration of each global batch, where there are several.
        bottlenecks: what holds the baseline back.
        traces: files of the profiles behind `step`, for https://ui.perfetto.dev.
        running: how the recommended configuration ran; None if it was not confirmed.
        noise: between runs of one configuration; None if unknown.
    """

    version: int
    study: str
    state: str
    error: str | None
    served: bool
    waiting: str | None
    created: float
    elapsed: float
    measured: tuple[float, float] | None
    unit: str
    job: Job
    answer: StudyAnswer
    cost: Cost
    saving: Saving | EnergySaving | None
    energy: EnergyUse | None
    trust: tuple[Point, ...]
    rounds: tuple[Round, ...]
    step: StepMade | None
    contributions: tuple[Contribution, ...]
    contribution_rounds: int
    search: Search
    trials: tuple[TrialFigures, ...]
    losses: Losses | None
    batches: tuple[BatchBest, ...]
    own_knobs: tuple[KnobChange, ...]
    running: Running | None
    noise: StoredNoise | None
    conditions: Conditions
    runs: tuple[Runs, ...]
    environments: tuple[Mapping[str, Any], ...]
    bottlenecks: tuple[Finding, ...]
    traces: tuple[str, ...]
    messages: tuple[StoredMessage, ...] = field(repr=False)
    verdict: Verdict = field(repr=False)

    @property
    def provisional(self) -> bool:
        """True until the study has ended."""
        return self.answer.provisional

    @property
    def earlier(self) -> bool:
        """True if the answer is a verdict from before the study went on."""
        return self.state != StudyState.DONE and not self.provisional

    @property
    def standstill(self) -> Standstill | None:
        """Why an unfinished study makes no progress; None if it has ended, or nothing hinders it."""
        if self.state not in (StudyState.RUNNING, StudyState.QUEUED):
            return None
        if self.waiting and (self.served or self.state == StudyState.QUEUED):
            return Standstill("waits", f"The study waits: {self.waiting.removesuffix('.')}.")
        if self.served:
            return None
        return Standstill(
            "no daemon", f"No daemon runs it: `autotune resume {self.study}` starts one."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the data for JSON."""
        body: dict[str, Any] = as_json(self)
        gain = gain_as_json(self.answer.speedup, self.unit)
        body["answer"] |= gain
        body["verdict"] |= gain
        body["messages"] = [message.text for message in self.messages]
        body["verdict"]["sentence"] = self.answer.text
        return body


def gain_as_json(gain: Ratio | None, unit: str) -> dict[str, Any]:
    """Return the ratio of an answer for JSON: as a speed-up, or as one of energies per sample.

    Args:
        gain: ratio of rates over the baseline; None if there is none.
    """
    terms = Terms.of(unit)
    said = None if gain is None else as_json(terms.said(gain))
    name, other = ("energy_ratio", "speedup") if terms.of_energy else ("speedup", "energy_ratio")
    return {name: said, other: None}


def as_json(value: Any) -> Any:
    """Return data for JSON: a ratio says whether it can be told from 1, an infinite bound is null.

    What a recommendation saves is no ratio, though it has an interval, too.
    """
    if isinstance(value, Verdict):
        return value.as_dict()
    if isinstance(value, Saving | EnergySaving):
        return as_json(dataclasses.asdict(value))
    if isinstance(value, Ratio):
        return {**as_json(vars(value)), "distinguishable": value.distinguishable}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): as_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.value if isinstance(value, Enum) else value
