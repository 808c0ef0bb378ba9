"""Price of the proof of a result in seconds: rounds of a finalist and the baseline, and checks. Pure.

The search leaves this time untouched, the finals begin only where it is left, and a verdict that asks
for more time asks for this, all by one set of figures.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.analysis import gate
from autotune.analysis.confirmation import FEWEST_ROUNDS
from autotune.analysis.costs import Costs
from autotune.analysis.finalists import ranked
from autotune.measurement.policy import PROOF
from storage import Attempts, StoredAttempt

Knobs = Mapping[str, Any]

RESERVED = PROOF.reserved


@dataclass(frozen=True)
class Proof:
    """Price of the finals of a study, by its records.

    Attributes:
        attempts: attempts of the study.
        costs: costs of its runs.
        baseline: the user's configuration.
        barred: trials that may not be recommended, each with the reason.
        needed: rounds of the confirmation for which the search leaves time.
        repeats: runs of the baseline besides those rounds, because its processes lie apart.
        at_once: True if the members of a round are launched at once.
    """

    attempts: Attempts
    costs: Costs
    baseline: Knobs
    barred: Mapping[int, str] = field(default_factory=dict)
    needed: int = FEWEST_ROUNDS
    repeats: int = 0
    at_once: bool = False

    def rivals(self) -> list[StoredAttempt]:
        """Return complete trials that may still be recommended, the fastest first."""
        several = ranked(self.attempts)
        return [a for a in several if a.knobs != self.baseline and a.trial not in self.barred]

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

    def finals(self, finalists: Sequence[Knobs], rounds: int) -> float:
        """Return seconds of the shortest rounds, the checks before, and the baseline's other runs."""
        checks = sum(map(self.costs.trajectory, self._missing_checks(finalists)))
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

        They are those of the fastest rival or, where its checks take longer than what is left, of the
        fastest one that needs none. Before a rival is known they are those of a configuration that runs
        like the baseline.
        """
        rivals = self.rivals()
        if not rivals:
            return self.finals([self.baseline], self.needed)
        first = self.finals([rivals[0].knobs], self.needed)
        if first <= left:
            return first
        checked = self.checked(rivals)
        return self.finals([checked[0].knobs], self.needed) if checked else first

    def further_steps(self) -> float:
        """Return seconds that rounds with enough steps take beyond the shortest ones.

        They are those of the fastest rival; 0 without any.
        """
        first = next(iter(self.rivals()), None)
        if first is None:
            return 0.0
        return self.needed * sum(map(self.costs.further_steps, [self.baseline, first.knobs]))

    def _missing_checks(self, finalists: Iterable[Knobs]) -> list[dict[str, Any]]:
        return gate.missing_runs(finalists, self.baseline, self.attempts)
