"""The soak pair, the last stage of the finals: winner and baseline once each, for minutes.

Clocks and temperatures settle in a long run and not in a short one.
"""

import dataclasses
import random

from autotune.analysis.confirmation import Confirmation
from autotune.measurement.policy import PROOF
from autotune.runs.monitors import TimedMonitor
from autotune.study.run_planner import PlannedAttempt
from autotune.study.runner import Runner
from autotune.worker.protocol import NO_LIMIT, TimeLimit
from storage import Purpose

_ALL_BLOCKS = 1_000_000
"""Fewest blocks of a run, so that no interval ends it."""


class SoakPair:
    """Soak runs of winner and baseline, which go on from wherever the records stand."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._context = runner.context
        self._time = runner.time

    def run(self, confirmation: Confirmation) -> None:
        """Measure both, where the winner beats the baseline and there is time."""
        baseline, chosen = confirmation.baseline, confirmation.choice()
        if baseline is None or chosen == baseline or not confirmation.rounds:
            return
        order = [chosen, baseline]
        random.Random(f"{self._context.plan.spec.seed}/long").shuffle(order)
        missing = [trial for trial in order if not self._measured(confirmation, trial)]
        seconds = self._seconds()
        if not missing or seconds < PROOF.shortest_soak:
            return
        for trial in missing:
            self._measure(confirmation, trial, seconds)

    def _seconds(self) -> float:
        """Return the length of each run."""
        rest = PROOF.soak_of_rest * self._time.left - self._context.costs().startup
        return min(PROOF.longest_soak, PROOF.soak_of_study * self._time.elapsed, rest)

    def _measure(self, confirmation: Confirmation, trial: int, seconds: float) -> None:
        noise = self._runner.planner.noise.sigma_run
        limits = self._context.plan.confirm_limits(sigma_run=noise)
        limits = dataclasses.replace(limits, longest=seconds, fewest=_ALL_BLOCKS)
        knobs = confirmation.candidates[trial].knobs
        most = seconds + self._context.costs().shortest(knobs) + limits.warmup
        limit = TimeLimit(most, most) if self._time.limited else NO_LIMIT
        while not self._measured(confirmation, trial):
            attempt = PlannedAttempt(trial, knobs, Purpose.LONG)
            self._runner.run_monitored(attempt, TimedMonitor(limits), limit)

    def _measured(self, confirmation: Confirmation, trial: int) -> bool:
        knobs = confirmation.candidates[trial].knobs
        return self._runner.recorded(Purpose.LONG, trial, knobs)
