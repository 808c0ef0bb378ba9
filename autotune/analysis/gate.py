"""Numerics gate: what the runs beside the fp32 reference show.

No finalist is recommended whose training leaves the reference, nor, unless the study says so, one that
could not be compared with it. Pure functions over records.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.analysis.gate_plan import next_seed
from autotune.analysis.gate_runs import (
    checkable,
    compared,
    first_references,
    is_check_of,
    own_checks,
    trial_checks,
    unproven_as_others,
    unproven_checks,
)
from autotune.analysis.sameness import Comparison, Rules
from autotune.measurement.numerics import Agreement
from search_spaces import CATALOGUE
from search_spaces.knob import Knobs
from search_spaces.numerics import reference_knobs, touched
from storage import Attempts, AttemptState, Blocks, Purpose, StoredAttempt


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


def unverified(attempts: Attempts, blocks: Blocks, baseline: Knobs) -> dict[int, str]:
    """Return trials of the search of which nothing shows whether they are right, with the reason.

    The reference failed, or a run began with other weights or rows than the reference, or the references
    with the other seeds that it takes failed.
    """
    found = {}
    own, others = own_checks(attempts), unproven_checks(attempts, blocks)
    # Looked up once: there may be thousands of trials, and this is called after each.
    references = first_references(attempts)
    for trial in attempts.searched().measured() if references else ():
        if not touched(trial.knobs, baseline, attempts.harmless):
            continue
        checked, reference = checkable(trial.knobs, baseline, references)
        if reference is not None and reference.result.state != AttemptState.COMPLETE:
            found[trial.trial] = _ended(reference, "the reference")
        elif check := own.get(trial.trial):
            safe = reference_knobs(checked, baseline)
            found[trial.trial] = _nothing_shown(check, safe, attempts, blocks)
        else:
            found[trial.trial] = unproven_as_others(checked, others, attempts.harmless)
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
    failed = {n for n, a in own_checks(attempts).items() if a.result.state != AttemptState.COMPLETE}
    found = {}
    for one in attempts.searched().measured():
        if one.trial in failed or one.trial in unverified:
            names = touched(one.knobs, baseline, attempts.harmless)
            formats = [n for n in names if n in CATALOGUE and CATALOGUE[n].number_format]
            found[one.trial] = formats if formats and one.trial in failed else names
    return found


def _ended(reference: StoredAttempt, what: str) -> str:
    return f"{what} ended in {reference.result.state}: {reference.result.cause}"


def _nothing_shown(
    check: StoredAttempt, safe: dict[str, Any], attempts: Attempts, blocks: Blocks
) -> str:
    """Return why the last check of a trial shows nothing; empty if it does, has failed, or goes on."""
    if check.result.state != AttemptState.COMPLETE:
        return ""
    agreed = compared(check, attempts, blocks)
    if not agreed.open or next_seed(check.trial, check.knobs, safe, attempts, blocks):
        return agreed.unproven
    references = attempts.of(Purpose.REFERENCE).conclusive().with_knobs(safe)
    failed = [one for one in references if one.result.state != AttemptState.COMPLETE]
    what = "the seeds so far tell too little, and the reference with another"
    return _ended(failed[-1], what) if failed else ""


def record(attempts: Attempts, blocks: Blocks, baseline: Knobs, rules: Rules) -> GateRecord:
    """Return the findings of the recorded runs.

    Args:
        baseline: a value for every knob.
        rules: what the study allows to change of the training.
    """
    passed: dict[int, Agreement] = {}
    comparison = Comparison(attempts, blocks, baseline, rules)
    refused = _refused(comparison.refused(), attempts)
    rounds = attempts.of(Purpose.CONFIRM).recorded()
    latest = {run.trial: run.knobs for run in rounds}
    of_trials = trial_checks(attempts)
    for attempt in attempts.of(Purpose.NUMERICS).conclusive():
        # A check of a reduced winner tells of the trial only what its rounds have measured.
        measured = latest.get(attempt.trial)
        reduced = measured is not None and is_check_of(attempt.knobs, measured, attempts)
        if attempt not in of_trials and not reduced:
            continue
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
        refused += _refused_unverified(without, attempts)
        without = {}
    risks = {trial: " ".join(comparison.open(trial, knobs)) for trial, knobs in latest.items()}
    return GateRecord(passed, tuple(refused), without, attempts.harmless, risks)


def _refused_unverified(without: Mapping[int, str], attempts: Attempts) -> list[Refusal]:
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
    runs = [a for a in attempts.searched().measured() if a.trial in reasons]
    faster = [a for a in runs if (a.result.throughput or 0.0) > least]
    faster.sort(key=lambda a: -(a.result.throughput or 0.0))
    return [Refusal(a.trial, a.knobs, reasons[a.trial]) for a in faster]
