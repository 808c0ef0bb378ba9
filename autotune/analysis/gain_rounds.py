"""Rounds of the choice and the baseline alone, which tell by how much it is faster. Pure.

The choice flatters the rounds that chose, so fresh ones count. A single finalist was not picked among
several: once all of its rounds show a gain that is large beside their interval, luck has little part in
it, and they all count. Where the spread between processes is known each of the two has a variance of its
own; else the differences within the rounds tell.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autotune.analysis.choice_rounds import Rounds
from autotune.analysis.policy import PROOF
from autotune.analysis.process_spread import ProcessSpread
from autotune.measurement.contrasts import ONE_SIDED, Contrast, welch_contrast
from autotune.measurement.estimate import Ratio, clearly_faster, half_width_of, paired_ratio


@dataclass
class GainRounds:
    """Rounds of a pair.

    Attributes:
        most: most rounds that are allowed.
        wanted: number of rounds that are planned at least.
        least: number of rounds from which on they tell.
        spread: spread between the processes of each configuration; None: it is not known.
        earlier: rounds before these, if the choice was the only finalist.
    """

    selected: int
    baseline: int
    most: int
    wanted: int
    least: int
    spread: ProcessSpread | None
    earlier: Rounds = field(default_factory=dict)
    rounds: Rounds = field(default_factory=dict)

    @property
    def has_enough_rounds(self) -> bool:
        """True if there are enough rounds to tell by how much the choice is faster."""
        # Without a round after the choice the repeated interval stands: the rounds before it ended
        # because they showed a gain.
        return bool(self.rounds) and len(self.counted) >= min(self.least, self.wanted)

    @property
    def to_tell(self) -> int:
        """Number of further rounds that are expected to be enough, if they scatter as those so far."""
        alone = max(0, min(self.least, self.wanted) - len(self.rounds))
        if not self.earlier:
            return alone
        logs = self._gains(self._all)
        narrow = PROOF.share_of_gain * abs(statistics.fmean(logs))
        spread = statistics.stdev(logs)
        told = (
            more
            for more in range(alone)
            if (self.rounds or more) and half_width_of(spread, len(logs) + more) <= narrow
        )
        return next(told, alone)

    @property
    def earlier_tell(self) -> bool:
        """True if the earlier rounds count, too: the interval by all is narrow beside the gain."""
        if not self.earlier:
            return False
        both = ([r[trial] for r in self._all] for trial in (self.selected, self.baseline))
        return paired_ratio(*both).tells(PROOF.share_of_gain)

    @property
    def _all(self) -> list[dict[int, float]]:
        return [*self.earlier.values(), *self.rounds.values()]

    def _gains(self, rounds: Iterable[Mapping[int, float]]) -> list[float]:
        """Return by how much the choice was faster, in logarithms, round by round."""
        return [math.log(rates[self.selected] / rates[self.baseline]) for rates in rounds]

    @property
    def counted(self) -> Rounds:
        """Rounds that tell the speed-up, in order."""
        return dict(enumerate(self._all, 1)) if self.earlier_tell else self.rounds

    def gain(self) -> Ratio:
        """Return the speed-up of the choice over the baseline, with Student's or Welch's interval."""
        if self.spread is not None:
            both = self.selected, self.baseline
            arms = (self.spread.arm(t, self.rates(t), self.baseline) for t in both)
            return welch_contrast(*arms).ratio(ONE_SIDED)
        return paired_ratio(self.rates(self.selected), self.rates(self.baseline))

    def rates(self, trial: int) -> list[float]:
        """Return the throughput of one of the two, round by round."""
        return [rates[trial] for rates in self.counted.values()]

    def decided(self) -> bool:
        """Return whether another round would change nothing that matters, or is not allowed."""
        if len(self.rounds) < self.wanted:
            return False
        if len(self.rounds) >= self.most:
            return True
        if self.spread is None:
            return not self.gain().vague
        return (self.vain or self._knows_rate) if self.baseline_unsteady else self.precise

    @property
    def contradicted(self) -> bool:
        """True if the rounds contradict the choice.

        Enough of them do not show it faster than the baseline, or the few so far show it slower.
        """
        if self.has_enough_rounds:
            return not self.gain().faster
        return bool(self.rounds) and math.fsum(self._gains(self.counted.values())) <= 0

    @property
    def baseline_unsteady(self) -> bool:
        """Return whether more processes of the baseline would tell more than more rounds."""
        return self.spread is not None and self.spread.unsteady(self.baseline)

    @property
    def precise(self) -> bool:
        """Return whether the gain is known as exactly as is wanted where each arm has a variance."""
        if self.spread is None or not self.has_enough_rounds:
            return False
        gain = self.gain()
        most = PROOF.coarsest_half_width if self.baseline_unsteady else PROOF.finest_half_width
        wanted = max(
            PROOF.finest_half_width, min(PROOF.share_of_unsteady * math.log(gain.value), most)
        )
        return gain.half_width <= wanted

    @property
    def vain(self) -> bool:
        """Return whether the rounds leave no gain that is worth more runs."""
        return self.has_enough_rounds and math.log(self.gain().high) <= PROOF.no_gain

    @property
    def _knows_rate(self) -> bool:
        """Return whether more rounds would tell little of the choice's own rate.

        It is known as exactly as is wanted, or its processes lie apart and the gain is shown anyway.
        """
        if self.spread is None:
            return True
        if self.spread.unsteady(self.selected):
            return clearly_faster(self.gain())
        rate = self.spread.arm(self.selected, self.rates(self.selected), self.baseline).rate
        return rate.half_width <= PROOF.own_rate


def rounds_wanted(seen: Contrast, rounds: int, most: int) -> int:
    """Return the number of fresh rounds that a gain needs, by the scatter of those that chose.

    Args:
        seen: gain by these rounds.
        most: most fresh rounds that are allowed.
    """
    target = max(
        PROOF.finest_half_width, min(PROOF.share_of_gain * seen.value, PROOF.coarsest_half_width)
    )
    spread = seen.error * math.sqrt(rounds)  # of one pair
    wanted = min(PROOF.fewest_rounds, most)
    while wanted < most and half_width_of(spread, wanted) > target:
        wanted += 1
    return wanted
