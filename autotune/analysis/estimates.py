"""Estimates beside the rounds of the confirmation: the leader of a search, and a pair of long runs.

Each has the interval that the noise between runs leaves. It is printed and overrules nothing. Pure.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from autotune.analysis.batches import batch_change
from autotune.analysis.gate import GateRecord
from autotune.analysis.node_speeds import at_home_speed
from autotune.analysis.outcomes import Outcomes, baseline_failure
from autotune.analysis.round_results import failed_in_a_round
from autotune.analysis.soak_runs import soak_runs
from autotune.analysis.trial_ratios import TrialRatio, log_half_width, trial_ratios
from autotune.analysis.verdict import (
    Contender,
    FasterUnverified,
    Finalist,
    Kind,
    Numerics,
    SoakResult,
    Verdict,
)
from autotune.measurement.estimate import Ratio
from autotune.measurement.noise import run_df
from search_spaces.numerics import touched
from storage import Attempts, StoredAttempt, StoredNoise

_SHOWN = 4
"""Most trials of a provisional answer besides the baseline."""


def leader(
    attempts: Attempts,
    baseline: Mapping[str, Any],
    checks: GateRecord,
    barred: Collection[int],
    world_size: int,
    noise: StoredNoise | None,
) -> Verdict:
    """Return the provisional answer by the trials of a search, before rounds confirm one.

    It is the fastest trial if that is surely faster than the baseline's own, and else the baseline.
    A configuration that can change numerics and has not passed the gate is named, but never the
    answer.

    Args:
        attempts: attempts of a study that may be under way.
        baseline: a value for every knob.
        barred: trials that may not be recommended.
        noise: newest run-to-run noise of the study; None: as recorded with each run.
    """
    if not attempts.searched():
        return Verdict(Kind.NO_RESULT)
    ranked, own = _ranked(attempts, checks, barred), attempts.baseline()
    reference = next((one for one in ranked if own and one.trial == own.trial), None)
    others = _safe([one for one in ranked if one is not reference], baseline, checks)[:_SHOWN]
    if not others and reference is None:
        return Verdict(Kind.NO_RESULT, outcomes=Outcomes.of(attempts))
    df = _df(attempts)
    ratios = trial_ratios(attempts, noise)
    kind, ahead = _compared(others, reference, ratios)
    chosen = reference if reference and kind != Kind.BETTER else others[0]
    shown = [*([reference] if reference else []), *others]
    fastest = others[0] if ahead and chosen is reference else None

    def ratio_of(one: StoredAttempt) -> Ratio:
        return ratios[one.trial].ratio if reference else _ratio(one, chosen, df)

    return Verdict(
        kind,
        trial=chosen.trial,
        knobs=chosen.knobs,
        throughput=_rate(chosen, df),
        speedup=ratios[chosen.trial].ratio if reference else None,
        baseline=_rate(reference, df) if reference else None,
        finalists=tuple(_finalist(one, chosen, reference, df) for one in shown),
        refused=checks.refused,
        baseline_failure=None if reference else baseline_failure(attempts),
        contender=Contender(fastest.trial, fastest.knobs, ahead) if fastest and ahead else None,
        unverified=_unverified(ranked, chosen, baseline, checks, ratio_of),
        **(_of_change(chosen, baseline, checks, world_size) if kind == Kind.BETTER else {}),
    )


def _safe(
    trials: Iterable[StoredAttempt], baseline: Mapping[str, Any], checks: GateRecord
) -> list[StoredAttempt]:
    """Return the trials that cannot change numerics, or have passed the gate."""
    return [
        one
        for one in trials
        if one.trial in checks.passed or not touched(one.knobs, baseline, checks.harmless)
    ]


def soak(attempts: Attempts, verdict: Verdict) -> SoakResult | None:
    """Return the result of the pair for the recommended configuration; None if there is none.

    Its shift is the difference to the rounds, whose interval it includes.
    """
    short = verdict.speedup
    if short is None or verdict.knobs is None:
        return None
    runs = soak_runs(attempts).complete()
    own = runs.of_trial(verdict.trial).with_knobs(verdict.knobs).last
    baseline = runs.of_baseline().last
    if own is None or baseline is None or own.environment != baseline.environment:
        return None
    ratio = _ratio(own, baseline, _df(attempts))
    beyond = math.hypot(ratio.half_width, short.half_width)
    if not math.isfinite(beyond):
        return None
    seconds = min(own.result.wall_seconds, baseline.result.wall_seconds)
    return SoakResult(seconds, ratio, Ratio.around(ratio.value / short.value, beyond))


def _compared(
    others: Sequence[StoredAttempt],
    baseline: StoredAttempt | None,
    ratios: Mapping[int, TrialRatio],
) -> tuple[Kind, Ratio | None]:
    """Return what the fastest other trial says, and how much faster it is than the baseline."""
    if baseline is None:
        return Kind.NO_BASELINE, None
    if not others:
        return Kind.NOTHING_BETTER, None
    ahead = ratios[others[0].trial].ratio
    if ahead.faster:
        return Kind.BETTER, ahead
    return Kind.UNDECIDED if ahead.high > 1 else Kind.NOTHING_BETTER, ahead


def _of_change(
    chosen: StoredAttempt, baseline: Mapping[str, Any], checks: GateRecord, world_size: int
) -> dict[str, Any]:
    """Return the parts of a verdict that say what a recommended change does besides."""
    found = checks.passed.get(chosen.trial)
    return {
        "batch": batch_change(chosen.knobs, baseline, world_size),
        "touched": tuple(touched(chosen.knobs, baseline, checks.harmless)),
        "numerics": found and Numerics.of(found),
        "risks": checks.risks.get(chosen.trial, ""),
    }


def _finalist(
    one: StoredAttempt, chosen: StoredAttempt, baseline: StoredAttempt | None, df: float
) -> Finalist:
    rates, ratio = (_speed(one),), _ratio(one, chosen, df)
    return Finalist(one.trial, one.knobs, one is baseline, rates, ratio, None)


def _ranked(attempts: Attempts, checks: GateRecord, barred: Collection[int]) -> list[StoredAttempt]:
    """Return trials that have completed and not failed since, the fastest first."""
    own = attempts.baseline()
    out = {*barred, *(refused.trial for refused in checks.refused)}
    out |= failed_in_a_round(attempts) - {own.trial if own else None}
    searched = at_home_speed(attempts).searched().complete().measured()
    return sorted((one for one in searched if one.trial not in out), key=lambda one: -_speed(one))


def _unverified(
    ranked: Sequence[StoredAttempt],
    chosen: StoredAttempt,
    baseline: Mapping[str, Any],
    checks: GateRecord,
    ratio_of: Callable[[StoredAttempt], Ratio],
) -> FasterUnverified | None:
    """Return the fastest trial that is ahead of the choice and may compute something else."""
    for one in ranked:
        names = tuple(touched(one.knobs, baseline, checks.harmless))
        if _speed(one) > _speed(chosen) and names and one.trial not in checks.passed:
            return FasterUnverified(one.knobs, ratio_of(one), names)
    return None


# Two runs


def _df(attempts: Attempts) -> float:
    """Return the degrees of freedom of the noise between runs."""
    return run_df(len(attempts.baseline_runs()))


def _speed(run: StoredAttempt) -> float:
    return run.result.throughput or math.ulp(0.0)


def _rate(run: StoredAttempt, df: float) -> Ratio:
    return Ratio.around(_speed(run), log_half_width(run.result, 0.0, df))


def _ratio(one: StoredAttempt, other: StoredAttempt, df: float) -> Ratio:
    """Return how many times faster one run is than another."""
    if one is other:
        return Ratio(1, 1, 1)
    width = math.hypot(*(log_half_width(run.result, 0.0, df) for run in (one, other)))
    return Ratio.around(_speed(one) / _speed(other), width)
