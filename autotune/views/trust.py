"""Trust in the answer of a study: what is measured, what wants care, what is not known."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune.analysis.contributions import Contribution
from autotune.analysis.findings import Finding
from autotune.analysis.rounds import Round, Stage
from autotune.analysis.verdict import Kind, Verdict
from autotune.analysis.wording import Terms, counted, duration, share_text
from autotune.measurement.bottleneck import STRAGGLER
from autotune.measurement.estimate import Ratio
from autotune.measurement.policy import MEASUREMENT
from autotune.views.figure_text import (
    expected_text,
    least,
    loss_text,
    range_text,
    said_ratio,
    times,
)
from autotune.views.running import EnergyUse
from autotune.views.trial_figures import TrialFigures
from autotune.views.verdict_text import by_choice
from storage import SearchEndCause, StoredAttempt, StudyState

RESTLESS = 1.2
"""Highest over lowest rate of the baseline from which on its rates are no promise (judgement)."""
_OPENED_BY = {
    SearchEndCause.TRIALS: "budget.trials",
    SearchEndCause.DEVICE_HOURS: "budget.device_hours",
    SearchEndCause.WALL_TIME: "budget.wall_time",
    SearchEndCause.MIN_IMPROVEMENT: "budget.min_improvement",
}
"""Setting that a search would go on with, for each limit that ends one."""
_OFTEN_DISTURBED = 0.1
_MOST_PAUSED = 2.0
"""Time from the first run to the last, over that for which it was served, of one sitting (judgement)."""
_FINEST_DRIFT = 0.001


class Trust(StrEnum):
    """Kind of a point."""

    MEASURED = "measured"
    CARE = "care"
    OPEN = "open"


@dataclass(frozen=True)
class Point:
    """Statement about how far the answer holds.

    Attributes:
        code: of the statement, for programs.
        title: in a few words.
        text: in a sentence or two.
        setting: of the study file that would close an open point; empty if none would.
    """

    trust: Trust
    code: str
    title: str
    text: str
    setting: str = ""


@dataclass(frozen=True)
class Evidence:
    """Records that the points are derived from.

    Attributes:
        timed: attempts with a rate.
        search_end: cause that ended the search; None if it goes on, or if that is not recorded.
        environments: number of environments that were measured in.
        elapsed: seconds for which the study was served.
        energy: of the baseline and the recommended configuration; None where it was not read.
        warmup: seconds of a run's warm-up.
        drift: speed in the second half of a run of the rounds over that in the first; None if unknown.
        nodes: machines of the environment.
        device: 'cpu' or 'cuda'; empty if that was not recorded.
        watchable: whether `autotune run --watch` can watch the job.
        processes_seen: whether other processes on the GPUs could be seen.
    """

    verdict: Verdict
    rounds: Sequence[Round]
    trials: Sequence[TrialFigures]
    contributions: Sequence[Contribution]
    search_end: SearchEndCause | None
    expected_gain: float | None
    timed: tuple[StoredAttempt, ...]
    environments: int
    elapsed: float
    unit: str
    energy: EnergyUse | None
    warmup: float
    bottlenecks: Sequence[Finding]
    drift: Ratio | None = None
    refused: Collection[int] = ()
    nodes: int = 1
    device: str = ""
    watchable: bool = False
    state: StudyState = StudyState.RUNNING
    processes_seen: bool = True

    @property
    def better(self) -> bool:
        """True if something else than the baseline is recommended or leads."""
        return self.verdict.kind == Kind.BETTER

    @property
    def baseline(self) -> int | None:
        """Trial of the baseline."""
        return next((one.trial for one in self.trials if one.baseline), None)

    @property
    def baseline_rates(self) -> list[float]:
        """Rates of the baseline in the rounds, without those that do not count."""
        baseline = self.baseline
        if baseline is None:
            return []
        since = (one for one in self.rounds if one.stage is not Stage.BEFORE)
        return [one.rates[baseline] for one in since if baseline in one.rates]

    @property
    def span(self) -> float:
        """Seconds from the beginning of the first timed run to the end of the last one."""
        ends = [one.ended for one in self.timed if one.ended is not None]
        return max(ends, default=0.0) - min(one.started for one in self.timed)


def points(evidence: Evidence) -> tuple[Point, ...]:
    """Return all points, the measured ones first; none before anything was timed."""
    if not evidence.timed:
        return ()
    told = [point for point in (make(evidence) for make in _POINTS) if point is not None]
    return tuple(sorted(told, key=lambda point: list(Trust).index(point.trust)))


def _interleaved(known: Evidence) -> Point | None:
    verdict = known.verdict
    if not verdict.confirmed or not verdict.rounds or len(verdict.finalists) < 2:
        return None
    text = f"{counted(verdict.rounds, 'round')} in turn with yours.{by_choice(verdict)}"
    if verdict.chosen_in:
        text = (
            f"Selected in {counted(verdict.chosen_in, 'round')}; the figure comes from "
            f"{verdict.rounds} later ones."
        )
    return Point(Trust.MEASURED, "interleaved", "Compared in turn", text)


def _same_training(known: Evidence) -> Point | None:
    agreed = known.verdict.numerics
    if not known.better or agreed is None or agreed.loss_distance is None:
        return None
    return Point(Trust.MEASURED, "numerics", "The same training", f"The {loss_text(agreed)}.")


def _one_machine(known: Evidence) -> Point | None:
    if known.environments != 1:
        return None
    text = f"One environment, within {duration(known.span)}."
    title = "One machine" if known.nodes == 1 else f"The same {known.nodes} machines"
    if known.span <= _MOST_PAUSED * known.elapsed:
        title += ", one sitting"
    return Point(Trust.MEASURED, "one_machine", title, text)


def _within_power(known: Evidence) -> Point | None:
    used = known.energy
    if used is None or used.limit is None:
        return None
    before, after = used.watts
    limit = f"the limit is {used.limit:g} W"
    if after > used.limit:  # it is the baseline
        text = f"It takes {after:.4g} W a device on average; {limit}."
        return Point(Trust.CARE, "power", "Yours exceeds the power limit", text)
    text = f"It took {after:.4g} W a device on average, yours {before:.4g} W; {limit}."
    return Point(Trust.MEASURED, "power", "Within the power limit", text)


def _pace(known: Evidence) -> Point | None:
    """Return what the least energy costs in time."""
    used = known.energy
    if used is None or not known.better or not Terms.of(known.unit).of_energy:
        return None
    before, after = used.watts
    text = f"{times(used.speed)} as fast as yours, at {after:.4g} W a device instead of {before:.4g} W."
    if round(used.speed, 2) < 1:  # as it is told
        return Point(Trust.CARE, "pace", "It takes longer", f"It is {text}")
    return Point(Trust.MEASURED, "pace", "It takes no longer", f"It is {text}")


def _restless(known: Evidence) -> Point | None:
    rates = known.baseline_rates
    if not rates or max(rates) <= RESTLESS * min(rates):
        return None
    ran = range_text((min(rates), max(rates)), known.unit)
    text = f"Yours alone ran at {ran}."
    if known.better:
        text += " The ratio holds; the rates are no promise."
    return Point(Trust.CARE, "restless", "Restless machine", text)


def _straggler(known: Evidence) -> Point | None:
    found = next((one for one in known.bottlenecks if one.name == STRAGGLER), None)
    if found is None:
        return None
    text = f"{found.text[:1].upper()}{found.text[1:]}."
    if found.share is not None:
        text = f"In {found.share:.0%} of a step of yours {found.text}."
    return Point(Trust.CARE, "straggler", "A slow rank", text)


def _disturbed(known: Evidence) -> Point | None:
    disturbed = sum(bool(a.result.contended) for a in known.timed)
    if disturbed <= _OFTEN_DISTURBED * len(known.timed):
        return None
    text = f"Other processes disturbed {disturbed} of {len(known.timed)} runs."
    return Point(Trust.CARE, "disturbed", "Disturbed runs", text)


def _drifting(known: Evidence) -> Point | None:
    """Return that rates depend on how long a run is; blocks that merely scatter widen the interval."""
    drift, most = known.drift, 1 + MEASUREMENT.steady_drift
    if drift is None or (1 / most <= drift.high and drift.low <= most):
        return None
    size = share_text(abs(drift.value - 1), _FINEST_DRIFT)
    text = (
        f"The second half of a run is {size} {'faster' if drift.faster else 'slower'} than the first; "
        f"a warm-up takes {known.warmup:g} s at most."
    )
    return Point(Trust.CARE, "drift", "Speed changes within a run", text, "measurement.warmup")


def _provisional(known: Evidence) -> Point | None:
    if not known.verdict.provisional:
        return None
    text = "The study goes on; every figure may change."
    if known.state.ended:
        how = "was stopped" if known.state is StudyState.STOPPED else "failed"
        resume = f"`autotune resume {known.verdict.study}` goes on"
        text = f"The study {how} before its proof ended; {resume}."
    if not known.verdict.confirmed:
        luck = "Nothing is confirmed: whichever of many trials comes first owes a part to luck."
        text = f"{luck} {text}" if known.state.ended else luck
    return Point(Trust.CARE, "provisional", "Provisional", text)


def _batch(known: Evidence) -> Point | None:
    change = known.verdict.batch
    if change is None:
        return None
    text = f"From {change.before} to {change.after}: the learning rate has to be adjusted."
    return Point(
        Trust.CARE, "global_batch_size", "Another global batch", text, "objective.global_batch_size"
    )


def _unverified(known: Evidence) -> Point | None:
    verdict, agreed = known.verdict, known.verdict.numerics
    if not known.better or not verdict.touched or (agreed and agreed.loss_distance is not None):
        return None
    text = f"{', '.join(verdict.touched)} can change the loss, which could not be checked."
    return Point(Trust.CARE, "numerics_unchecked", "Numerics not checked", text)


def _risks(known: Evidence) -> Point | None:
    risks = known.verdict.risks
    return Point(Trust.CARE, "risks", "Not shown to be the same", risks) if risks else None


def _soak_failure(known: Evidence) -> Point | None:
    failure = known.verdict.soak_failure
    if failure is None:
        return None
    text = f"A run for minutes ended in {failure.state}: {failure.cause}."
    return Point(Trust.CARE, "soak_failure", "A longer run failed", text)


def _by_how_much(known: Evidence) -> Point | None:
    verdict = known.verdict
    if not known.better or not verdict.confirmed or verdict.speedup is None:
        return None
    terms = Terms.of(known.unit)
    text = least(verdict.speedup, terms)
    setting = "budget.wall_time" if verdict.missing_seconds else "measurement.rounds"
    title = f"By how much it is {terms.better}"
    return Point(Trust.OPEN, "width", title, text, setting) if text else None


def _which_change(known: Evidence) -> Point | None:
    """Return the changes of which it is not known whether they bring anything."""
    unknown = [one.knob for one in known.contributions if not one.gain.distinguishable]
    if not unknown:
        return None
    title, text = "Which change brings it", "Each may bring nothing, or all of it."
    if len(unknown) < len(known.contributions):
        title = "What some changes bring"
        text = f"{', '.join(unknown)}: alone not distinguishable from no gain."
    return Point(Trust.OPEN, "ablation", title, text, "measurement.ablation_rounds")


def _more_trials(known: Evidence) -> Point | None:
    if known.search_end not in _OPENED_BY:
        return None
    setting = _OPENED_BY[known.search_end]
    text = "The budget ended the search"
    if known.expected_gain is not None:
        text += f", when one more trial was expected to bring {expected_text(known.expected_gain)}"
    return Point(Trust.OPEN, "budget", "What more trials would find", f"{text}.", setting)


def _rival(known: Evidence) -> Point | None:
    """Return the trial that was seen better than the recommended one and was not measured again."""
    own = next((t for t in known.trials if t.recommended and not t.baseline), None)
    if own is None or own.ratio is None or not known.verdict.confirmed:
        return None
    able = [t for t in known.trials if not t.again and t.trial not in known.refused]
    others = [t for t in able if t.ratio is not None and t.interleaved == own.interleaved]
    better = [t for t in others if t.ratio and t.ratio.value > own.ratio.value]
    if not better:
        return None
    rival = max(better, key=lambda t: t.ratio.value if t.ratio else 0.0)
    assert rival.ratio is not None
    text = f"Seen once: {said_ratio(rival.ratio, Terms.of(known.unit))}; not measured again."
    return Point(
        Trust.OPEN,
        "rival",
        f"Whether trial {rival.trial} is as good",
        text,
        "measurement.finalists",
    )


def _lasting(known: Evidence) -> Point | None:
    verdict = known.verdict
    if not known.better or verdict.soak is not None or verdict.provisional:
        return None
    longest = max(a.result.wall_seconds for a in known.timed)
    text = f"The longest timed run took {duration(longest)}"
    text += "; `autotune run --watch` tells." if known.watchable else "."
    return Point(Trust.OPEN, "lasting", "Whether it lasts", text)


def _longest_samples(known: Evidence) -> Point | None:
    memory = known.verdict.memory
    if memory is None or not memory.untold:
        return None
    text = f"{memory.untold[:1].upper()}{memory.untold[1:]}."
    return Point(Trust.OPEN, "longest_samples", "Whether the longest samples fit", text)


_PROCESSES_UNSEEN = Point(
    Trust.OPEN,
    "processes_unseen",
    "Whether others used the GPUs",
    "Throttling was watched; other processes on the GPUs could not be seen, as in a container, unless "
    "it has the host's process ids (`docker run --pid=host`, `hostPID` in Kubernetes).",
)


def _unwatched(known: Evidence) -> Point | None:
    """Return that disturbances of GPUs were not seen, if no run has a reading of a device."""
    if known.device != "cuda":
        return None
    if any(a.digest.clock_mhz is not None for a in known.timed):
        return None if known.processes_seen else _PROCESSES_UNSEEN
    text = (
        "Throttling and other processes on the GPUs were not watched, as no device was read "
        "(`nvidia-ml-py`); `autotune doctor` says whether that is installed."
    )
    return Point(Trust.OPEN, "unwatched", "Whether the GPUs were disturbed", text)


_POINTS = (
    *(_interleaved, _same_training, _within_power, _pace, _one_machine),
    *(_restless, _straggler, _disturbed, _drifting, _provisional),
    *(_batch, _unverified, _risks, _soak_failure),
    *(_by_how_much, _which_change, _more_trials, _rival, _lasting, _longest_samples),
    _unwatched,
)
"""Makers of the points, in the order in which those of one kind are told."""
