"""Confirmation: finalists and baseline are measured again, round by round. Pure.

First, rounds of all finalists choose (`choice_rounds`). Then fresh rounds of the choice and the baseline
alone tell by how much it is faster (`gain_rounds`); of a single finalist all rounds may. This module
says which comes next, by the records, and which rounds count; `confirmation_result` puts together what
they say.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from statistics import geometric_mean
from typing import Any

from autotune.analysis.choice_rounds import ChoiceRounds, Rounds
from autotune.analysis.finalists import Candidate
from autotune.analysis.gain_rounds import GainRounds, rounds_wanted
from autotune.analysis.policy import PROOF
from autotune.analysis.process_spread import ProcessSpread
from autotune.analysis.round_results import round_results, runs_that_compare
from autotune.measurement.estimate import Ratio
from storage import Attempts, Purpose


class Basis(Enum):
    """Rounds that the speed-up of a choice rests on, and figures are taken from."""

    CHOICE = "choice"
    """Those that choose."""
    GAIN = "gain"
    """Those of the choice and the baseline alone, once there are enough."""
    ALL = "all"
    """Both: of a single finalist, or where only all of them show that the choice is faster."""


class Confirmation:
    """State of a confirmation: which finalists are still in, given the rounds so far.

    Where the spread between processes is known, a single finalist is measured against the baseline at
    once, as nothing is to be chosen.

    Attributes:
        baseline: trial of the baseline; None if it is no candidate.
        spread: spread between the processes of each configuration; None where it is not told.
        choice_rounds: rounds of all finalists that were still in.
        gain_rounds: rounds of the choice and the baseline; None while rounds choose.
        reverted: changes of the choice that bring nothing, with the values that they had in it; it
            is measured alone without them.
        reduced: True if fresh rounds measure the choice without some of its changes.
        void: numbers of rounds that do not count, because they ran elsewhere than the last one.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        baseline: int | None,
        most_rounds: int,
        first_round: int = 1,
        spread: ProcessSpread | None = None,
    ) -> None:
        self.spread = spread
        self.candidates = {candidate.trial: candidate for candidate in candidates}
        self.baseline = baseline
        self.choice_rounds = ChoiceRounds(self.candidates, baseline, most_rounds, spread)
        self.gain_rounds: GainRounds | None = None
        self.reverted: dict[str, Any] = {}
        self.reduced = False
        self.failed: list[int] = []
        self.void: set[int] = set()
        self._closed = 0
        self._most_rounds = most_rounds
        self._first_round = first_round
        rivals = self.choice_rounds.finalists_in()
        if spread is not None and baseline is not None and len(rivals) == 1:
            self.gain_rounds = self._plan_gain_rounds(rivals[0], baseline, least=1)

    @property
    def selected(self) -> int | None:
        """Trial that is measured against the baseline alone; None while rounds choose."""
        return self.gain_rounds.selected if self.gain_rounds else None

    @property
    def rounds(self) -> Rounds:
        """Rounds that choose; all of them, where nothing is to be chosen."""
        return (
            self.gain_rounds.rounds
            if self.gain_rounds and self.nothing_to_choose
            else self.choice_rounds.rounds
        )

    @property
    def fresh(self) -> Rounds:
        """Rounds of the choice and the baseline alone."""
        return self.gain_rounds.rounds if self.gain_rounds else {}

    def members(self) -> list[int]:
        """Return the trials that the next round measures."""
        return (
            [self.gain_rounds.baseline, self.gain_rounds.selected]
            if self.gain_rounds
            else self.choice_rounds.members()
        )

    def knobs_of(self, trials: Iterable[int]) -> list[dict[str, Any]]:
        """Return the configurations of some candidates."""
        return [self.candidates[trial].knobs for trial in trials]

    @property
    def next_round(self) -> int:
        """Number of the round to measure next."""
        return self._first_round + self._closed + len(self.void)

    def runs_to_come(self, good_rounds: int) -> int:
        """Return the approximate number of runs in the rounds that may follow the next one.

        Args:
            good_rounds: number of rounds that are worth more than longer runs.
        """
        if self.gain_rounds:
            planned = max(good_rounds, len(self.gain_rounds.rounds) + 2)
            return 2 * max(
                0, min(planned, self.gain_rounds.wanted) - len(self.gain_rounds.rounds) - 1
            )
        alone = 2 * PROOF.fewest_rounds if self.baseline is not None else 0
        return max(0, good_rounds - len(self.rounds) - 1) * len(self.members()) + alone

    @property
    def to_prove(self) -> int:
        """Number of rounds still missing for a proof, the next one included."""
        if self.gain_rounds and self.spread is not None:
            return max(0, self.gain_rounds.wanted - len(self.gain_rounds.rounds))
        if self.gain_rounds:
            return self.gain_rounds.to_tell
        return max(0, PROOF.fewest_rounds - len(self.choice_rounds.rounds))

    @property
    def to_prove_reduced(self) -> int:
        """Rounds without which the choice proves nothing if some of its changes are left out."""
        if self.spread is not None:
            return self.to_prove
        return max(0, PROOF.fewest_rounds - len(self._like_next))

    @property
    def _like_next(self) -> Rounds:
        """Rounds of the same members as the next one."""
        return self.gain_rounds.rounds if self.gain_rounds else self.choice_rounds.rounds

    def recorded(self, attempts: Attempts, epoch: int | None = None) -> dict[int, float | None]:
        """Return what is recorded of the next round: throughput by trial, None where it failed.

        Args:
            epoch: that of the daemon which goes on with the round; None: that of its last run.
        """
        members, results = self.members(), round_results(attempts, self.next_round, epoch)
        return {trial: rate for trial, rate in results.items() if trial in members}

    def is_void(self, attempts: Attempts) -> bool:
        """Return whether a run of the next round was made elsewhere than the last run of all.

        Such a round would compare machines, and not configurations.
        """
        runs = attempts.of(Purpose.CONFIRM).recorded()
        last = runs.last
        own = runs_that_compare(runs, self.next_round)
        return last is not None and any(run.environment != last.environment for run in own)

    def close_round(self, results: Mapping[int, float | None]) -> None:
        """Take in a complete round; None: that trial failed, which drops it."""
        self._closed += 1
        rates = {trial: rate for trial, rate in results.items() if rate is not None}
        failed = [trial for trial in results if trial not in rates]
        if self.gain_rounds is None or not failed:
            self._like_next[len(self._like_next) + 1] = rates
        if self.gain_rounds and not failed:
            return
        for trial in failed:
            self.choice_rounds.dropped[trial] = self._closed
        self.failed += failed
        if self.gain_rounds:
            self._reopen()
        self.choice_rounds.drop_hopeless(self._closed)
        if self.members() and self.choice_rounds.over():
            self._choose()

    def _reopen(self) -> None:
        """Look at all finalists once more: a choice that fails when it is measured alone is none."""
        self.choice_rounds.rounds = self.rounds
        self.choice_rounds.chosen_after = 0
        self.gain_rounds = None

    def _choose(self) -> None:
        best, baseline = self.choice_rounds.best(), self.baseline
        if baseline is None or best == baseline or baseline in self.choice_rounds.dropped:
            return
        self.gain_rounds = self._plan_gain_rounds(best, baseline, least=PROOF.fewest_rounds)
        self.choice_rounds.chosen_after = len(self.choice_rounds.rounds)
        if self.candidates.keys() == {best, baseline}:
            self.gain_rounds.earlier = self.choice_rounds.rounds

    def _plan_gain_rounds(self, selected: int, baseline: int, *, least: int) -> GainRounds:
        """Plan rounds of a choice and the baseline alone, which tell from so many on."""
        most = self._most_rounds
        if self.spread is not None:
            wanted = min(PROOF.fewest_alone, most)
        else:
            seen = self.choice_rounds.contrast(selected, baseline)
            wanted = rounds_wanted(seen, len(self.choice_rounds.rounds), most)
        return GainRounds(selected, baseline, most, wanted, least, self.spread)

    def end(self) -> None:
        """Take the rounds so far for all that there are, where the time for more is over.

        Rounds that ended because they were decided have had their last look.
        """
        self.choice_rounds.last_look = not self.decided()

    def revert(self, knobs: Mapping[str, Any]) -> None:
        """Have the choice measured alone without the changes that bring nothing."""
        assert self.selected is not None
        winner = self.candidates[self.selected]
        self.reverted = {n: v for n, v in winner.knobs.items() if knobs[n] != v}
        self.candidates[self.selected] = replace(winner, knobs=dict(knobs))
        self.measure_reduced(reduced=bool(self.reverted))

    def measure_reduced(self, *, reduced: bool) -> None:
        """Take note whether fresh rounds measure the choice without some of its changes.

        Those before measured another configuration then.
        """
        self.reduced = reduced
        if reduced and self.gain_rounds:
            self.gain_rounds.earlier = {}

    def decided(self) -> bool:
        """Return whether another round would change nothing that matters, or is not allowed."""
        return self.gain_rounds.decided() if self.gain_rounds else self.choice_rounds.over()

    @property
    def baseline_unsteady(self) -> bool:
        """Return whether more processes of the baseline would tell more than more rounds."""
        baseline = self.baseline
        return self.spread is not None and baseline is not None and self.spread.unsteady(baseline)

    @property
    def settled(self) -> bool:
        """True if the gain is known as exactly as is wanted, or too small to be worth more runs."""
        return self.gain_rounds is not None and (self.gain_rounds.precise or self.gain_rounds.vain)

    @property
    def rounds_left(self) -> int:
        """Return the number of rounds like the next one that may follow."""
        return max(0, self._most_rounds - len(self._like_next))

    def most_gain(self) -> float:
        """Return the highest gain over the baseline that the rounds leave possible, in logarithms.

        It is that of the choice by the rounds that tell it, if there are enough.
        """
        if self.gain_rounds and self.gain_rounds.has_enough_rounds:
            return math.log(self.gain(self.gain_rounds.selected).high)
        return self.choice_rounds.most_gain()

    def contender(self) -> int | None:
        """Return the finalist that may gain most over the baseline; None if none is left."""
        return self.gain_rounds.selected if self.gain_rounds else self.choice_rounds.contender()

    def leads_baseline(self, trial: int) -> bool:
        """Return whether a trial is faster than the baseline in the mean of the rounds so far."""
        own = self.rates(trial)
        baseline = [] if self.baseline is None else self.rates(self.baseline)
        return bool(own and baseline) and geometric_mean(own) > geometric_mean(baseline)

    @property
    def basis(self) -> Basis:
        """Kind of the rounds that figures are taken from."""
        if self.joint_gain:
            return Basis.ALL
        if self.gain_rounds is None or not self.gain_rounds.has_enough_rounds:
            return Basis.CHOICE
        return Basis.ALL if self.gain_rounds.earlier_tell else Basis.GAIN

    @property
    def basis_rounds(self) -> Rounds:
        """Rounds that figures are taken from."""
        basis = self.basis
        if basis is Basis.ALL:
            return self._all_rounds
        return self.fresh if basis is Basis.GAIN else self.choice_rounds.rounds

    @property
    def joint_gain(self) -> Ratio | None:
        """Speed-up of the choice by all of its rounds, where only these show that it is faster.

        Fresh rounds tell the gain without the bias of the choice. Where they are too few or too restless
        to show one, the evidence of the rounds that chose is not lost: those that follow are further
        looks of the same test. None: the rounds that count by themselves show a gain, or nothing does.
        """
        if (
            not self.gain_rounds
            or self.nothing_to_choose
            or self.gain_rounds.earlier_tell
            or self.reduced
        ):
            return None
        if not self._doubted:
            return None
        gain = self.choice_rounds.gain(self.gain_rounds.selected, self._all_rounds)
        return gain if gain.faster else None

    @property
    def _doubted(self) -> bool:
        """True if rounds after the choice contradict it, or those of a single finalist do not tell."""
        told = self.gain_rounds
        if told is None:
            return False
        few = bool(told.earlier and told.rounds) and not told.has_enough_rounds
        return few or told.contradicted

    @property
    def _all_rounds(self) -> Rounds:
        """Rounds that chose and fresh ones, in order."""
        return dict(enumerate((*self.choice_rounds.rounds.values(), *self.fresh.values()), 1))

    @property
    def gain_is_measured(self) -> bool:
        """True if rounds tell by how much the choice is faster, at least one of them a fresh one."""
        return self.gain_rounds is not None and self.gain_rounds.has_enough_rounds

    @property
    def proven(self) -> bool:
        """True if as many rounds as are needed show that the choice is faster than the baseline."""
        baseline = self.baseline
        if self.to_prove or baseline is None or baseline in self.choice_rounds.dropped:
            return False
        recommended = self.recommended()
        return recommended != baseline and self.gain(recommended).faster

    @property
    def nothing_to_choose(self) -> bool:
        """True if there was a single finalist from the beginning: all rounds tell by how much."""
        return self.gain_rounds is not None and not self.choice_rounds.rounds

    def rates(self, trial: int) -> list[float]:
        """Return a trial's throughput, round by round; fresh rounds come last, if they count."""
        fresh = () if self.basis is Basis.CHOICE else self.fresh.values()
        return [
            rates[trial]
            for rates in (*self.choice_rounds.rounds.values(), *fresh)
            if trial in rates
        ]

    def basis_rates(self, trial: int) -> list[float]:
        """Return a trial's throughput in the rounds of the basis; in all, if it ran in none of them."""
        own = [rates[trial] for rates in self.basis_rounds.values() if trial in rates]
        return own or self.rates(trial)

    def gain(self, trial: int) -> Ratio:
        """Return a trial's speed-up over the baseline, as it may be printed.

        Fresh rounds, if there are enough, tell that of the choice.
        """
        if self.gain_rounds and trial == self.gain_rounds.selected:
            if joint := self.joint_gain:
                return joint
            if self.gain_rounds.has_enough_rounds:
                return self.gain_rounds.gain()
        return self.choice_rounds.gain(trial)

    def recommended(self) -> int:
        """Return the trial to recommend.

        It is the baseline if no finalist beats it, or if later rounds contradict the choice.
        """
        if self.gain_rounds:
            refuted = self._doubted and not self.joint_gain
            return self.gain_rounds.baseline if refuted else self.gain_rounds.selected
        return self.choice_rounds.best()
