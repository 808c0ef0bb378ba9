"""The finals of a study: numerics gate, finalists and baseline again in randomised rounds, then a
closer look at the winner: what its step is made of, and what each of its knobs brings."""

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from autotune.analysis import attribution, gate
from autotune.analysis.confirmation import Confirmation, replay
from autotune.runs.judging import ProfileRun, TrajectoryRun
from autotune.study.bench import Bench, Job
from storage import Purpose

Drawn = TypeVar("Drawn")


class Finals:
    """Goes on from wherever the records stand."""

    def __init__(self, job: Job, bench: Bench, out_of_time: Callable[[], bool]) -> None:
        """Take in whom to ask.

        Args:
            job: the study.
            bench: runs the attempts; idle.
            out_of_time: whether to make do with the fewest rounds.
        """
        self._job = job
        self._plan = job.plan
        self._bench = bench
        self._out_of_time = out_of_time

    def run(self) -> Confirmation | None:
        """The decided confirmation; None if there is nobody to confirm."""
        while True:
            confirmation = self._replay()
            if confirmation is None or not confirmation.members():
                return None
            if self._check_numerics(confirmation):
                continue  # whoever is refused makes room for the next
            if confirmation.decided(in_a_hurry=self._out_of_time()):
                self._look_closer(confirmation)
                return confirmation
            self._complete_round(confirmation)

    def checks(self) -> gate.GateRecord:
        """What the numerics gate has found."""
        return gate.record(
            self._job.attempts(),
            self._job.repository.attempts.blocks,
            self._plan.baseline,
            refuse_unchecked=self._plan.spec.measurement.refuses_unchecked,
        )

    def _replay(self) -> Confirmation | None:
        wanted, attempts = self._plan.spec.measurement, self._job.attempts()
        return replay(
            attempts,
            finalists=wanted.finalists,
            most_rounds=wanted.rounds,
            barred=gate.unchecked(attempts, self._plan.baseline)
            if wanted.refuses_unchecked
            else (),
        )

    def _check_numerics(self, confirmation: Confirmation) -> bool:
        """Make one run that the numerics gate needs; False if it needs none."""
        candidates = list(confirmation.candidates.values())
        attempts, blocks = self._job.attempts(), self._job.repository.attempts.blocks
        check = gate.next_check(candidates, self._plan.baseline, attempts, blocks)
        if check is None:
            return False
        self._bench.run(
            check.trial, check.knobs, check.purpose, judge=TrajectoryRun(check.reference)
        )
        return True

    def _complete_round(self, confirmation: Confirmation) -> None:
        """Measure whoever is still missing, one after another, in an order drawn for the round."""
        number = confirmation.next_round
        for trial in self._drawn(confirmation.members(), f"{number}"):
            knobs = confirmation.candidates[trial].knobs
            while trial not in confirmation.recorded(self._job.attempts()):
                self._bench.run(trial, knobs, Purpose.CONFIRM, round_=number)

    def _look_closer(self, confirmation: Confirmation) -> None:
        chosen, baseline = confirmation.choice(), confirmation.baseline
        for trial in sorted({chosen, chosen if baseline is None else baseline}):
            self._profile(trial, confirmation.candidates[trial].knobs)
        if baseline is not None and chosen != baseline:
            self._attribute(chosen, confirmation.candidates[chosen].knobs)

    def _profile(self, trial: int, knobs: dict[str, Any]) -> None:
        """Run a configuration under the profiler, once."""
        while not self._recorded(Purpose.PROFILE, trial, knobs):
            self._bench.run(trial, knobs, Purpose.PROFILE, judge=ProfileRun())

    def _attribute(self, chosen: int, winner: dict[str, Any]) -> None:
        """In turn, in rounds: the winner, and the winner less each of its changes."""
        several = attribution.variants(winner, self._plan.baseline, self._plan.facts)
        for number in range(1, 1 + self._plan.spec.measurement.attribution):
            for knobs in self._drawn(several, f"attribution/{number}"):
                while not self._recorded(Purpose.ATTRIBUTE, chosen, knobs, number):
                    if self._out_of_time():
                        return
                    self._bench.run(chosen, knobs, Purpose.ATTRIBUTE, round_=number)

    def _drawn(self, several: Sequence[Drawn], what_for: str) -> list[Drawn]:
        """In an order that is drawn for this study and purpose: the same when it goes on."""
        order = list(several)
        random.Random(f"{self._plan.spec.seed}/{what_for}").shuffle(order)
        return order

    def _recorded(
        self, purpose: Purpose, trial: int, knobs: dict[str, Any], round_: int = 0
    ) -> bool:
        own = self._job.attempts().of(purpose).of_trial(trial).in_round(round_)
        return bool(own.with_knobs(knobs).recorded())
