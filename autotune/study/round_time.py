"""The time of one round of the confirmation: whether there is enough, and how long each run may take."""

from collections.abc import Sequence

from autotune.analysis.confirmation import Confirmation
from autotune.analysis.finals_price import FinalsPrice
from autotune.analysis.policy import PROOF
from autotune.study.policy import STUDY
from autotune.study.time_budget import TimeBudget
from autotune.worker.protocol import TimeLimit
from search_spaces.knob import Knobs


class RoundTime:
    """Time of the next round of a confirmation, by what earlier runs took."""

    def __init__(self, confirmation: Confirmation, price: FinalsPrice, time: TimeBudget) -> None:
        self._confirmation = confirmation
        self._price = price
        self._time = time

    def enough(self, missing: Sequence[int]) -> bool:
        """Return whether there is time for a round, and for all rounds that prove something.

        The first round needs time for a proof with slow launches; later rounds need time for usual
        launches. A round that counts like others before it is begun only if it, and those that have to
        follow it, may be about as long: short runs would make doubtful what the others show.

        Args:
            missing: trials that the round has yet to measure.
        """
        price, to_prove = self._price, self._confirmation.to_prove
        knobs, rounds = self._confirmation.knobs_of(missing), max(1, to_prove)
        if len(missing) < len(self._confirmation.members()):
            return self._time.may_end(price.one_by_one().usual_round(knobs))
        usual = price.usual_round(knobs)
        if self._counts_like_others() and not self._may_be_long_enough(knobs, rounds):
            return False
        if self._confirmation.proven:
            return usual <= self._time.left
        if to_prove in (0, PROOF.fewest_rounds):
            return self._time.may_end(price.rounds(knobs, rounds))
        return self._time.may_end(rounds * usual)

    def interleaved(self, members: Sequence[int]) -> TimeLimit:
        """Return the time limit of a round whose members are measured in turn."""
        knobs = self._confirmation.knobs_of(members)
        to_come = self._confirmation.runs_to_come(self._time.rounds)
        shortest = self._price.round(knobs)
        others = self._needed(members) - shortest
        shortest = max(shortest, self._seconds_like_before(knobs, knobs))
        return self._time.for_proof(len(knobs) / (len(knobs) + to_come), shortest, others)

    def alone(self, trial: int, missing: Sequence[int]) -> TimeLimit:
        """Return the time limit of one member's run by itself.

        Args:
            missing: trials that the round has yet to measure, this one among them.
        """
        own, several = self._confirmation.knobs_of([trial]), self._confirmation.knobs_of(missing)
        runs = len(missing) + self._confirmation.runs_to_come(self._time.rounds)
        shortest = self._price.costs.shortest(own[0])
        others = self._needed(missing) - shortest
        like_before = self._seconds_like_before(own, several)
        return self._time.for_proof(1 / runs, max(shortest, like_before), others)

    def _counts_like_others(self) -> bool:
        """Return whether the round counts like others before it, by which one is chosen or proven.

        Where the spread between processes is known, the steps of a run tell how much it counts.
        """
        one = self._confirmation
        return (one.selected is not None or not one.to_prove) and one.spread is None

    def _may_be_long_enough(self, members: Sequence[Knobs], rounds: int) -> bool:
        """Return whether so many rounds may be about as long as those before."""
        least = STUDY.least_further * self._price.recorded_round(members)
        return rounds * least <= self._time.left

    def _seconds_like_before(self, runs: Sequence[Knobs], missing: Sequence[Knobs]) -> float:
        """Return seconds with which runs of a round tell as much as those that they count like.

        They are 0 where there are none. Where no other round could follow those that have to be
        measured, these share all that is left.

        Args:
            runs: configurations of the runs.
            missing: configurations that the round has yet to measure, these among them.
        """
        if not self._time.limited or not self._counts_like_others():
            return 0.0
        recorded, left = self._price.recorded_round, max(0.0, self._time.left)
        whole = recorded(self._confirmation.knobs_of(self._confirmation.members()))
        needed = recorded(missing) + max(0, self._confirmation.to_prove - 1) * whole
        follows = left - needed >= STUDY.least_further * whole
        return recorded(runs) * (1.0 if follows else left / needed)

    def _needed(self, missing: Sequence[int]) -> float:
        """Return seconds of the shortest runs without which the round, and those before, prove nothing.

        Args:
            missing: trials that the round has yet to measure.
        """
        confirmation, to_come = self._confirmation, max(0, self._confirmation.to_prove - 1)
        every = confirmation.knobs_of(confirmation.members())
        now = confirmation.knobs_of(missing)
        return self._price.rounds(now, 1) + self._price.rounds(every, to_come)
