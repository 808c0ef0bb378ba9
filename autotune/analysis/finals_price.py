"""Price of the proof of a result in seconds. Pure.

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
from typing import Self

from autotune.analysis import gate_plan
from autotune.analysis.barred import Barred
from autotune.analysis.costs import Costs
from autotune.analysis.finalists import may_be_faster, ranked
from autotune.analysis.policy import PROOF
from search_spaces.knob import Knobs
from storage import Attempts, Purpose, StoredAttempt


@dataclass(frozen=True)
class ProofPlan:
    """Plan of the runs that a proof takes.

    Attributes:
        needed: rounds of the confirmation for which the search leaves time.
        repeats: runs of the baseline besides those rounds, because its processes lie apart.
        at_once: True if the members of a round are launched at once.
    """

    needed: int = PROOF.fewest_rounds
    repeats: int = 0
    at_once: bool = False


@dataclass(frozen=True)
class FinalsPrice:
    """Price of the finals of a study, by its records.

    Attributes:
        baseline: the user's configuration.
    """

    attempts: Attempts
    costs: Costs
    baseline: Knobs
    barred: Barred = field(default_factory=Barred)
    plan: ProofPlan = field(default_factory=ProofPlan)

    def eligible(self) -> Sequence[StoredAttempt]:
        """Return complete trials that may still be recommended, the fastest of them first."""
        return self._eligible

    @functools.cached_property
    def _eligible(self) -> list[StoredAttempt]:
        several = ranked(self.attempts)
        may = (a for a in several if a.knobs != self.baseline and a.trial not in self.barred.trials)
        return list(itertools.islice(may, PROOF.ranked_trials))

    def one_by_one(self) -> Self:
        """Return the price where the members of a round are launched one after the other."""
        return replace(self, plan=replace(self.plan, at_once=False))

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
        return max(0, members - 1) if self.plan.at_once else 0

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
        repeats = self.plan.repeats * self.costs.brief(self.baseline)
        return checks + repeats + self.rounds([self.baseline, *finalists], rounds)

    def rounds(self, members: Sequence[Knobs], rounds: int) -> float:
        """Return seconds of so many of the shortest rounds.

        Not all of their launches are slow: single excesses over the usual add up as squares do.
        """
        slow, usual = self.round(members), self.usual_round(members)
        runs = max(1, rounds * (len(members) - self._side_by_side(len(members))))
        return rounds * (usual + (slow - usual) / math.sqrt(runs))

    def of_untried(self, knobs: Knobs) -> float:
        """Return seconds of the shortest finals of a configuration that has yet to be tried."""
        tried = replace(self, costs=self.costs.once(knobs))
        return tried.finals([knobs], self.plan.needed)

    def shortest(self, left: float) -> float:
        """Return seconds of the shortest finals.

        They are those of the fastest rival or, where these take longer than what is left, of the
        fastest one whose finals do not. Before a rival is known they are those of a configuration that
        runs like the baseline.
        """
        rivals = self.eligible()
        if not rivals:
            return self.finals([self.baseline], self.plan.needed)
        first = self.alone(rivals[0])
        if first <= left:
            return first
        others = map(self.alone, self.worth_checking(rivals[1:]))
        return next((seconds for seconds in others if seconds <= left), first)

    def alone(self, finalist: StoredAttempt) -> float:
        """Return seconds of the shortest finals of one finalist."""
        return self.finals([finalist.knobs], self.plan.needed)

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
        return self.plan.needed * sum(map(self.costs.further_steps, [self.baseline, first.knobs]))

    def _missing_checks(self, finalists: Iterable[Knobs]) -> list[gate_plan.MissingRun]:
        convolutional = self.costs.convolutional
        return gate_plan.missing_runs(
            finalists, self.baseline, self.attempts, convolutional=convolutional
        )
