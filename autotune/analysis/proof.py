"""Price of the proof of a result in seconds, and the time that a verdict would still take. Pure.

The proof is rounds of a finalist and the baseline, and checks. The search leaves this time untouched,
the finals begin only where it is left, and a verdict that asks for more time asks for this, all by one
set of figures.
"""

import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy import special

from autotune.analysis import gate_plan
from autotune.analysis.barred import Barred
from autotune.analysis.confirmation import Confirmation
from autotune.analysis.costs import Costs
from autotune.analysis.finalists import may_be_faster, ranked
from autotune.analysis.outcomes import Failure
from autotune.measurement.estimate import Ratio, clearly_faster, half_width_of
from autotune.measurement.policy import PROOF
from search_spaces.words import Knobs
from storage import TRIAL_RUNS, Attempts, AttemptState, Purpose, StoredAttempt

RESERVED = PROOF.reserved
_ROUNDED_TO = 10.0
"""Seconds to whose multiples a time is rounded up."""


@dataclass(frozen=True)
class Proof:
    """Price of the finals of a study, by its records.

    Attributes:
        baseline: the user's configuration.
        needed: rounds of the confirmation for which the search leaves time.
        repeats: runs of the baseline besides those rounds, because its processes lie apart.
        at_once: True if the members of a round are launched at once.
    """

    attempts: Attempts
    costs: Costs
    baseline: Knobs
    barred: Barred = field(default_factory=Barred)
    needed: int = PROOF.fewest_rounds
    repeats: int = 0
    at_once: bool = False

    def eligible(self) -> Sequence[StoredAttempt]:
        """Return complete trials that may still be recommended, the fastest of them first."""
        return self._eligible

    @functools.cached_property
    def _eligible(self) -> list[StoredAttempt]:
        several = ranked(self.attempts)
        may = (a for a in several if a.knobs != self.baseline and a.trial not in self.barred.trials)
        return list(itertools.islice(may, PROOF.ranked))

    def checked(self, trials: Iterable[StoredAttempt]) -> list[StoredAttempt]:
        """Return those trials for which the numerics gate has nothing more to run."""
        return [a for a in trials if not self._missing_checks([a.knobs])]

    def round(self, members: Sequence[Knobs]) -> float:
        """Return seconds of the shortest round of the confirmation, with slow launches."""
        launches = self._side_by_side(len(members)) * self.costs.slow_startup
        return sum(map(self.costs.shortest, members)) - launches

    def usual_round(self, members: Sequence[Knobs]) -> float:
        """Return seconds of the shortest round of the confirmation, with launches as most are."""
        launches = self._side_by_side(len(members)) * self.costs.startup
        return sum(map(self.costs.usual, members)) - launches

    def _side_by_side(self, members: int) -> int:
        """Return the number of launches in a round that take no time beside the first."""
        return max(0, members - 1) if self.at_once else 0

    def recorded_round(self, members: Sequence[Knobs]) -> float:
        """Return seconds of a round as long as those that are recorded; as short as any before them."""
        return sum(map(self._in_a_round, members))

    def _in_a_round(self, knobs: Knobs) -> float:
        """Return seconds of a configuration in a round.

        An interleaved run takes longer than the shortest one, so known rounds tell.
        """
        runs = self.attempts.of(Purpose.CONFIRM).with_knobs(knobs).recorded().complete()
        shortest = self.costs.usual(knobs)
        seconds = [run.result.wall_seconds for run in runs]
        return max(shortest, statistics.median(seconds or [shortest]))

    def finals(self, finalists: Sequence[Knobs], rounds: int) -> float:
        """Return seconds of the shortest rounds, the checks before, and the baseline's other runs."""
        checks = sum(self.costs.check(*run) for run in self._missing_checks(finalists))
        repeats = self.repeats * self.costs.brief(self.baseline)
        return checks + repeats + self.rounds([self.baseline, *finalists], rounds)

    def rounds(self, members: Sequence[Knobs], rounds: int) -> float:
        """Return seconds of so many of the shortest rounds.

        Not all of their launches are slow: single excesses over the usual add up as squares do.
        """
        slow, usual = self.round(members), self.usual_round(members)
        runs = max(1, rounds * (len(members) - self._side_by_side(len(members))))
        return rounds * (usual + (slow - usual) / math.sqrt(runs))

    def of(self, knobs: Knobs) -> float:
        """Return seconds of the shortest finals of a configuration that has yet to be tried."""
        tried = replace(self, costs=self.costs.once(knobs))
        return tried.finals([knobs], self.needed)

    def shortest(self, left: float) -> float:
        """Return seconds of the shortest finals.

        They are those of the fastest rival or, where these take longer than what is left, of the
        fastest one whose finals do not. Before a rival is known they are those of a configuration that
        runs like the baseline.
        """
        rivals = self.eligible()
        if not rivals:
            return self.finals([self.baseline], self.needed)
        first = self.alone(rivals[0])
        if first <= left:
            return first
        others = map(self.alone, self.worth_checking(rivals[1:]))
        return next((seconds for seconds in others if seconds <= left), first)

    def alone(self, finalist: StoredAttempt) -> float:
        """Return seconds of the shortest finals of one finalist."""
        return self.finals([finalist.knobs], self.needed)

    def another_seed(self, knobs: Knobs) -> float:
        """Return seconds of the checks that follow if those with the first seed leave it open.

        They are 0 where the configuration has been checked, or needs no check.
        """
        checks = [r for r in self._missing_checks([knobs]) if r.purpose is Purpose.NUMERICS]
        beside = [Purpose.REFERENCE] + [Purpose.AUTOCAST] * self.costs.convolutional
        runs = [*checks, *(r.beside(purpose) for r in checks for purpose in beside)]
        return sum(self.costs.check(*run) for run in runs)

    def worth_checking(self, trials: Sequence[StoredAttempt]) -> list[StoredAttempt]:
        """Return trials without those that need a check and are surely slower than the baseline.

        A check of these would prove nothing. All trials are returned where no other one is left.
        """
        own = self.attempts.baseline()
        checked = {trial.trial for trial in self.checked(trials)}
        left = [t for t in trials if t.trial in checked or own is None or may_be_faster(t, own)]
        return left or list(trials)

    def further_steps(self) -> float:
        """Return seconds that rounds with enough steps take beyond the shortest ones.

        They are those of the fastest rival; 0 without any.
        """
        first = next(iter(self.eligible()), None)
        if first is None:
            return 0.0
        return self.needed * sum(map(self.costs.further_steps, [self.baseline, first.knobs]))

    def _missing_checks(self, finalists: Iterable[Knobs]) -> list[gate_plan.MissingRun]:
        convolutional = self.costs.convolutional
        return gate_plan.missing_runs(
            finalists, self.baseline, self.attempts, convolutional=convolutional
        )


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
    confirmation: Confirmation | None, proof: Proof, wall_time: WallTime | None
) -> Shortfall:
    """Return what a study lacks, by the plan that it would follow if it went on with more time.

    Args:
        confirmation: as far as it went; None if there was nothing to confirm.
        wall_time: of the study; None: it has no limit, so that nothing ended for want of time.
    """
    if stuck := _stuck(proof.attempts):
        return Shortfall(None, stuck)
    if wall_time is None or not proof.costs.known:
        return Shortfall()
    if confirmation is not None and confirmation.rounds and confirmation.members():
        return _of_rounds(confirmation, proof, wall_time)
    if rivals := proof.eligible():
        another = proof.costs.shortest(proof.baseline)  # trial: the search goes on first
        needed = another + proof.finals([rivals[0].knobs], PROOF.fewest_rounds)
        return Shortfall(
            rounded_up(PROOF.time_asked * needed + _replacement(proof) - wall_time.left)
        )
    if hindrance := _hindrance(proof):
        return Shortfall(None, hindrance)
    return Shortfall(_for_trials(proof, wall_time))


