"""The time of a study: what is left of it, and what the rest of the study will cost.

What proves a result is paid for first: the search has what numerics gate and confirmation leave, and the
closer look what is left after them. Where there is no time to prove anything, the search has it all.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.analysis import gate
from autotune.analysis.confirmation import FEWEST_ROUNDS, of_same_batch, ranked, shown
from autotune.analysis.contenders import most_promising_first
from autotune.analysis.costs import Costs
from autotune.study.job import Allowance, Job
from storage import Attempts, StoredAttempt

_CONFIRMATION_SHARE = 0.25
"""Of the wall time: kept back from the search at least."""
_OPENING_SHARE = 0.1
"""For the look at the baseline, before anything is known."""
_FIRST_TRIAL_SHARE, _FIRST_TRIAL_MOST = 0.1, 0.4
"""For the baseline's own trial: how long its steps are, nobody knows."""
_CALIBRATION_SHARE = 0.25
"""Of the time for the search: a run of the baseline once more takes no larger part."""
_FEWEST_TRIALS = 8
"""Among which the search divides its time, where that is short."""
_GOOD_ROUNDS = 5
"""Rounds of the confirmation that more finalists, or longer runs, are not worth."""
_SLACK = 0.05
"""Of the wall time: what was begun in time may end so much later."""
_OVERRUN = 1.25
"""A run may take so many times what was planned before it is ended."""

Knobs = Mapping[str, Any]


class Schedule:
    """Of one study, some of whose time an earlier daemon may have spent."""

    def __init__(self, job: Job) -> None:
        """Go on counting from what has elapsed, by the clock of the launcher."""
        self._job = job
        self._baseline = job.plan.baseline
        self._clock = job.plan.launcher.clock
        self._started = self._clock() - job.study.elapsed
        self._wall_time = job.plan.spec.budget.wall_time
        self.rounds = min(job.plan.spec.measurement.rounds, _GOOD_ROUNDS)
        """Of the confirmation, among which its time is divided."""

    @property
    def limited(self) -> bool:
        """Whether there is an end to the time."""
        return self._wall_time is not None

    @property
    def left(self) -> float:
        """Seconds; infinite without a limit, below zero beyond it."""
        if self._wall_time is None:
            return math.inf
        return self._wall_time - self.elapsed

    def may_end(self, seconds: float) -> bool:
        """Whether what has begun may take so long."""
        return seconds <= self._most

    def share(self, of_what_is_left: float, at_least: float = 0.0) -> Allowance | None:
        """The time of a run that has this share of what is left; None: no limit.

        Args:
            at_least: seconds, if there are so many.
        """
        if not self.limited:
            return None
        return self._allowed(max(of_what_is_left * self.left, at_least))

    # The search

    def for_opening(self) -> Allowance | None:
        """The time for the look at the baseline before anything is known; None: no limit. What is built
        for it is not lost where the baseline's own trial goes on from there."""
        if self._wall_time is None:
            return None
        looks = _OPENING_SHARE * self._wall_time
        built = _FIRST_TRIAL_MOST * self._wall_time if self._job.look_stays else 0.0
        return Allowance(looks, min(built + looks, self._most))

    def for_trial(self, attempts: Attempts) -> Allowance | None:
        """The time for the next trial of the search; None: no limit."""
        if self._wall_time is None:
            return None
        costs = self._job.costs()
        if not costs.known:
            wanted = _FIRST_TRIAL_SHARE * self._wall_time + costs.startup
            most = max(_FIRST_TRIAL_MOST * self._wall_time, wanted)
            return Allowance(wanted, min(most, self._most))
        to_come = max(1, _FEWEST_TRIALS - len(attempts.searched()))
        free = self._free(attempts, costs)
        return self._allowed(max(free / to_come, costs.shortest(self._baseline)))

    def why_enough_searched(self, attempts: Attempts) -> str:
        """Why there is no time for another trial, in words; empty while there is."""
        costs = self._job.costs()
        # Something to compare the baseline with there has to be.
        free = self._free(attempts, costs) if self.rivals(attempts) else self.left
        if free >= costs.shortest(self._baseline):
            return ""
        spent = f"{self.elapsed:.0f} s of the wall time are spent"
        if self._proof(attempts, costs) is None:
            return f"{spent}, and the rest is too short for another trial"
        return f"{spent}; the other {self.left:.0f} s are for what proves the result"

    def may_calibrate(self, attempts: Attempts) -> bool:
        """Whether the baseline may run once more to show the noise."""
        costs = self._job.costs()
        share = _CALIBRATION_SHARE * self._free(attempts, costs)
        return costs.shortest(self._baseline) <= share

    def _free(self, attempts: Attempts, costs: Costs) -> float:
        """Seconds that the search may still take."""
        if self._wall_time is None:
            return math.inf
        proof = self._proof(attempts, costs)
        if proof is None:
            return self.left
        return self.left - max(_CONFIRMATION_SHARE * self._wall_time, proof)

    def _proof(self, attempts: Attempts, costs: Costs) -> float | None:
        """Seconds of the shortest finals; None if there is no time for them. Before anything is found
        they are those of a configuration that runs like the baseline."""
        rivals = self.rivals(attempts)
        if not rivals:
            proof = self.finals(attempts, costs, [self._baseline], FEWEST_ROUNDS)
            return proof if proof + costs.shortest(self._baseline) <= self.left else None
        for trials in (rivals, self.checked(rivals, attempts)):
            if trials:
                proof = self.finals(attempts, costs, [trials[0].knobs], FEWEST_ROUNDS)
                if proof <= self.left:
                    return proof
        return None

    # The finals

    def rivals(self, attempts: Attempts) -> list[StoredAttempt]:
        """Trials that may beat the baseline, the fastest first."""
        return [a for a in ranked(attempts) if a.knobs != self._baseline]

    def checked(self, rivals: Iterable[StoredAttempt], attempts: Attempts) -> list[StoredAttempt]:
        """Those of them for which the numerics gate has nothing more to run."""
        return [a for a in rivals if not gate.missing_runs([a.knobs], self._baseline, attempts)]

    def round(self, costs: Costs, members: Iterable[Knobs]) -> float:
        """Seconds of the shortest round of the confirmation."""
        return sum(costs.shortest(knobs) for knobs in members)

    def finals(
        self, attempts: Attempts, costs: Costs, finalists: Sequence[Knobs], rounds: int
    ) -> float:
        """Seconds of so many of the shortest rounds, and of the checks before them."""
        checks = gate.missing_runs(finalists, self._baseline, attempts)
        in_turn = rounds * self.round(costs, [self._baseline, *finalists])
        return sum(map(costs.trajectory, checks)) + in_turn

    @property
    def elapsed(self) -> float:
        """Seconds that the study has taken."""
        return self._clock() - self._started

    @property
    def _most(self) -> float:
        """Seconds that anything may still take."""
        return max(0.0, self.left + _SLACK * (self._wall_time or 0.0))

    def _allowed(self, seconds: float) -> Allowance:
        wanted = min(seconds, max(0.0, self.left))
        return Allowance(wanted, min(_OVERRUN * seconds, self._most))


