"""Time that a study without a verdict would still take, and what stands in its way. Pure."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import special

from autotune.analysis.confirmation import Confirmation
from autotune.analysis.finalists import ranked
from autotune.analysis.finals_price import FinalsPrice
from autotune.analysis.gate_runs import trial_checks
from autotune.analysis.outcomes import Failure
from autotune.analysis.policy import PROOF
from autotune.measurement.estimate import Ratio, clearly_faster, half_width_of
from storage import TRIAL_RUNS, Attempts, AttemptState, StoredAttempt

_ROUNDED_TO = 10.0
"""Seconds to whose multiples a time is rounded up."""


class WallTime(NamedTuple):
    """Wall time of a study in seconds: all that it may take, and what is left."""

    whole: float
    left: float


class Shortfall(NamedTuple):
    """Shortfall of a study.

    Attributes:
        seconds: wall time with which it would come to a verdict; None if no time would do, or it is
            unknown.
        hindrance: failure or reason because of which no time would help; None if none is known.
        rounds: more rounds that would lead to a verdict, where the study may not have as many; None
            elsewhere, and if no number of them would.
    """

    seconds: float | None = None
    hindrance: Failure | None = None
    rounds: int | None = None


def shortfall(
    confirmation: Confirmation | None, price: FinalsPrice, wall_time: WallTime | None
) -> Shortfall:
    """Return what a study lacks, by the plan that it would follow if it went on with more time.

    Args:
        confirmation: as far as it went; None if there was nothing to confirm.
        wall_time: of the study; None: it has no limit, so that nothing ended for lack of time.
    """
    if stuck := _stuck(price.attempts):
        return Shortfall(None, stuck)
    if wall_time is None or not price.costs.known:
        return Shortfall()
    if confirmation is not None and confirmation.rounds and confirmation.members():
        return _of_rounds(confirmation, price, wall_time)
    if rivals := price.eligible():
        another = price.costs.shortest(price.baseline)  # trial: the search goes on first
        needed = another + price.finals([rivals[0].knobs], PROOF.fewest_rounds)
        return Shortfall(
            rounded_up(PROOF.time_asked * needed + _replacement(price) - wall_time.left)
        )
    if hindrance := _hindrance(price):
        return Shortfall(None, hindrance)
    return Shortfall(_for_trials(price, wall_time))


def _of_rounds(confirmation: Confirmation, price: FinalsPrice, wall_time: WallTime) -> Shortfall:
    """Return the time that the missing rounds take, or their number where that is not allowed."""
    expected, allowed = rounds_missing(confirmation), confirmation.rounds_left
    if expected is None or expected > allowed:
        return Shortfall(rounds=expected)
    missing = min(math.ceil(PROOF.rounds_asked * expected), allowed)
    members = confirmation.knobs_of(confirmation.members())
    needed = max(
        missing * price.recorded_round(members),
        price.rounds(members, missing),
    )
    return Shortfall(rounded_up(PROOF.time_asked * needed + _replacement(price) - wall_time.left))


def _for_trials(price: FinalsPrice, wall_time: WallTime) -> float:
    """Return seconds of the first trials beside the baseline and of the proof of one.

    The search leaves a share of the whole wall time, which grows with what is asked for.
    """
    trials = PROOF.trials_asked * price.costs.shortest(price.baseline) + _replacement(price)
    needed = PROOF.time_asked * (trials + price.finals([price.baseline], PROOF.fewest_rounds))
    reserved = PROOF.reserved_share
    shared = (trials + reserved * wall_time.whole - wall_time.left) / (1 - reserved)
    return rounded_up(max(needed - wall_time.left, shared))


def _replacement(price: FinalsPrice) -> float:
    """Return the longest time in seconds that a launch has waited for new processes.

    A study that goes on waits so once more: after its first run, processes that have imported what the
    script imports take the place of those of the launcher. That is at most the longest launch: more was
    the sleep of the machine. Runs that take turns wait for each other, and do not tell.
    """
    attempts = price.attempts
    several = attempts.of(*TRIAL_RUNS).complete()
    alone = [(a, a.ended) for a in several if attempts.paired_baseline_of(a) is None]
    waited = [end - a.started - a.result.wall_seconds for a, end in alone if end is not None]
    return min(max([0.0, *waited]), price.costs.longest_startup)


def rounded_up(seconds: float) -> float:
    """Return a round number of seconds that is not less."""
    return _ROUNDED_TO * max(1, math.ceil(seconds / _ROUNDED_TO))


def _stuck(attempts: Attempts) -> Failure | None:
    """Return the hang of a study in which no run, of the baseline least of all, came to a step.

    A single run may only have had too little time. None: that is not known.
    """
    runs = attempts.of(*TRIAL_RUNS).recorded()
    in_vain = runs.ended_in(AttemptState.PRUNED)
    own = in_vain.of_baseline().last
    if own is None or len(in_vain) < PROOF.runs_of_hang or any(map(_judged, runs)):
        return None
    cause = f"{own.result.cause}, nor did any of {len(in_vain)} runs"
    return Failure(own.trial, AttemptState.HANG, cause)


def _hindrance(price: FinalsPrice) -> Failure | None:
    """Return why trials that there were can never be recommended.

    None: there were none, or they only had no time.
    """
    timed = [a for a in ranked(price.attempts) if a.knobs != price.baseline]
    if timed:
        trial = timed[0].trial
        return Failure(trial, AttemptState.COMPLETE, price.barred.trials[trial])
    checks = trial_checks(price.attempts)
    if refused := [a for a in checks if not a.result.state.ended_well]:
        return replace(Failure.of(refused[0]), state=AttemptState.COMPLETE)
    failed = [
        a
        for a in price.attempts.searched()
        if a.knobs != price.baseline and not a.result.state.ended_well
    ]
    return Failure.of(failed[0]) if failed else None


def lacks_time(confirmation: Confirmation | None, attempts: Attempts, *, limited: bool) -> bool:
    """Return whether nothing could be confirmed for lack of time.

    Args:
        limited: True if the time has an end.
    """
    if not limited or (confirmation is not None and not confirmation.members()):
        return False
    if confirmation is None:
        return not any(map(_judged, attempts.searched()))
    return not confirmation.rounds or not any(
        _judged(a) for a in attempts.searched() if a.trial != confirmation.baseline
    )


def _judged(trial: StoredAttempt) -> bool:
    """Return whether a trial has shown anything before its time was over."""
    return not trial.in_vain


def rounds_missing(confirmation: Confirmation) -> int | None:
    """Return the rounds, at least one, until it is shown which configuration is faster and by how much.

    Rounds are taken to scatter as they did. None: no number of rounds would show it.
    """
    if confirmation.baseline is None:
        return PROOF.fewest_rounds
    # Once one of several is chosen only rounds after that tell by how much.
    alone = None if confirmation.gain_is_measured else confirmation.gain_rounds
    done = len(alone.counted if alone else confirmation.basis_rounds)
    # Its changes may yet be reverted, so that the rounds before do not count.
    least = max(1, confirmation.to_prove_reduced) if alone else 1
    logs = _differences(confirmation)
    if not confirmation.members() or len(logs) < 2:
        return max(least, PROOF.fewest_rounds - done)
    seen = _Seen(float(np.mean(logs)), float(np.std(logs, ddof=1)))
    needed = max(PROOF.fewest_rounds, done + least)
    while needed < PROOF.most_rounds and not _would_tell(confirmation, seen, needed):
        needed += 1
    return None if needed == PROOF.most_rounds else needed - done


def _differences(confirmation: Confirmation) -> list[float]:
    """Return by how much the contender was faster than the baseline, in logarithms, round by round."""
    contender, baseline = confirmation.contender(), confirmation.baseline
    if contender is None or baseline is None:
        return []
    both = [r for r in confirmation.basis_rounds.values() if contender in r and baseline in r]
    return [math.log(r[contender] / r[baseline]) for r in both]


class _Seen(NamedTuple):
    """Lead of the contender in logarithms: mean and standard deviation of rounds."""

    mean: float
    spread: float


def _would_tell(confirmation: Confirmation, seen: _Seen, rounds: int) -> bool:
    """Return whether so many rounds would tell, by the test that is to decide."""
    if confirmation.selected is None:
        level = confirmation.choice_rounds.level(rounds)
        beyond = float(special.stdtrit(rounds - 1, 1 - level)) * seen.spread / math.sqrt(rounds)
        if seen.mean + beyond <= math.log1p(PROOF.alike_distance):
            return True
    else:
        beyond = half_width_of(seen.spread, rounds)
    low, high = math.exp(seen.mean - beyond), math.exp(seen.mean + beyond)
    return clearly_faster(Ratio(math.exp(seen.mean), low, high))
