"""The finals of a study: numerics gate, finalists and baseline again in randomised rounds, then a
closer look at the winner: what its step is made of, and what each of its knobs brings."""

import random
from collections.abc import Callable
from typing import Any

from autotune.analysis import attribution, gate
from autotune.analysis.confirmation import Confirmation, replay
from autotune.runs.judging import ProfileRun, TrajectoryRun
from autotune.study.bench import Bench, Job
from search_spaces import Facts
from storage import Purpose, StoredAttempt


class Finals:
    """Goes on from wherever the records stand."""

    def __init__(
        self,
        job: Job,
        bench: Bench,
        facts: Facts,
        check: Callable[[], None],
        out_of_time: Callable[[], bool],
    ) -> None:
        """Take in whom to ask.

        Args:
            job: the study.
            bench: runs the attempts; idle.
            facts: about the machine.
            check: raises when the study is to stop; called again and again.
            out_of_time: whether to make do with the fewest rounds.
        """
        self._job = job
        self._bench = bench
        self._check = check
        self._out_of_time = out_of_time
        self._baseline = job.spec.full_baseline()
        self._facts = facts

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
        return gate.record(self._attempts(), self._baseline, self._job.repository.blocks)

    def _replay(self) -> Confirmation | None:
        plan = self._job.spec.measurement
        return replay(
            self._attempts(), self._baseline, finalists=plan.finalists, most_rounds=plan.rounds
        )

    def _check_numerics(self, confirmation: Confirmation) -> bool:
        """Make one run that the numerics gate needs; False if it needs none."""
        candidates = list(confirmation.candidates.values())
        blocks = self._job.repository.blocks
        check = gate.next_check(candidates, self._baseline, self._attempts(), blocks)
        if check is None:
            return False
        judge = TrajectoryRun(check.reference)
        self._bench.start(check.trial, check.knobs, check.purpose, judge=judge)
        self._bench.wait(self._check)
        return True

    def _complete_round(self, confirmation: Confirmation) -> None:
        """Measure whoever is still missing, one after another, in an order drawn for the round."""
        number = confirmation.next_round
        order = confirmation.members()
        random.Random(f"{self._job.spec.seed}/{number}").shuffle(order)
        for trial in order:
            knobs = confirmation.candidates[trial].knobs
            while trial not in confirmation.recorded(self._attempts()):
                self._bench.start(trial, knobs, Purpose.CONFIRM, round_=number)
                self._bench.wait(self._check)

    def _look_closer(self, confirmation: Confirmation) -> None:
        chosen, baseline = confirmation.choice(), confirmation.baseline
        self._profile(confirmation, chosen, baseline)
        if baseline is not None and chosen != baseline:
            self._attribute(chosen, confirmation.candidates[chosen].knobs)

    def _attribute(self, chosen: int, winner: dict[str, Any]) -> None:
        """In turn, in rounds: the winner, and the winner less each of its changes."""
        several = attribution.variants(winner, self._baseline, self._facts)
        for number in range(1, 1 + self._job.spec.measurement.attribution):
            order = list(several)
            random.Random(f"{self._job.spec.seed}/attribution/{number}").shuffle(order)
            for knobs in order:
                while not self._recorded(Purpose.ATTRIBUTE, chosen, knobs, number):
                    if self._out_of_time():
                        return
                    self._bench.start(chosen, knobs, Purpose.ATTRIBUTE, round_=number)
                    self._bench.wait(self._check)

    def _profile(self, confirmation: Confirmation, chosen: int, baseline: int | None) -> None:
        """Run the winner and the baseline under the profiler, once each."""
        for trial in sorted({chosen, chosen if baseline is None else baseline}):
            knobs = confirmation.candidates[trial].knobs
            while not self._recorded(Purpose.PROFILE, trial, knobs):
                self._bench.start(trial, knobs, Purpose.PROFILE, judge=ProfileRun())
                self._bench.wait(self._check)

    def _recorded(
        self, purpose: Purpose, trial: int, knobs: dict[str, Any], round_: int = 0
    ) -> bool:
        return any(
            (a.purpose, a.trial, a.round, a.knobs) == (purpose, trial, round_, knobs) and a.recorded
            for a in self._attempts()
        )

    def _attempts(self) -> list[StoredAttempt]:
        return self._job.repository.attempts(self._job.study.id)
