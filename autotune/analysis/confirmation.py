"""Who is still in, as finalists and baseline are measured again round by round. Pure."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from autotune.measurement.estimate import Ratio, clearly_faster, paired_ratio
from search_spaces.constraints import global_batch
from storage import Attempts, AttemptState, Purpose, StoredAttempt

FEWEST_ROUNDS = 3
ALIKE = 0.02
"""Finalists within 2 % of each other are not told apart any further."""

Rounds = dict[int, dict[int, float]]
"""Round -> trial -> throughput."""


@dataclass(frozen=True)
class Candidate:
    """A trial that takes part in the confirmation."""

    trial: int
    knobs: dict[str, Any]
    peak_bytes: int


class Confirmation:
    """Who is still in, given what the rounds have shown so far."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        baseline: int | None,
        most_rounds: int,
        first_round: int = 1,
    ) -> None:
        self.candidates = {candidate.trial: candidate for candidate in candidates}
        self.baseline = baseline
        self.dropped: dict[int, int] = {}
        self.rounds: Rounds = {}
        self.void: set[int] = set()
        """Numbers of rounds that count for nothing: they were not run where the last one was."""
        self._most_rounds = most_rounds
        self._first_round = first_round

    def members(self) -> list[int]:
        """Trials that the next round measures."""
        return [trial for trial in self.candidates if trial not in self.dropped]

    @property
    def next_round(self) -> int:
        """Number of the round to measure next."""
        return self._first_round + len(self.rounds) + len(self.void)

    def recorded(self, attempts: Attempts) -> dict[int, float | None]:
        """What is recorded of the next round: throughput per trial, None where it failed."""
        members = self.members()
        runs = attempts.of(Purpose.CONFIRM).in_round(self.next_round).recorded()
        return {
            a.trial: a.result.throughput for a in runs if a.trial in members and not _out_of_time(a)
        }

    def is_void(self, attempts: Attempts) -> bool:
        """Whether a run of the next round was made in another environment than the last run of all: then
        machines would be compared, and not configurations."""
        runs = attempts.of(Purpose.CONFIRM).recorded()
        last = runs.last
        own = runs.in_round(self.next_round)
        return last is not None and any(run.environment != last.environment for run in own)

    def close_round(self, results: Mapping[int, float | None]) -> None:
        """Take in a complete round; None: that trial failed, which drops it."""
        number = len(self.rounds) + 1
        self.rounds[number] = {t: rate for t, rate in results.items() if rate is not None}
        for trial, rate in results.items():
            if rate is None:
                self.dropped[trial] = number
        if number >= FEWEST_ROUNDS and self.members():
            leader = self.leader()
            for trial in self.members():
                if trial not in (leader, self.baseline) and self.ratio(trial, leader).high < 1:
                    self.dropped[trial] = number

    def decided(self) -> bool:
        """Whether another round would change nothing that matters, or is not allowed.

        That the leader is faster is not enough: by how much has to be known as well.
        """
        if not self.members() or len(self.rounds) >= self._most_rounds:
            return True
        if len(self.rounds) < FEWEST_ROUNDS:
            return False
        leader = self.leader()
        rivals = [trial for trial in self.members() if trial not in (leader, self.baseline)]
        if not all(_close_to_one(self.ratio(trial, leader)) for trial in rivals):
            return False
        if self.baseline in (None, leader) or self.baseline in self.dropped:
            return True
        return clearly_faster(self.ratio(leader, self.baseline))

    def leader(self) -> int:
        """The fastest of those still in, by the rounds that all of them ran."""
        return max(self.members(), key=lambda trial: math.fsum(map(math.log, self.rates(trial))))

    def rates(self, trial: int) -> list[float]:
        """A trial's throughput, round by round."""
        return [rates[trial] for rates in self.rounds.values() if trial in rates]

    def ratio(self, trial: int, other: int) -> Ratio:
        """How many times faster a trial is than another, over the rounds that both ran."""
        both = [r for r in self.rounds.values() if trial in r and other in r]
        return paired_ratio([r[trial] for r in both], [r[other] for r in both])

    def choice(self) -> int:
        """The one to recommend: of those that cannot be told from the leader the one with the least
        memory, then the nearest to the baseline."""
        leader = self.leader()
        if self.baseline is not None and not self._beats_baseline(leader, self.baseline):
            return self.baseline
        equals = [t for t in self.members() if t == leader or self._as_good(t, leader)]
        return min(equals, key=lambda t: (self._memory(t), self._distance(t), t != leader))

    def _as_good(self, trial: int, leader: int) -> bool:
        if trial == self.baseline or not _close_to_one(self.ratio(trial, leader)):
            return False
        return self.baseline is None or self._beats_baseline(trial, self.baseline)

    def _beats_baseline(self, trial: int, baseline: int) -> bool:
        if baseline in self.dropped:
            return True  # it failed when it was run again
        if trial == baseline:
            return False
        ratio = self.ratio(trial, baseline)
        return ratio.low > 1 and (len(self.rounds) >= FEWEST_ROUNDS or not ratio.vague)

    def _memory(self, trial: int) -> float:
        # Peaks of the same configuration differ by a few percent from run to run.
        peak = self.candidates[trial].peak_bytes
        return round(math.log(max(peak, 1)) / math.log(1 + ALIKE) / 2)

    def _distance(self, trial: int) -> int:
        if self.baseline is None:
            return 0
        today = self.candidates[self.baseline].knobs
        return sum(value != today[name] for name, value in self.candidates[trial].knobs.items())


