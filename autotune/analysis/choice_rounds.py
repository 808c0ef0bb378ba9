"""Rounds of all finalists and the baseline, which choose one of them. Pure.

From the third round on each ends with a look: does a finalist beat the baseline? Its error is spent over
all looks and finalists. A finalist that cannot be the best drops out.
"""

import math
from collections.abc import Mapping, Sequence

from autotune.analysis.finalists import Candidate
from autotune.analysis.policy import PROOF
from autotune.analysis.process_spread import ProcessSpread
from autotune.measurement.contrasts import (
    ONE_SIDED,
    Contrast,
    contrast,
    critical_value,
    welch_contrast,
)
from autotune.measurement.estimate import Ratio
from autotune.measurement.group_sequential import look_level, looks_after_each_round

Rounds = dict[int, dict[int, float]]
"""Round -> trial -> throughput."""


class ChoiceRounds:
    """Rounds that choose, and which finalists are still in.

    Attributes:
        baseline: trial of the baseline; None if it is no candidate.
        rounds: complete rounds of all finalists that were still in.
        dropped: trial -> number of closed rounds after which it dropped out.
        last_look: True if no round follows, so that this look spends the error that is left.
        chosen_after: number of rounds after which a look chose: their interval stays that of this look;
            0: none has.
    """

    def __init__(
        self,
        candidates: Mapping[int, Candidate],
        baseline: int | None,
        most_rounds: int,
        spread: ProcessSpread | None,
    ) -> None:
        self.candidates = candidates
        self.baseline = baseline
        self.rounds: Rounds = {}
        self.dropped: dict[int, int] = {}
        self.last_look = False
        self.chosen_after = 0
        self._most_rounds = most_rounds
        self._spread = spread

    def members(self) -> list[int]:
        """Return the trials that are still in."""
        return [trial for trial in self.candidates if trial not in self.dropped]

    def finalists_in(self) -> list[int]:
        """Return the trials that are still in, without the baseline."""
        return [trial for trial in self.members() if trial != self.baseline]

    def over(self) -> bool:
        """Return whether these rounds are over."""
        if not self.members() or len(self.rounds) >= self._most_rounds:
            return True
        if len(self.rounds) < PROOF.fewest_rounds:
            return False
        leader = self.leader()
        if self.baseline is not None and not self.beats_baseline(leader):
            return self.most_gain() <= PROOF.no_gain
        return self.behind(leader) <= PROOF.alike_distance or self._risk(leader) <= PROOF.no_gain

    def drop_hopeless(self, closed: int) -> None:
        """Drop finalists that cannot be the best, once there are enough rounds."""
        if len(self.rounds) < PROOF.fewest_rounds or not self.members():
            return
        leader = self.leader()
        for trial in self.members():
            rival = trial not in (leader, self.baseline)
            if rival and self.contrast(trial, leader).chance < PROOF.hopeless_chance:
                self.dropped[trial] = closed

    def leader(self) -> int:
        """Return the fastest trial that is still in, by the rounds that all of them ran."""
        return max(self.members(), key=lambda trial: math.fsum(map(math.log, self._seen(trial))))

    def best(self) -> int:
        """Return the trial to recommend: the baseline if none beats it.

        Among those at most 1 % slower than the best it is the one with the least memory, then the
        nearest to the baseline.
        """
        leader = self.leader()
        if self.baseline is not None and not self.beats_baseline(leader):
            return self.baseline
        equals = [t for t in self.members() if t == leader or self._as_good(t)]
        return min(equals, key=lambda t: (self._memory(t), self._distance(t), t != leader))

    def contender(self) -> int | None:
        """Return the finalist that may gain most over the baseline; None if none is left."""
        assert self.baseline is not None
        baseline = self.baseline
        return max(
            self.finalists_in(), key=lambda trial: self._beyond(baseline, [trial]), default=None
        )

    def most_gain(self) -> float:
        """Return the highest gain over the baseline that the rounds leave possible, in logarithms."""
        assert self.baseline is not None
        return self._beyond(self.baseline, self.finalists_in())

    def behind(self, trial: int) -> float:
        """Return the largest distance of a trial to the best of the finalists, in logarithms.

        This is Hsu's multiple comparison with the best.
        """
        return max(0.0, self._beyond(trial, [t for t in self.finalists_in() if t != trial]))

    def beats_baseline(self, trial: int) -> bool:
        """Return whether a trial is faster than the baseline, at whichever look."""
        if self.baseline in self.dropped:
            return True  # it failed when it was run again: there is nothing to beat any more
        if trial == self.baseline or len(self.rounds) < 2:
            return False
        return self.gain(trial).faster

    def gain(self, trial: int, rounds: Rounds | None = None) -> Ratio:
        """Return a trial's speed-up over the baseline.

        The interval holds for all looks and finalists at once (a repeated confidence interval): it
        excludes 1 only where the trial has beaten the baseline.

        Args:
            rounds: rounds to look at; None: those that choose.
        """
        assert self.baseline is not None
        rounds = self.rounds if rounds is None else rounds
        return self.contrast(trial, self.baseline, rounds).ratio(self.level(len(rounds)))

    def ratio(self, trial: int, other: int) -> Ratio:
        """Return the ratio of two trials, with a single comparison's interval."""
        if trial == other:
            return Ratio(1.0, 1.0, 1.0)
        return self.contrast(trial, other).ratio(ONE_SIDED)

    def contrast(self, trial: int, other: int, rounds: Rounds | None = None) -> Contrast:
        """Return how much faster a trial is than another, in logarithms.

        Where the spread between processes is known each of the two has a variance of its own, so that a
        baseline whose processes lie apart hides no difference of others.

        Args:
            rounds: rounds to look at; None: those that choose.
        """
        rounds = self.rounds if rounds is None else rounds
        if self._spread is None:
            return contrast(rounds, trial, other)
        both = ((t, _rates(rounds, t)) for t in (trial, other))
        return welch_contrast(*(self._spread.arm(t, rates, self.baseline) for t, rates in both))

    def level(self, rounds: int) -> float:
        """Return the one-sided level of one finalist's look after so many rounds."""
        finalists = len(self.candidates) - (self.baseline is not None)
        return self._spent(PROOF.false_better / max(1, finalists), rounds)

    def _spent(self, error: float, rounds: int) -> float:
        """Return the share of an error of all looks that the look after so many rounds may spend."""
        is_last = self.last_look and rounds > self.chosen_after
        return look_level(
            looks_after_each_round(PROOF.fewest_rounds, rounds),
            rounds if is_last else max(self._most_rounds, rounds),
            error,
        )

    def _beyond(self, trial: int, rivals: Sequence[int]) -> float:
        """Return the largest lead of the fastest rival over a trial, at whichever look."""
        if not rivals:
            return -math.inf
        found = [self.contrast(rival, trial) for rival in rivals]
        sure = 1 - self._spent(PROOF.apart_error, len(self.rounds))
        return max(c.value + critical_value(len(rivals), c.df, sure) * c.error for c in found)

    def _risk(self, trial: int) -> float:
        """Return the largest expected loss of a trial to the other finalists, in logarithms."""
        rivals = [t for t in self.finalists_in() if t != trial]
        return math.fsum(self.contrast(trial, rival).risk for rival in rivals)

    def _seen(self, trial: int) -> list[float]:
        return _rates(self.rounds, trial)

    def _as_good(self, trial: int) -> bool:
        if trial == self.baseline or self.behind(trial) > PROOF.tied_distance:
            return False
        return self.baseline is None or self.beats_baseline(trial)

    def _memory(self, trial: int) -> float:
        # Peaks of the same configuration differ by a few percent from run to run.
        peak = self.candidates[trial].peak_bytes
        return round(math.log(max(peak, 1)) / math.log(1 + PROOF.alike_distance) / 2)

    def _distance(self, trial: int) -> int:
        if self.baseline is None:
            return 0
        baseline = self.candidates[self.baseline].knobs
        return sum(value != baseline[name] for name, value in self.candidates[trial].knobs.items())


def _rates(rounds: Rounds, trial: int) -> list[float]:
    """Return the throughput of a trial in those rounds that it ran in."""
    return [rates[trial] for rates in rounds.values() if trial in rates]