def _of_rounds(confirmation: Confirmation, proof: Proof, wall_time: WallTime) -> Shortfall:
    """Return the time that the missing rounds take, or their number where that is not allowed."""
    expected, allowed = rounds_missing(confirmation), confirmation.rounds_left
    if expected is None or expected > allowed:
        return Shortfall(rounds=expected)
    missing = min(math.ceil(PROOF.rounds_asked * expected), allowed)
    members = confirmation.knobs_of(confirmation.members())
    needed = max(
        missing * proof.recorded_round(members),
        proof.rounds(members, missing),
    )
    return Shortfall(rounded_up(PROOF.time_asked * needed + _replacement(proof) - wall_time.left))


def _for_trials(proof: Proof, wall_time: WallTime) -> float:
    """Return seconds of the first trials beside the baseline and of the proof of one.

    The search leaves a share of the whole wall time, which grows with what is asked for.
    """
    trials = PROOF.trials_asked * proof.costs.shortest(proof.baseline) + _replacement(proof)
    needed = PROOF.time_asked * (trials + proof.finals([proof.baseline], PROOF.fewest_rounds))
    shared = (trials + RESERVED * wall_time.whole - wall_time.left) / (1 - RESERVED)
    return rounded_up(max(needed - wall_time.left, shared))


def _replacement(proof: Proof) -> float:
    """Return the longest time in seconds that a launch has waited for new processes.

    A study that goes on waits so once more: after its first run, processes that have imported what the
    script imports take the place of those of the launcher. That is at most the longest launch: more was
    the sleep of the machine. Runs that take turns wait for each other, and do not tell.
    """
    attempts = proof.attempts
    several = attempts.of(*TRIAL_RUNS).complete()
    alone = [(a, a.ended) for a in several if attempts.paired_baseline_of(a) is None]
    waited = [end - a.started - a.result.wall_seconds for a, end in alone if end is not None]
    return min(max([0.0, *waited]), proof.costs.longest_startup)


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


def _hindrance(proof: Proof) -> Failure | None:
    """Return why trials that there were can never be recommended.

    None: there were none, or they only had no time.
    """
    timed = [a for a in ranked(proof.attempts) if a.knobs != proof.baseline]
    if timed:
        trial = timed[0].trial
        return Failure(trial, AttemptState.COMPLETE, proof.barred.trials[trial])
    checks = proof.attempts.of(Purpose.NUMERICS).conclusive()
    if refused := [a for a in checks if not a.result.state.ended_well]:
        return replace(Failure.of(refused[0]), state=AttemptState.COMPLETE)
    failed = [
        a
        for a in proof.attempts.searched()
        if a.knobs != proof.baseline and not a.result.state.ended_well
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
        if seen.mean + beyond <= math.log1p(PROOF.alike):
            return True
    else:
        beyond = half_width_of(seen.spread, rounds)
    low, high = math.exp(seen.mean - beyond), math.exp(seen.mean + beyond)
    return clearly_faster(Ratio(math.exp(seen.mean), low, high))