def _close_to_one(ratio: Ratio) -> bool:
    return ratio.low >= 1 - ALIKE and ratio.high <= 1 + ALIKE


def _out_of_time(run: StoredAttempt) -> bool:
    """Whether it was ended before it could show anything: it says nothing about its configuration."""
    return run.result.state == AttemptState.PRUNED and run.result.throughput is None


def replay(
    attempts: Attempts,
    *,
    finalists: int,
    most_rounds: int,
    barred: Collection[int] = (),
    unaffordable: Collection[int] = (),
    same_batch: bool = True,
) -> Confirmation | None:
    """The confirmation as the records show it, less a round that is not complete.

    Trials that the numerics gate has refused are no candidates. Rounds that were measured before the
    search went on (with a larger budget) do not count: what is compared must have been measured in
    turn. Nor do rounds that were measured, or begun, in another environment than the last run. Once a
    second round was begun, whoever ran in the first one takes part, whatever there is time for by then.

    Args:
        attempts: of a study whose search has ended.
        finalists: the most candidates besides the baseline and the one of `same_batch`.
        most_rounds: see measurement.rounds.
        barred: trials that are no candidates either.
        unaffordable: trials for whose check there is no time; who has begun goes on.
        same_batch: where all finalists have other global batches, the fastest that has the baseline's
            takes part as well.

    Returns:
        None if no trial of the search is complete.
    """
    first = first_round(attempts)
    affordable = _Affordable(finalists, unaffordable, same_batch, first)
    candidates, baseline_trial = _candidates(attempts, barred, affordable)
    if not candidates:
        return None
    confirmation = Confirmation(candidates, baseline_trial, most_rounds, first)
    while members := confirmation.members():
        results = confirmation.recorded(attempts)
        if confirmation.is_void(attempts):
            confirmation.void.add(confirmation.next_round)
        elif len(results) == len(members):
            confirmation.close_round(results)
        else:
            break
    return confirmation


def first_round(attempts: Attempts) -> int:
    """Number of the first round after the search has last gone on."""
    last_search = attempts.of(Purpose.SEARCH).last
    before = [
        a.round for a in attempts.of(Purpose.CONFIRM) if last_search and a.id < last_search.id
    ]
    return 1 + max(before, default=0)


class _Affordable(NamedTuple):
    """How many may take part, and who may not, until the first round is over.

    Attributes:
        finalists: at most.
        unaffordable: trials.
        same_batch: one more may, if need be, for the sake of the baseline's global batch.
        first: number of the first round.
    """

    finalists: int
    unaffordable: Collection[int]
    same_batch: bool
    first: int


def ranked(attempts: Attempts) -> list[StoredAttempt]:
    """Complete trials of the search that the numerics gate has not refused, the fastest first."""
    return _fastest_first(_not_refused(attempts, attempts.searched().complete()))


def shown(attempts: Attempts) -> list[StoredAttempt]:
    """The same and those that were stopped early, as far as they were timed."""
    return _fastest_first(_not_refused(attempts, attempts.searched().measured()))


def _not_refused(attempts: Attempts, several: Iterable[StoredAttempt]) -> list[StoredAttempt]:
    checked = attempts.of(Purpose.NUMERICS).recorded()
    refused = {a.trial for a in checked if a.result.state != AttemptState.COMPLETE}
    return [a for a in several if a.trial not in refused]


def _fastest_first(several: Iterable[StoredAttempt]) -> list[StoredAttempt]:
    return sorted(several, key=lambda a: -(a.result.throughput or 0.0))


def of_same_batch(
    today: StoredAttempt | None, measured: Iterable[StoredAttempt], members: Sequence[StoredAttempt]
) -> list[StoredAttempt]:
    """The first of those measured, the fastest, with the baseline's global batch, where finalists have
    others only: nobody should have to search twice to learn what is gained without another learning
    rate. It may have been stopped early, as others were faster."""
    own = global_batch(today.knobs, 1) if today else None
    if today is None or any(global_batch(a.knobs, 1) == own for a in members):
        return []
    return [a for a in measured if global_batch(a.knobs, 1) == own][:1]


def _candidates(
    attempts: Attempts, barred: Collection[int], affordable: _Affordable
) -> tuple[list[Candidate], int | None]:
    today = attempts.baseline()
    complete = [a for a in ranked(attempts) if a.trial not in barred]
    today = today if today in complete else None
    measured = [a for a in shown(attempts) if a is not today and a.trial not in barred]
    rounds = attempts.of(Purpose.CONFIRM).recorded()
    if any(run.round > affordable.first for run in rounds):
        took_part = {run.trial for run in rounds.in_round(affordable.first)}
        others = [a for a in measured if a.trial in took_part]
    else:
        may = [a for a in measured if a.trial not in affordable.unaffordable]
        others = [a for a in may if a in complete][: affordable.finalists]
        if affordable.same_batch:
            others += of_same_batch(today, may, others)
    members = [today, *others] if today else others
    candidates = [Candidate(a.trial, a.knobs, a.result.peak_bytes) for a in members]
    return candidates, today.trial if today else None