@dataclass(frozen=True)
class Course:
    """Of the finals, as far as there is time for them.

    Attributes:
        finalists: how many, besides the baseline.
        unaffordable: trials that would have to be checked, and for that there is no time.
        same_batch: there is time for one more, where all finalists have other global batches than the
            baseline.
    """

    finalists: int
    unaffordable: tuple[int, ...] = ()
    same_batch: bool = True

    @classmethod
    def of(cls, job: Job, schedule: Schedule) -> "Course":
        """As many finalists as the rounds leave time for, at least one; those with a check to come are
        among them if that can be."""
        wanted = job.plan.spec.measurement.finalists
        if not schedule.limited:
            return cls(wanted)
        attempts, costs = job.attempts(), job.costs()
        timed = [trial for trial in shown(attempts) if trial.knobs != job.plan.baseline]
        for those in (timed, schedule.checked(timed, attempts)):
            trials = most_promising_first(those)
            for count, own_batch in _sizes(min(wanted, len(trials))):
                members = trials[:count]
                if own_batch:
                    members += of_same_batch(attempts.baseline(), those, members)
                rounds = schedule.rounds if len(members) > 1 else FEWEST_ROUNDS
                finalists = [trial.knobs for trial in members]
                if schedule.may_end(schedule.finals(attempts, costs, finalists, rounds)):
                    return cls(count, _others(timed, those), own_batch)
        return cls(1, _others(timed, schedule.checked(timed, attempts)), same_batch=False)


def _sizes(most: int) -> Iterator[tuple[int, bool]]:
    """How many finalists, and whether one more for the batch's sake; the most first."""
    for count in range(most, 0, -1):
        yield count, True
        yield count, False


def _others(all_: Iterable[StoredAttempt], those: Iterable[StoredAttempt]) -> tuple[int, ...]:
    kept = {attempt.trial for attempt in those}
    return tuple(attempt.trial for attempt in all_ if attempt.trial not in kept)
