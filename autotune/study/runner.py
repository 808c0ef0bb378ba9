"""Runs of a study that wait for one another: planned, carried out, found again in the records."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from autotune.analysis.finals_price import FinalsPrice
from autotune.analysis.gate_plan import Check
from autotune.runs.monitors import FirstStepsMonitor, RunMonitor, TrajectoryMonitor
from autotune.study.context import StudyContext
from autotune.study.executor import TrialExecutor
from autotune.study.run_planner import PlannedAttempt, RunPlanner
from autotune.study.time_budget import TimeBudget
from autotune.worker.protocol import TimeLimit
from storage import Purpose

Drawn = TypeVar("Drawn")


@dataclass(frozen=True)
class Runner:
    """Runner of opening and finals of one study, one run after another.

    Attributes:
        executor: idle.
    """

    context: StudyContext
    planner: RunPlanner
    executor: TrialExecutor
    time: TimeBudget

    def run_timed(self, attempt: PlannedAttempt, limit: TimeLimit) -> None:
        """Make a timed run by itself."""
        self.executor.run(self.planner.timed(attempt, limit))

    def run_monitored(
        self, attempt: PlannedAttempt, monitor: RunMonitor, limit: TimeLimit | None = None
    ) -> None:
        """Make a run with a monitor of its own, within what is left of the time if not said."""
        limit = self.time.share(1.0) if limit is None else limit
        self.executor.run(self.planner.monitored(attempt, limit, monitor))

    def run_check(self, check: Check) -> None:
        """Make a run of the numerics gate."""
        attempt = PlannedAttempt(check.trial, check.knobs, check.purpose, seed=check.seed)
        price = self.context.costs().check(*check.run)
        self.run_monitored(attempt, _monitor(check), self.time.share(1.0, at_least=price))

    def run_interleaved(
        self, attempts: Sequence[PlannedAttempt], limit: TimeLimit, peak_bytes: int
    ) -> None:
        """Make the runs of a round interleaved, if they fit together; else leave them out.

        Args:
            limit: time limit of all of them together.
            peak_bytes: bytes of the largest rank of each, added up; 0: not known.
        """
        if plan := self.planner.interleaved(attempts, limit, peak_bytes):
            self.executor.run(plan)

    def recorded(self, purpose: Purpose, trial: int, knobs: dict[str, Any]) -> bool:
        """Return whether a run besides the rounds is recorded."""
        own = self.context.attempts().of(purpose).of_trial(trial).in_round(0)
        return bool(own.with_knobs(knobs).recorded())

    @property
    def price(self) -> FinalsPrice:
        """Price of the finals by what is recorded."""
        return self.time.finals_price(self.context.attempts())

    def drawn(self, several: Sequence[Drawn], what_for: str, round_: int) -> list[Drawn]:
        """Return the members in an order drawn for the study, the purpose and the round.

        Every other round has the order of the one before, backwards. So no member is the first more
        often than others: on two shared cores the first of two equals that took turns was slower by
        0.75 % (standard error 0.19, ten rounds).
        """
        order = list(several)
        pair, backwards = divmod(round_, 2)
        random.Random(f"{self.context.setup.spec.seed}/{what_for}/{pair}").shuffle(order)
        return order[::-1] if backwards else order


def _monitor(check: Check) -> RunMonitor:
    """Return the monitor of a run of the numerics gate."""
    if check.purpose is Purpose.AUTOCAST:
        return FirstStepsMonitor()
    return TrajectoryMonitor(
        check.reference, formats=check.formats, earlier=check.earlier, rounding=check.rounding
    )
