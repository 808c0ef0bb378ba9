"""Building of a verdict from records: the one path of tuner, status, report and dashboard."""

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Self

from autotune.analysis import gate
from autotune.analysis.barred import Barred
from autotune.analysis.batches import compared_batches
from autotune.analysis.confirmation import Confirmation
from autotune.analysis.confirmation_result import result_of
from autotune.analysis.costs import CostRecords
from autotune.analysis.estimates import leader, soak
from autotune.analysis.finalists import ConfirmationResult, FinalistResult, Selection
from autotune.analysis.finals_price import FinalsPrice, ProofPlan
from autotune.analysis.gate import GateRecord
from autotune.analysis.memory import (
    Memory,
    Outgrown,
    limit_of_rank,
    memory_of,
    tells_longest,
)
from autotune.analysis.outcomes import Failure, Outcomes, SearchBest, baseline_failure, soak_failure
from autotune.analysis.policy import PROOF
from autotune.analysis.provenance import Records
from autotune.analysis.rounds import replay_study
from autotune.analysis.sameness import Rules
from autotune.analysis.shortfall import Shortfall, WallTime, lacks_time, shortfall
from autotune.analysis.trial_ratios import trial_ratios
from autotune.analysis.verdict import Contender, Finalist, Kind, Numerics, Verdict
from autotune.config import StudySpec
from autotune.measurement.estimate import Ratio, paired_ratio
from search_spaces.numerics import touched
from storage import StoredStudy, StudyState


class VerdictInputs(NamedTuple):
    """Facts about a study that its attempts do not tell.

    Attributes:
        ended: True if the study has measured all that it is to measure.
        left: seconds of its wall time that are left; None: it has no limit.
        selection: choice of its finalists; None: by its settings alone.
        plan: runs that the proof of its gain takes.
    """

    name: str
    ended: bool
    left: float | None = None
    selection: Selection | None = None
    plan: ProofPlan = ProofPlan()

    @classmethod
    def of(cls, study: StoredStudy, spec: StudySpec) -> Self:
        """Return the facts that are stored."""
        whole = spec.budget.wall_time
        left = None if whole is None else whole - study.elapsed
        return cls(study.name, study.state == StudyState.DONE, left)


def build_verdict(records: Records, spec: StudySpec, facts: VerdictInputs) -> Verdict:
    """Return the answer that the records of a study support; it is provisional until the study ends."""
    attempts, baseline = records.attempts, spec.full_baseline()
    checks = gate.record(attempts, records.blocks, baseline, Rules.of(spec))
    barred = Barred.of_study(attempts, records.blocks, spec)
    confirmation = replay_study(attempts, spec, records.blocks, facts.selection, barred.trials)
    if facts.ended:
        if confirmation is not None:
            confirmation.end()
        costs = CostRecords(records.blocks, records.device).by(attempts)
        price = FinalsPrice(attempts, costs, baseline, barred, facts.plan)
        found = _final(records, confirmation, checks, price, _wall_time(spec, facts))
    else:
        found = _provisional(records, confirmation, checks, barred.trials, baseline)
    found = dataclasses.replace(
        found,
        study=facts.name,
        unit=spec.unit,
        baseline_knobs=baseline,
        trials=len(attempts.searched()),
        measured_on=records.measured_on,
        outgrown=Outgrown.of(attempts),
    )
    return _lasting(found, records, spec) if facts.ended else found


def _wall_time(spec: StudySpec, facts: VerdictInputs) -> WallTime | None:
    whole = spec.budget.wall_time
    return None if whole is None or facts.left is None else WallTime(whole, facts.left)


def _final(
    records: Records,
    confirmation: Confirmation | None,
    checks: GateRecord,
    price: FinalsPrice,
    wall_time: WallTime | None,
) -> Verdict:
    """Return the answer of a study that has ended, by its search and its rounds."""
    attempts = records.attempts
    lacking = shortfall(confirmation, price, wall_time)
    if lacks_time(confirmation, attempts, limited=wall_time is not None):
        return Verdict(
            Kind.NOT_ENOUGH_TIME,
            missing_seconds=lacking.seconds,
            hindrance=lacking.hindrance,
            search_best=SearchBest.of(attempts, records.noise, price.barred.trials),
            refused=checks.refused,
        )
    if confirmation is None or not confirmation.members() or not confirmation.rounds:
        return Verdict(Kind.NO_RESULT, outcomes=Outcomes.of(attempts))
    failure = baseline_failure(attempts)
    found = conclude(result_of(confirmation), records.world_size, checks, failure, lacking)
    if found.kind is not Kind.NOTHING_BETTER or len(found.finalists) > 1:
        return found
    return dataclasses.replace(found, unmeasured_leader=unmeasured_leader(price))


def unmeasured_leader(price: FinalsPrice) -> Contender | None:
    """Return the trial that looked fastest, and faster than the baseline; None if none did."""
    ratios = trial_ratios(price.attempts, None)
    looked = [one for one in price.eligible() if one.trial in ratios]
    first = max(looked, key=lambda one: ratios[one.trial].ratio.value, default=None)
    if first is None or ratios[first.trial].ratio.value <= 1:
        return None
    return Contender(first.trial, first.knobs, ratios[first.trial].ratio)


