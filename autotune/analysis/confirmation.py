"""Confirmation: finalists and baseline are measured again, round by round. Pure.

First, rounds of all finalists and the baseline choose. From the third round on, each ends with a look:
does a finalist beat the baseline? Its error is spent over all looks and finalists. A finalist that
cannot be the best drops out. Then fresh rounds of the choice and the baseline alone tell by how much it
is faster, because the choice flatters the rounds before.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

from autotune.analysis.finalists import (
    Candidate,
    ConfirmationResult,
    FinalistResult,
)
from autotune.analysis.processes import Processes
from autotune.measurement.contrasts import (
    ONE_SIDED,
    Arm,
    Contrast,
    contrast,
    critical_value,
    welch_contrast,
)
from autotune.measurement.estimate import CONFIDENCE, Ratio, half_width_of, paired_ratio
from autotune.measurement.group_sequential import look_level, looks_after_each_round
from autotune.measurement.policy import PROOF
from storage import Attempts, AttemptState, Purpose, StoredAttempt

FEWEST_ROUNDS = PROOF.fewest_rounds
FEWEST_ALONE = PROOF.fewest_alone
ALIKE = PROOF.alike
_TIED = PROOF.tied
_SHARE_OF_UNSTEADY = PROOF.share_of_unsteady
_OWN_RATE = PROOF.own_rate
_NO_GAIN = PROOF.no_gain
_ERROR = PROOF.error
_APART_ERROR = PROOF.apart_error
_HOPELESS = PROOF.hopeless
_FINEST, _COARSEST, _SHARE_OF_GAIN = PROOF.finest, PROOF.coarsest, PROOF.share_of_gain

Rounds = dict[int, dict[int, float]]
"""Round -> trial -> throughput."""


class Confirmation:
    """State of a confirmation: which finalists are still in, given the rounds so far.

    Attributes:
        rounds: rounds of all finalists that were still in, which choose.
        fresh: rounds of the choice and the baseline alone, which tell by how much it is faster.
        chosen: trial that has beaten the baseline and is measured against it alone; None while rounds
            choose.
        taken_back: changes of the choice that bring nothing, with the values that they had in it; it
            is measured alone without them.
        failed: trials that failed in a round, in order.
        void: numbers of rounds that do not count, because they ran elsewhere than the last one.
        processes: spread between the processes of each configuration; None where it is not told. With
            it a single finalist is measured against the baseline at once, as nothing is to be chosen,
            and each of the two has a variance of its own.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        baseline: int | None,
        most_rounds: int,
        first_round: int = 1,
        processes: Processes | None = None,
    ) -> None:
        self.processes = processes
        self.candidates = {candidate.trial: candidate for candidate in candidates}
        self.baseline = baseline
        self.dropped: dict[int, int] = {}
        self.rounds: Rounds = {}
        self.fresh: Rounds = {}
        self.chosen: int | None = None
        self.taken_back: dict[str, Any] = {}
        self.failed: list[int] = []
        self.void: set[int] = set()
        self._fresh_wanted = 0
        self._closed = 0
        self._most_rounds = most_rounds
        self._first_round = first_round
        if processes is not None and baseline is not None and len(self._rivals()) == 1:
            self.chosen, self._fresh_wanted = self._rivals()[0], min(FEWEST_ALONE, most_rounds)
            self.fresh = self.rounds

    def members(self) -> list[int]:
        """Return the trials that the next round measures."""
        if self.chosen is not None:
            return [t for t in (self.baseline, self.chosen) if t is not None]
        return self._in_choice()

    def _in_choice(self) -> list[int]:
        return [trial for trial in self.candidates if trial not in self.dropped]

    @property
    def next_round(self) -> int:
        """Number of the round to measure next."""
        return self._first_round + self._closed + len(self.void)

    def runs_to_come(self, good_rounds: int) -> int:
        """Return the approximate number of runs in the rounds that may follow the next one.

        Args:
            good_rounds: number of rounds that are worth more than longer runs.
        """
        if self.chosen is not None:
            planned = max(good_rounds, len(self.fresh) + 2)
            return 2 * max(0, min(planned, self._fresh_wanted) - len(self.fresh) - 1)
        alone = 2 * FEWEST_ROUNDS if self.baseline is not None else 0
        return max(0, good_rounds - len(self.rounds) - 1) * len(self.members()) + alone

    @property
    def to_prove(self) -> int:
        """Rounds like the next one, itself included, without which those before it prove nothing."""
        if self.processes is not None and self.chosen is not None:
            return max(0, self._fresh_wanted - len(self.fresh))
        done = self.rounds if self.chosen is None else self.fresh
        return max(0, FEWEST_ROUNDS - len(done))

    def recorded(self, attempts: Attempts) -> dict[int, float | None]:
        """Return what is recorded of the next round: throughput by trial, None where it failed."""
        members = self.members()
        runs = attempts.of(Purpose.CONFIRM).in_round(self.next_round).recorded()
        return {
            a.trial: a.result.throughput for a in runs if a.trial in members and not _out_of_time(a)
        }

    def is_void(self, attempts: Attempts) -> bool:
        """Return whether a run of the next round was made elsewhere than the last run of all.

        Such a round would compare machines, and not configurations.
        """
        runs = attempts.of(Purpose.CONFIRM).recorded()
        last = runs.last
        own = runs.in_round(self.next_round)
        return last is not None and any(run.environment != last.environment for run in own)

    def close_round(self, results: Mapping[int, float | None]) -> None:
        """Take in a complete round; None: that trial failed, which drops it."""
        self._closed += 1
        rates = {trial: rate for trial, rate in results.items() if rate is not None}
        failed = [trial for trial in results if trial not in rates]
        if self.chosen is not None and not failed:
            self.fresh[len(self.fresh) + 1] = rates
            return
        if self.chosen is None:
            self.rounds[len(self.rounds) + 1] = rates
        for trial in failed:
            self.dropped[trial] = self._closed
        self.failed += failed
        # A choice that fails when it is measured alone is none: the others are looked at once more.
        self.chosen, self.fresh = None, {}
        self._look()

    def _look(self) -> None:
        """Drop finalists that cannot be the best; choose if the rounds are enough for that."""
        if len(self.rounds) >= FEWEST_ROUNDS and self.members():
            self._drop_hopeless()
        if self.members() and self._has_chosen():
            self._choose()

    def _drop_hopeless(self) -> None:
        leader = self.leader()
        for trial in self.members():
            rival = trial not in (leader, self.baseline)
            if rival and self.contrast(trial, leader).chance < _HOPELESS:
                self.dropped[trial] = self._closed

    def _choose(self) -> None:
        best = self.choice()
        if self.baseline is None or best == self.baseline or self.baseline in self.dropped:
            return
        self.chosen = best
        if self.processes is not None:
            self._fresh_wanted = min(FEWEST_ALONE, self._most_rounds)
            return
        gain = self.contrast(best, self.baseline)
        target = max(_FINEST, min(_SHARE_OF_GAIN * gain.value, _COARSEST))
        spread = gain.error * math.sqrt(len(self.rounds))  # of one pair
        wanted = min(FEWEST_ROUNDS, self._most_rounds)
        while wanted < self._most_rounds and half_width_of(spread, wanted) > target:
            wanted += 1
        self._fresh_wanted = wanted

    def take_back(self, knobs: Mapping[str, Any]) -> None:
        """Have the choice measured alone without the changes that bring nothing."""
        assert self.chosen is not None
        winner = self.candidates[self.chosen]
        self.taken_back = {n: v for n, v in winner.knobs.items() if knobs[n] != v}
        self.candidates[self.chosen] = replace(winner, knobs=dict(knobs))

    def decided(self) -> bool:
        """Return whether another round would change nothing that matters, or is not allowed."""
        if self.chosen is None:
            return self._has_chosen()
        if len(self.fresh) < self._fresh_wanted:
            return False
        if len(self.fresh) >= self._most_rounds:
            return True
        if self.processes is not None:
            return (self.vain or self.knows_rate) if self.waits else self.precise
        return not self.gain(self.chosen).vague

    @property
    def precise(self) -> bool:
        """Return whether the gain is known as exactly as is wanted where each arm has a variance."""
        if self.processes is None or self.chosen is None or not self.measured_alone:
            return False
        gain = self.gain(self.chosen)
        return math.log(gain.high / gain.low) / 2 <= self._wanted(math.log(gain.value))

    @property
    def knows_rate(self) -> bool:
        """Return whether more rounds would tell little of the choice's own rate.

        It is known as exactly as is wanted, or its processes lie apart.
        """
        if self.processes is None or self.chosen is None or self.processes.unsteady(self.chosen):
            return True
        rate = self.own_rate(self.chosen)
        return rate is not None and math.log(rate.high / rate.low) / 2 <= _OWN_RATE

    @property
    def vain(self) -> bool:
        """Return whether, by the fresh rounds, no gain is left that is worth more runs."""
        return self.measured_alone and self.most_gain() <= _NO_GAIN

    def _wanted(self, gain: float) -> float:
        """Return half the interval that is wanted of a gain, both in logarithms."""
        return max(_FINEST, min(_SHARE_OF_UNSTEADY * gain, _COARSEST if self.waits else _FINEST))

    @property
    def waits(self) -> bool:
        """Return whether more processes of the baseline would tell more than more rounds."""
        return (
            self.processes is not None
            and self.baseline is not None
            and self.processes.unsteady(self.baseline)
        )

    @property
    def rounds_left(self) -> int:
        """Return the number of rounds like the next one that may follow."""
        done = self.rounds if self.chosen is None else self.fresh
        return max(0, self._most_rounds - len(done))

    @property
    def exhausted(self) -> bool:
        """Return whether all rounds that are allowed have been measured: time alone brings no more."""
        return not self.rounds_left

    def _has_chosen(self) -> bool:
        """Return whether the rounds of all finalists are over."""
        if not self.members() or len(self.rounds) >= self._most_rounds:
            return True
        if len(self.rounds) < FEWEST_ROUNDS:
            return False
        leader = self.leader()
        if self.baseline is not None and not self._beats_baseline(leader):
            return self.most_gain() <= _NO_GAIN
        return self.behind(leader) <= ALIKE or self._risk(leader) <= _NO_GAIN

    def most_gain(self) -> float:
        """Return the highest gain over the baseline that the rounds leave possible, in logarithms.

        It is that of the choice by its fresh rounds, if there are enough.
        """
        assert self.baseline is not None
        if self.chosen is not None and self.measured_alone:
            return math.log(self.gain(self.chosen).high)
        return self._beyond(self.baseline, self._rivals())

    def contender(self) -> int | None:
        """Return the finalist that may gain most over the baseline; None if none is left."""
        if self.chosen is not None:
            return self.chosen
        assert self.baseline is not None
        today = self.baseline
        return max(self._rivals(), key=lambda trial: self._beyond(today, [trial]), default=None)

    def _rivals(self) -> list[int]:
        return [trial for trial in self._in_choice() if trial != self.baseline]

    def behind(self, trial: int) -> float:
        """Return the largest distance of a trial to the best of the finalists, in logarithms.

        This is Hsu's multiple comparison with the best.
        """
        rivals = [t for t in self._in_choice() if t not in (trial, self.baseline)]
        return max(0.0, self._beyond(trial, rivals))

    def _beyond(self, trial: int, rivals: Sequence[int]) -> float:
        """Return the largest lead of the fastest rival over a trial, at whichever look."""
        found = [self.contrast(rival, trial) for rival in rivals]
        sure = 1 - self._spent(_APART_ERROR, len(self.rounds))
        return max(
            (c.value + critical_value(len(rivals), c.df, sure) * c.error for c in found),
            default=-math.inf,
        )

    def _risk(self, trial: int) -> float:
        """Return the largest expected loss of a trial to the other finalists, in logarithms."""
        rivals = [t for t in self._in_choice() if t not in (trial, self.baseline)]
        return math.fsum(self.contrast(trial, rival).risk for rival in rivals)

    def leader(self) -> int:
        """Return the fastest trial that is still in, by the rounds that all of them ran."""
        if self.chosen is not None:
            return self.chosen
        return max(self.members(), key=lambda trial: math.fsum(map(math.log, self._seen(trial))))

    def _seen(self, trial: int) -> list[float]:
        return [rates[trial] for rates in self.rounds.values() if trial in rates]

    def leads_baseline(self, trial: int) -> bool:
        """Return whether a trial is faster than the baseline in the mean of the rounds so far."""
        own = self.rates(trial)
        today = [] if self.baseline is None else self.rates(self.baseline)
        return bool(own and today) and geometric_mean(own) > geometric_mean(today)

    @property
    def basis(self) -> Rounds:
        """Rounds that figures are taken from: the fresh ones, once there are enough."""
        return self.fresh if self.measured_alone else self.rounds

    @property
    def measured_alone(self) -> bool:
        """True if fresh rounds are enough to tell by how much the choice is faster."""
        least = 1 if self.nothing_to_choose else min(FEWEST_ROUNDS, self._fresh_wanted)
        return len(self.fresh) >= max(1, least)

    @property
    def nothing_to_choose(self) -> bool:
        """True if there was a single finalist from the beginning: all rounds tell by how much."""
        return self.chosen is not None and self.fresh is self.rounds

    def rates(self, trial: int) -> list[float]:
        """Return a trial's throughput, round by round; fresh rounds come last, if they are enough."""
        alone = self.measured_alone and not self.nothing_to_choose
        fresh = self.fresh.values() if alone else ()
        return [rates[trial] for rates in (*self.rounds.values(), *fresh) if trial in rates]

    def basis_rates(self, trial: int) -> list[float]:
        """Return a trial's throughput in the rounds of `basis`; in all, if it ran in none of them."""
        own = [rates[trial] for rates in self.basis.values() if trial in rates]
        return own or self.rates(trial)

    def contrast(self, trial: int, other: int) -> Contrast:
        """Return how much faster a trial is than another in the rounds that choose, in logarithms.

        Where the spread between processes is known each of the two has a variance of its own, so that a
        baseline whose processes lie apart hides no difference of others.
        """
        if self.processes is None:
            return contrast(self.rounds, trial, other)
        return welch_contrast(
            *(self._arm(self.processes, t, self._seen(t)) for t in (trial, other))
        )

    def ratio(self, trial: int, other: int) -> Ratio:
        """Return the ratio of two trials in the rounds that choose, with a single comparison's CI."""
        if trial == other:
            return Ratio(1.0, 1.0, 1.0)
        return self.contrast(trial, other).ratio((1 - CONFIDENCE) / 2)

    def gain(self, trial: int) -> Ratio:
        """Return a trial's speed-up over the baseline, as it may be printed.

        Fresh rounds, if there are enough, give Student's interval. Else the interval holds for all looks
        and finalists at once (a repeated confidence interval): it excludes 1 only where the trial has
        beaten the baseline.
        """
        assert self.baseline is not None
        if trial == self.chosen and self.measured_alone:
            if self.processes is not None:
                both = trial, self.baseline
                arms = (self._arm(self.processes, t, self.basis_rates(t)) for t in both)
                return welch_contrast(*arms).ratio(ONE_SIDED)
            rounds = self.fresh.values()
            return paired_ratio([r[trial] for r in rounds], [r[self.baseline] for r in rounds])
        return self.contrast(trial, self.baseline).ratio(self.level(len(self.rounds)))

    def own_rate(self, trial: int) -> Ratio | None:
        """Return a trial's rate with the interval of its own runs.

        None where no spread between processes is known, or the trial has not run.
        """
        if self.processes is None or not self.basis_rates(trial):
            return None
        return self._arm(self.processes, trial, self.basis_rates(trial)).rate

    def _arm(self, processes: Processes, trial: int, rates: Sequence[float]) -> Arm:
        alone = processes.baseline_runs if trial == self.baseline else ()
        return processes.arm(trial, [*rates, *alone])

    def level(self, rounds: int) -> float:
        """Return the one-sided level of one finalist's look after so many rounds."""
        finalists = len(self.candidates) - (self.baseline is not None)
        return self._spent(_ERROR / max(1, finalists), rounds)

    def _spent(self, error: float, rounds: int) -> float:
        """Return the share of an error of all looks that the look after so many rounds may spend."""
        return look_level(
            looks_after_each_round(FEWEST_ROUNDS, rounds), max(self._most_rounds, rounds), error
        )

    def choice(self) -> int:
        """Return the trial to recommend.

        Among those at most 1 % slower than the best it is the one with the least memory, then the
        nearest to the baseline. It is the baseline if none beats it, or if fresh rounds contradict.
        """
        leader = self.leader()
        if self.chosen is not None and self.baseline is not None:
            return self.baseline if self.contradicted else leader
        if self.baseline is not None and not self._beats_baseline(leader):
            return self.baseline
        equals = [t for t in self.members() if t == leader or self._as_good(t)]
        return min(equals, key=lambda t: (self._memory(t), self._distance(t), t != leader))

    @property
    def contradicted(self) -> bool:
        """True if rounds after the choice contradict it.

        Enough of them do not show the chosen configuration faster, or the few so far show it slower.
        """
        if self.chosen is None or self.baseline is None or not self.fresh:
            return False
        if self.measured_alone:
            return not self.gain(self.chosen).faster
        both = [r for r in self.fresh.values() if self.chosen in r and self.baseline in r]
        return math.fsum(math.log(r[self.chosen] / r[self.baseline]) for r in both) <= 0

    def result(self) -> ConfirmationResult:
        """Return what the rounds say; at least one candidate must have finished one."""
        choice, baseline = self.choice(), self.baseline
        fails = baseline is None or baseline in self.dropped or not self.rates(baseline)
        stays = choice == baseline and not fails
        contradicts = stays and self.contradicted and not self.measured_alone
        now = {} if self.chosen is None else self.candidates[self.chosen].knobs
        return ConfirmationResult(
            choice=choice,
            baseline=baseline,
            baseline_fails=fails,
            finalists={t: self._result_of(t, choice, fails=fails) for t in self.candidates},
            rounds=len(self.basis),
            chosen_in=0 if self.basis is self.rounds else len(self.rounds),
            contender=self.contender() if stays else None,
            most_gain=math.expm1(self.most_gain()) if stays else None,
            behind=None if stays or fails else self._relative_distance(choice),
            contradicted_by=len(self.fresh) if contradicts else 0,
            exhausted=self.exhausted,
            reverted={name: now[name] for name in self.taken_back if now},
            failed=tuple(trial for trial in self.failed if trial != baseline),
        )

    def _result_of(self, trial: int, choice: int, *, fails: bool) -> FinalistResult:
        rates = self.rates(trial)
        compared = rates and not fails and trial not in self.failed
        return FinalistResult(
            trial=trial,
            knobs=self.candidates[trial].knobs,
            rates=tuple(rates),
            figures=tuple(self.basis_rates(trial)),
            own_rate=self.own_rate(trial),
            gain=self._gain_of(trial) if compared else None,
            ratio_to_choice=self._ratio_to(choice, trial) if rates else None,
            dropped_after_round=self.dropped.get(trial),
        )

    def _gain_of(self, trial: int) -> Ratio:
        return Ratio(1.0, 1.0, 1.0) if trial == self.baseline else self.gain(trial)

    def _ratio_to(self, choice: int, trial: int) -> Ratio:
        """Return a trial's throughput over the choice's, for a pair measured alone in those rounds."""
        alone = self.chosen
        if alone is not None and self.measured_alone:
            if (trial, choice) == (alone, self.baseline):
                return self.gain(alone)
            if (trial, choice) == (self.baseline, alone):
                return self.gain(alone).inverse
        return self.ratio(trial, choice)

    def _relative_distance(self, trial: int) -> float | None:
        behind = self.behind(trial)
        several = len(self.candidates) > 2
        return -math.expm1(-behind) if several and math.isfinite(behind) else None

    def _as_good(self, trial: int) -> bool:
        if trial == self.baseline or self.behind(trial) > _TIED:
            return False
        return self.baseline is None or self._beats_baseline(trial)

    def _beats_baseline(self, trial: int) -> bool:
        if self.baseline in self.dropped:
            return True  # it failed when it was run again: there is nothing to beat any more
        if trial == self.baseline or len(self.rounds) < 2:
            return False
        return self.gain(trial).faster

    def _memory(self, trial: int) -> float:
        # Peaks of the same configuration differ by a few percent from run to run.
        peak = self.candidates[trial].peak_bytes
        return round(math.log(max(peak, 1)) / math.log(1 + ALIKE) / 2)

    def _distance(self, trial: int) -> int:
        if self.baseline is None:
            return 0
        today = self.candidates[self.baseline].knobs
        return sum(value != today[name] for name, value in self.candidates[trial].knobs.items())


def _out_of_time(run: StoredAttempt) -> bool:
    """Return whether a run was ended before it could show anything about its configuration."""
    return run.result.state == AttemptState.PRUNED and run.result.throughput is None
