"""Numerics gate: which runs a finalist needs beside its fp32 reference, and what they show.

No finalist is recommended whose training leaves the reference, nor, unless the study says so, one that
could not be compared with it. Pure functions over records.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autotune.analysis.finalists import Candidate
from autotune.analysis.sameness import Comparison, Rules
from autotune.measurement import gradients
from autotune.measurement.gradients import RoundingErrors
from autotune.measurement.numerics import (
    Agreement,
    Pair,
    Trajectory,
    agreement,
    trajectory,
)
from autotune.measurement.policy import PROOF
from search_spaces import CATALOGUE, defaults
from search_spaces.batch import split_otherwise
from search_spaces.constraints import conflicts_in
from search_spaces.knob import DATA, GRAPH
from search_spaces.words import Knobs
from storage import TRAJECTORIES, Attempts, AttemptState, Blocks, Purpose, StoredAttempt


@dataclass(frozen=True)
class Check:
    """Run that the gate needs.

    Attributes:
        seed: number of its seed; the first is the study's own.
        reference: trajectory to compare it with; None: the run is the reference.
        formats: configurations of both.
        earlier: pairs of runs with other seeds.
        rounding: errors of gradients under plain autocast; empty if not known.
    """

    purpose: Purpose
    trial: int
    knobs: dict[str, Any]
    seed: int = 0
    reference: Trajectory | None = None
    formats: tuple[dict[str, Any], ...] = ()
    earlier: tuple[Pair, ...] = ()
    rounding: tuple[RoundingErrors, ...] = ()

    @property
    def run(self) -> "MissingRun":
        """The run by itself."""
        safe = self.formats[-1] if self.formats else self.knobs
        return MissingRun(self.purpose, self.knobs, safe)


@dataclass(frozen=True)
class Refusal:
    """Finalist that did not pass."""

    trial: int
    knobs: dict[str, Any]
    reason: str


@dataclass(frozen=True)
class GateRecord:
    """Findings of the gate.

    Attributes:
        passed: trial -> how closely it follows the reference.
        refused: refusals, in the order in which they were checked.
        unverified: trial -> why there is nothing to compare it with.
        harmless: names of the study's own knobs that are not checked: they cannot change the loss.
        risks: trial -> sentences on what is not shown of its data, graph and statistics, for trials that
            were measured again.
    """

    passed: dict[int, Agreement] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()
    unverified: dict[int, str] = field(default_factory=dict)
    harmless: Collection[str] = frozenset()
    risks: dict[int, str] = field(default_factory=dict)


def next_check(
    candidates: Sequence[Candidate], baseline: Knobs, attempts: Attempts, blocks: Blocks
) -> Check | None:
    """Return the run that is missing before these candidates may be confirmed; None if none is."""
    own, others = _own_checks(attempts), _unproven(attempts, blocks)
    for candidate in candidates:
        if not touched(candidate.knobs, baseline, attempts.harmless):
            continue
        checked, reference = _checkable(candidate.knobs, baseline, _references(attempts))
        if reference is None:
            return Check(Purpose.REFERENCE, candidate.trial, reference_knobs(checked, baseline))
        if reference.result.state != AttemptState.COMPLETE:
            continue
        if candidate.trial not in own and _as_others(checked, others, attempts.harmless):
            continue
        check = _next_seed(candidate.trial, checked, reference.knobs, attempts, blocks)
        if check is not None and _lacks_rounding(check, reference, attempts, blocks):
            return Check(Purpose.AUTOCAST, candidate.trial, reference.knobs, check.seed)
        if check is not None:
            return check
    return None


def _lacks_rounding(
    check: Check, reference: StoredAttempt, attempts: Attempts, blocks: Blocks
) -> bool:
    """Return whether a run must tell how far plain autocast deviates the gradient with a check's seed.

    Convolutional networks with normalisation amplify rounding, by as much as weights and batch
    decide. Without gradients the run cannot tell.
    """
    done = attempts.of(Purpose.AUTOCAST).with_seed(check.seed).conclusive()
    if check.purpose is not Purpose.NUMERICS or done.with_knobs(reference.knobs):
        return False
    seen = [block.observed for block in blocks(reference.id)]
    return any("gradient" in one for one in seen) and any(one.get("convolutions") for one in seen)


def _rounding(
    safe: Knobs, seed: int, attempts: Attempts, blocks: Blocks
) -> tuple[RoundingErrors, ...]:
    """Return how far plain autocast deviates the gradient of a reference; empty if not known.

    Studies of earlier versions know it for the first seed alone, which then stands for all.
    """
    runs = attempts.of(Purpose.AUTOCAST).complete().with_knobs(safe)
    run = runs.with_seed(seed).first or runs.first
    if run is None:
        return ()
    references = attempts.of(Purpose.REFERENCE).with_seed(run.round).complete()
    reference = references.with_knobs(safe).first
    if reference is None:
        return ()
    return gradients.rounding_of(
        trajectory(blocks(run.id)).first, trajectory(blocks(reference.id)).first
    )


def _next_seed(
    trial: int, checked: dict[str, Any], safe: dict[str, Any], attempts: Attempts, blocks: Blocks
) -> Check | None:
    """Return the run that is missing while the answer is open; None if none is."""
    done = list(attempts.of(Purpose.NUMERICS).conclusive().of_trial(trial))
    if done and not _is_open(done[-1], attempts, blocks):
        return None
    for seed in range(1 + max((a.round for a in done), default=-1), PROOF.most_seeds):
        references = attempts.of(Purpose.REFERENCE).with_seed(seed).conclusive().with_knobs(safe)
        if not references:
            return Check(Purpose.REFERENCE, trial, safe, seed)
        if (reference := references.complete().first) is not None:
            return Check(
                Purpose.NUMERICS,
                trial,
                checked,
                seed,
                trajectory(blocks(reference.id)),
                (checked, safe),
                tuple(_pair(a, attempts, blocks)[0] for a in done),
                _rounding(safe, seed, attempts, blocks),
            )
    return None


def _is_open(attempt: StoredAttempt, attempts: Attempts, blocks: Blocks) -> bool:
    if attempt.result.state != AttemptState.COMPLETE:
        return False
    return compared(attempt, attempts, blocks).open


class MissingRun(NamedTuple):
    """Run of the gate that has yet to be made.

    Attributes:
        safe: configuration of its reference; that of a reference is its own.
    """

    purpose: Purpose
    knobs: dict[str, Any]
    safe: dict[str, Any]

    def beside(self, purpose: Purpose) -> "MissingRun":
        """Return the run of its reference with this purpose."""
        return MissingRun(purpose, self.safe, self.safe)


def missing_runs(
    finalists: Iterable[Knobs], baseline: Knobs, attempts: Attempts, *, convolutional: bool = False
) -> list[MissingRun]:
    """Return the runs that must be made before these may be confirmed, if each passes at once.

    Args:
        finalists: configurations.
        baseline: a value for every knob.
        convolutional: True if the model has convolutions, so that plain autocast is run as well.
    """
    missing: list[MissingRun] = []
    for knobs in finalists:
        if touched(knobs, baseline, attempts.harmless):
            found = _missing_runs_of(knobs, baseline, attempts, convolutional=convolutional)
            shared = [run for run in missing if run.purpose is not Purpose.NUMERICS]
            missing += [run for run in found if run not in shared]
    return missing


def _missing_runs_of(
    knobs: Knobs, baseline: Knobs, attempts: Attempts, *, convolutional: bool
) -> list[MissingRun]:
    checked, reference = _checkable(knobs, baseline, _references(attempts))
    safe = reference_knobs(checked, baseline)
    own = {searched.trial for searched in attempts.searched().with_knobs(knobs)}
    missing = [] if reference else [MissingRun(Purpose.REFERENCE, safe, safe)]
    done = attempts.of(Purpose.NUMERICS).conclusive().with_knobs(checked)
    if not any(check.trial in own for check in done):
        if convolutional and not attempts.of(Purpose.AUTOCAST).conclusive().with_knobs(safe):
            missing.append(MissingRun(Purpose.AUTOCAST, safe, safe))
        missing.append(MissingRun(Purpose.NUMERICS, checked, safe))
    # That other seeds are needed, only their runs tell.
    for cut in attempts.of(*TRAJECTORIES).to_repeat():
        run = MissingRun(cut.purpose, cut.knobs, safe)
        if cut.trial in own and run not in missing:
            missing.append(run)
    return missing


def unverified(attempts: Attempts, blocks: Blocks, baseline: Knobs) -> dict[int, str]:
    """Return trials of the search of which nothing shows whether they are right, with the reason.

    The reference failed, or a run began with other weights or rows than the reference, or the references
    with the other seeds that it takes failed.
    """
    found = {}
    own, others = _own_checks(attempts), _unproven(attempts, blocks)
    # Looked up once: there may be thousands of trials, and this is called after each.
    references = _references(attempts)
    for trial in attempts.searched().complete() if references else ():
        if not touched(trial.knobs, baseline, attempts.harmless):
            continue
        checked, reference = _checkable(trial.knobs, baseline, references)
        if reference is not None and reference.result.state != AttemptState.COMPLETE:
            found[trial.trial] = _ended(reference, "the reference")
        elif check := own.get(trial.trial):
            safe = reference_knobs(checked, baseline)
            found[trial.trial] = _nothing_shown(check, safe, attempts, blocks)
        else:
            found[trial.trial] = _as_others(checked, others, attempts.harmless)
    return {trial: why for trial, why in found.items() if why}


def refused_knobs(
    attempts: Attempts, unverified: Collection[int], baseline: Knobs
) -> dict[int, list[str]]:
    """Return trials of the search that are refused, with the knobs without which one may pass.

    Where its own check refuses one, they are its number formats, if it has any. Without a check that
    shows anything they are all that would have to be checked.

    Args:
        unverified: trials of which nothing shows whether they are right.
        baseline: a value for every knob.
    """
    failed = {
        n for n, a in _own_checks(attempts).items() if a.result.state != AttemptState.COMPLETE
    }
    found = {}
    for one in attempts.searched().measured():
        if one.trial in failed or one.trial in unverified:
            names = touched(one.knobs, baseline, attempts.harmless)
            formats = [n for n in names if n in CATALOGUE and CATALOGUE[n].number_format]
            found[one.trial] = formats if formats and one.trial in failed else names
    return found


def _ended(reference: StoredAttempt, what: str) -> str:
    return f"{what} ended in {reference.result.state}: {reference.result.cause}"


def _own_checks(attempts: Attempts) -> dict[int, StoredAttempt]:
    """Return the last check of each trial that has one."""
    return {check.trial: check for check in attempts.of(Purpose.NUMERICS).conclusive()}


def _nothing_shown(
    check: StoredAttempt, safe: dict[str, Any], attempts: Attempts, blocks: Blocks
) -> str:
    """Return why the last check of a trial shows nothing; empty if it does, has failed, or goes on."""
    if check.result.state != AttemptState.COMPLETE:
        return ""
    agreed = compared(check, attempts, blocks)
    if not agreed.open or _next_seed(check.trial, check.knobs, safe, attempts, blocks):
        return agreed.unproven
    references = attempts.of(Purpose.REFERENCE).conclusive().with_knobs(safe)
    failed = [one for one in references if one.result.state != AttemptState.COMPLETE]
    what = "the seeds so far tell too little, and the reference with another"
    return _ended(failed[-1], what) if failed else ""


class _Unproven(NamedTuple):
    """Check that proved nothing.

    Attributes:
        whatever_start: True if the reason holds for other weights and rows, too.
    """

    knobs: dict[str, Any]
    why: str
    whatever_start: bool

    def covers(self, checked: Knobs, harmless: Collection[str]) -> bool:
        """Return whether a check of this configuration would prove nothing either."""
        if _training(self.knobs) != _training(checked):
            return False
        return self.whatever_start or _start(self.knobs, harmless) == _start(checked, harmless)


def _training(knobs: Knobs) -> tuple[dict[str, Any], float]:
    """Return the samples of a step, and the rounding of the number formats."""
    return _trained(knobs), gradients.null_of(knobs)


def _start(knobs: Knobs, harmless: Collection[str]) -> dict[str, Any]:
    """Return what may change the weights or rows that a run begins with."""
    own = {name: knobs[name] for name in knobs if name not in CATALOGUE and name not in harmless}
    known = {name: knobs[name] for name, knob in CATALOGUE.items() if knob.changes & {DATA, GRAPH}}
    return {**known, **own}


def _unproven(attempts: Attempts, blocks: Blocks) -> list[_Unproven]:
    """Return the checks that could not be compared with their reference."""
    runs = attempts.of(Purpose.NUMERICS).recorded().complete()
    found = [(run.knobs, compared(run, attempts, blocks)) for run in runs]
    return [
        _Unproven(knobs, agreed.unproven, agreed.whatever_start)
        for knobs, agreed in found
        if agreed.unproven
    ]


def _as_others(checked: Knobs, others: Iterable[_Unproven], harmless: Collection[str]) -> str:
    """Return why a check would prove nothing, like those of other trials; empty if it may prove."""
    return next((one.why for one in others if one.covers(checked, harmless)), "")


def record(attempts: Attempts, blocks: Blocks, baseline: Knobs, rules: Rules) -> GateRecord:
    """Return the findings of the recorded runs.

    Args:
        baseline: a value for every knob.
        rules: what the study allows to change of the training.
    """
    passed: dict[int, Agreement] = {}
    comparison = Comparison(attempts, blocks, baseline, rules)
    refused = _refused(comparison.refused(), attempts)
    for attempt in attempts.of(Purpose.NUMERICS).conclusive():
        if attempt.result.state == AttemptState.COMPLETE:
            agreed = compared(attempt, attempts, blocks)
            if not agreed.open and not agreed.unproven:
                passed[attempt.trial] = agreed
        else:
            cause = attempt.result.cause or attempt.result.state
            # It is checked with a smaller micro-batch.
            own = attempts.of(Purpose.SEARCH).of_trial(attempt.trial).first or attempt
            refused.append(Refusal(attempt.trial, own.knobs, cause))
    without = unverified(attempts, blocks, baseline)
    if rules.reject_unverified:
        refused += _refused_unchecked(without, attempts)
        without = {}
    risks = {
        run.trial: " ".join(comparison.open(run.trial, run.knobs))
        for run in attempts.of(Purpose.CONFIRM).recorded()
    }
    return GateRecord(passed, tuple(refused), without, attempts.harmless, risks)


def _refused_unchecked(without: Mapping[int, str], attempts: Attempts) -> list[Refusal]:
    reasons = {
        trial: f"its loss could not be checked ({why}); measurement.unverified_numerics: allow would "
        "recommend it all the same"
        for trial, why in without.items()
    }
    return _refused(reasons, attempts)


def _refused(reasons: Mapping[int, str], attempts: Attempts) -> list[Refusal]:
    """Return refusals of the trials that are faster than the baseline, the fastest first."""
    baseline = attempts.baseline()
    least = baseline.result.throughput or 0.0 if baseline else 0.0
    runs = [a for a in attempts.searched().complete() if a.trial in reasons]
    faster = [a for a in runs if (a.result.throughput or 0.0) > least]
    faster.sort(key=lambda a: -(a.result.throughput or 0.0))
    return [Refusal(a.trial, a.knobs, reasons[a.trial]) for a in faster]


def compared(attempt: StoredAttempt, attempts: Attempts, blocks: Blocks) -> Agreement:
    """Compare a recorded trajectory with its reference, which is always recorded before it.

    Earlier pairs with other seeds are included.
    """
    (run, reference), formats = _pair(attempt, attempts, blocks)
    own = attempts.of(Purpose.NUMERICS).of_trial(attempt.trial).complete()
    earlier = [_pair(a, attempts, blocks)[0] for a in own if a.round < attempt.round]
    rounding = _rounding(formats[-1], attempt.round, attempts, blocks)
    return agreement(run, reference, formats=formats, earlier=earlier, rounding=rounding)


def _pair(
    attempt: StoredAttempt, attempts: Attempts, blocks: Blocks
) -> tuple[Pair, tuple[dict[str, Any], ...]]:
    """Return a checked run with its reference, and the configurations of both."""
    # By what is trained alone: the rest of a reference is the same throughout a study.
    earlier = [
        a
        for a in attempts.of(Purpose.REFERENCE).with_seed(attempt.round).complete()
        if a.id < attempt.id and _trained(a.knobs) == _trained(attempt.knobs)
    ]
    pair = (trajectory(blocks(attempt.id)), trajectory(blocks(earlier[-1].id)))
    return pair, (attempt.knobs, earlier[-1].knobs)


def touched(knobs: Knobs, baseline: Knobs, harmless: Collection[str] = frozenset()) -> list[str]:
    """Return knobs that may change the numbers of training, against baseline and defaults.

    Args:
        harmless: names of the study's own knobs that cannot; any other of them may.
    """
    own = [name for name in baseline if name not in CATALOGUE and name not in harmless]
    known = [
        name
        for name, knob in CATALOGUE.items()
        if knob.numerics and knobs[name] not in (baseline[name], knob.default)
    ]
    return known + [name for name in own if knobs[name] != baseline[name]]


def reference_knobs(checked: Knobs, baseline: Knobs) -> dict[str, Any]:
    """Return the baseline in fp32, with the samples per step of the checked configuration.

    A knob of the baseline that does not go with that has its default.
    """
    plain = defaults()
    formats = {name: plain[name] for name, knob in CATALOGUE.items() if knob.number_format}
    fixed = {**formats, **_trained(checked)}
    knobs = {**baseline, **fixed}
    known = set(conflicts_in(baseline))  # on another device than its own
    while new := set(conflicts_in(knobs)) - known:
        pairs = {name for conflict in new for name in conflict.pair}
        loose = {name for name in pairs - set(fixed) if knobs[name] != plain[name]}
        if not loose:
            break
        knobs |= {name: plain[name] for name in loose}
    return knobs


def _trained(knobs: Knobs) -> dict[str, Any]:
    return {name: knobs[name] for name, knob in CATALOGUE.items() if knob.schedule}


def _references(attempts: Attempts) -> Attempts:
    """Return the references with the first seed that have run for as long as they had to."""
    return attempts.of(Purpose.REFERENCE).with_seed(0).conclusive()


def _checkable(
    knobs: Knobs, baseline: Knobs, references: Attempts
) -> tuple[dict[str, Any], StoredAttempt | None]:
    """Return the configuration as it is checked, and its reference; None if that has not run.

    The micro-batch is at most the baseline's. Where the reference runs out of memory
    all the same, it is halved until the reference fits.
    """
    most = min(knobs["micro_batch"], baseline["micro_batch"])
    for checked in _in_smaller(knobs, most, keeps_batch=references.keeps_batch):
        reference = references.with_knobs(reference_knobs(checked, baseline)).first
        if reference is None or reference.result.state != AttemptState.OOM:
            break
    return checked, reference


def _in_smaller(knobs: Knobs, most: int, *, keeps_batch: bool) -> Iterator[dict[str, Any]]:
    """Yield a configuration with this micro-batch, and with half of it, down to 1.

    Args:
        most: micro-batch, at most that of the configuration.
        keeps_batch: True if the samples per step have to stay.
    """
    size = most
    while size:
        alone = {**knobs, "micro_batch": size}
        split = split_otherwise(knobs, "micro_batch", size) if keeps_batch else alone
        if split:
            yield split
        size //= 2