def _provisional(
    records: Records,
    confirmation: Confirmation | None,
    checks: GateRecord,
    barred: Collection[int],
    baseline: dict[str, Any],
) -> Verdict:
    """Return what the records support by now.

    Once the confirmation has its fewest rounds, these tell. Before, it is the leader of the search.
    """
    attempts = records.attempts
    rounds = len(confirmation.rounds) if confirmation else 0
    if confirmation and confirmation.members() and rounds >= PROOF.fewest_rounds:
        failure = baseline_failure(attempts)
        found = conclude(result_of(confirmation), records.world_size, checks, failure)
    else:
        found = leader(attempts, baseline, checks, barred, records.world_size, records.noise)
        found = dataclasses.replace(found, rounds=rounds if rounds < PROOF.fewest_rounds else 0)
    return dataclasses.replace(found, provisional=True)


def _lasting(found: Verdict, records: Records, spec: StudySpec) -> Verdict:
    """Return a verdict with what long runs and the memory say of its recommendation."""
    attempts, trial, knobs = records.attempts, found.trial, found.knobs
    if trial is None or knobs is None:
        return found
    if found.kind == Kind.BETTER:
        pair = soak(attempts, found)
        failure = None if pair else soak_failure(attempts, trial, knobs)
        found = dataclasses.replace(found, soak=pair, soak_failure=failure)
    if found.kind not in (Kind.BETTER, Kind.NO_BASELINE):
        return found
    return dataclasses.replace(found, memory=_memory(trial, knobs, records, spec))


def _memory(trial: int, knobs: dict[str, Any], records: Records, spec: StudySpec) -> Memory:
    told = tells_longest(records.attempts, trial, records.blocks)
    limit = limit_of_rank(records.environment or {}, spec.resources)
    return memory_of(records.attempts, trial, knobs, limit, told=told)


def conclude(
    result: ConfirmationResult,
    world_size: int,
    checks: GateRecord,
    failure: Failure | None = None,
    lacking: Shortfall | None = None,
) -> Verdict:
    """Return the verdict of a confirmation.

    Args:
        failure: how the baseline ended, where it did not complete.
        lacking: what would lead further; None: the study goes on.
    """
    common = _common(result, checks)
    own = None if result.baseline is None else result.finalists[result.baseline]
    if result.baseline_fails or own is None:
        times = len(own.rates) if own else 0
        risks = checks.risks.get(result.recommended, "")
        return Verdict(
            Kind.NO_BASELINE,
            baseline_failure=failure,
            baseline_rounds=times,
            risks=risks,
            **common,
        )
    common |= {"baseline": own.own_rate or mean_rate(own.figures), "baseline_knobs": own.knobs}
    missing = Shortfall() if lacking is None or result.exhausted else lacking
    if result.recommended_result is own:
        return _kept(result, missing, common)
    chosen, speedup = result.recommended_result, result.recommended_result.gain
    assert speedup is not None  # both ran
    return Verdict(
        Kind.BETTER,
        speedup=speedup,
        missing_seconds=missing.seconds if speedup.vague else None,
        missing_rounds=missing.rounds if speedup.vague else None,
        behind=result.behind,
        reverted=result.reverted,
        batch=compared_batches(result, world_size),
        touched=tuple(touched(chosen.knobs, own.knobs, checks.harmless)),
        risks=checks.risks.get(chosen.trial, ""),
        **common,
    )


def _common(result: ConfirmationResult, checks: GateRecord) -> dict[str, Any]:
    """Return the fields that verdicts of every kind have."""
    chosen = result.recommended_result
    return {
        "trial": chosen.trial,
        "knobs": chosen.knobs,
        "throughput": chosen.own_rate or mean_rate(chosen.figures),
        "finalists": tuple(_finalist(one, result) for one in result.finalists.values()),
        "rounds": result.rounds,
        "chosen_in": result.chosen_in,
        "numerics": _numerics(chosen.trial, checks),
        "refused": checks.refused,
        "failed": result.failed,
        "exhausted": result.exhausted,
    }


def _kept(result: ConfirmationResult, missing: Shortfall, common: dict[str, Any]) -> Verdict:
    """Return the verdict that keeps the baseline: nothing is faster, or the noise hides it."""
    most = result.most_gain
    assert most is not None  # it is the choice
    common |= {"speedup": Ratio(1, 1, 1), "most_gain": most if math.isfinite(most) else None}
    if result.contender is None or most <= PROOF.alike_distance:
        return Verdict(Kind.NOTHING_BETTER, **common)
    other = result.finalists[result.contender]
    assert other.gain is not None  # it is still in
    contender = Contender(other.trial, other.knobs, other.gain, result.contradicted_by)
    return Verdict(
        Kind.UNDECIDED,
        contender=contender,
        missing_seconds=missing.seconds,
        missing_rounds=missing.rounds,
        **common,
    )


def mean_rate(rates: Sequence[float]) -> Ratio:
    """Return the geometric mean over rounds with its 95 % interval."""
    return paired_ratio(rates, [1.0] * len(rates))


def _numerics(trial: int, checks: GateRecord) -> Numerics | None:
    if trial in checks.passed:
        return Numerics.of(checks.passed[trial])
    if trial in checks.unverified:
        return Numerics(unverified=checks.unverified[trial])
    return None


def _finalist(one: FinalistResult, result: ConfirmationResult) -> Finalist:
    return Finalist(
        trial=one.trial,
        knobs=one.knobs,
        baseline=one.trial == result.baseline,
        rates=one.rates,
        ratio_to_recommended=one.ratio_to_recommended,
        dropped_after_round=one.dropped_after_round,
    )
