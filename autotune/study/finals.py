"""The finals of a study: numerics gate, confirmation rounds, then a closer look at the winner.

The closer look profiles the winner's step and measures what each of its knobs brings.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from autotune.analysis import attribution, gate
from autotune.analysis.confirmation import (
    FEWEST_ROUNDS,
    Confirmation,
    Selection,
    confirmed_alone,
    replay,
)
from autotune.analysis.contenders import may_be_faster
from autotune.analysis.memory import barred, tells_longest
from autotune.analysis.parsimony import Step, attribution_rounds, spared
from autotune.analysis.proof import Proof
from autotune.analysis.sameness import Comparison, Rules
from autotune.errors import LauncherError
from autotune.runs.monitors import FitMonitor, ProfileMonitor, RunMonitor, TrajectoryMonitor
from autotune.runs.plan import FEW_BLOCKS
from autotune.study.context import BASELINE, StudyContext
from autotune.study.executor import TrialExecutor
from autotune.study.run_planner import PlannedAttempt, RunPlanner
from autotune.study.schedule import REPEATS_IF_UNSTEADY, FinalsPlan, Schedule
from autotune.study.soak import SoakPair
from storage import Purpose

Drawn = TypeVar("Drawn")
_STEPS_TO_COME = 5
"""Expected rounds that show which changes the winner can do without (judgement)."""
_MOST_REPEATS = 12
"""Runs of a baseline whose processes lie apart, besides the rounds (judgement: the mean of twelve is
known to a third of the spread)."""
_MOST_MOVES = 3
"""Most changes of the machine in one go that make rounds void."""


class Finals:
    """Finals of one study, which go on from wherever the records stand, as far as the time goes."""

    def __init__(
        self,
        context: StudyContext,
        planner: RunPlanner,
        executor: TrialExecutor,
        schedule: Schedule,
    ) -> None:
        """Prepare the finals.

        Args:
            context: the study.
            planner: planner of the runs.
            executor: idle.
            schedule: time of the study.
        """
        self._context = context
        self._plan = context.plan
        self._planner = planner
        self._executor = executor
        self._schedule = schedule
        self._void: set[int] | None = None
        self._moves = 0
        self.selection: Selection | None = None
        """Latest choice of the finalists; None before the first."""

    def begun(self) -> bool:
        """Return whether the time ended in the middle of the rounds.

        They go on before anything else: another trial of the search would make them void.
        """
        if not self._schedule.limited:
            return False
        confirmation = self._replay()
        return (
            confirmation is not None
            and bool(confirmation.rounds)
            and bool(confirmation.members())
            and not confirmation.decided()
        )

    def run(self) -> None:
        """Measure the finals until they are decided, or as far as there is time.

        Raises:
            LauncherError: its runs come to be on another machine again and again.
        """
        while True:
            confirmation = self._replay()
            if confirmation is None or not confirmation.members():
                return
            self._note_void(confirmation.void)
            if self._check_numerics(confirmation):
                continue  # a refused finalist makes room for the next
            if self._check_epochs(confirmation):
                continue
            if self._take_back(confirmation):
                continue
            if self._check_longest(confirmation):
                continue  # as does one that outgrows the memory
            if self._repeat_baseline(confirmation):
                continue
            if confirmation.decided() or not self._complete_round(confirmation):
                confirmation = self._as_measured(confirmation)
                self._look_closer(confirmation)
                SoakPair(self._context, self._planner, self._executor, self._schedule).run(
                    confirmation
                )
                return

    def _as_measured(self, confirmation: Confirmation) -> Confirmation:
        """Return the confirmation of the reduced winner, where that was measured alone."""
        if not confirmation.taken_back or confirmation.measured_alone:
            return confirmation
        return self._replay() or confirmation

    def _note_void(self, void: set[int]) -> None:
        """Say that rounds do not count any more because the machine has changed."""
        new = set() if self._void is None else void - self._void
        if new:
            self._moves += 1
            numbers = ", ".join(map(str, sorted(new)))
            self._context.say(
                "What ran on another machine is not compared with what runs now (rounds "
                f"{numbers} of the confirmation): it is measured anew."
            )
        if self._moves > _MOST_MOVES:
            raise LauncherError(
                f"the machine has changed {self._moves} times in the middle of the confirmation, and "
                "nothing could be compared; see that its agents stay on one"
            )
        self._void = void

    def _replay(self) -> Confirmation | None:
        plan = FinalsPlan.of(self._context, self._schedule)
        wanted, attempts = self._plan.spec.measurement, self._context.attempts()
        blocks = self._context.blocks
        self.selection = Selection(plan.finalists, plan.unaffordable, plan.same_batch)
        return replay(
            attempts,
            most_rounds=wanted.rounds,
            barred=barred(attempts, blocks, self._plan.baseline, Rules.of(self._plan.spec)),
            **self.selection._asdict(),
            blocks=blocks,
        )

    def _take_back(self, confirmation: Confirmation) -> bool:
        """Measure a round that shows which changes of the winner bring nothing; return whether it did.

        Without another round, leave out the changes that are known by then.
        """
        rounds = self._plan.spec.measurement.attribution
        if confirmation.chosen is None or rounds < 2:
            return False
        attempts = self._context.attempts()
        if alone := confirmed_alone(confirmation, attempts):
            if not confirmation.measured_alone:
                confirmation.take_back(alone.knobs)
            return False
        found = spared(
            attempts.of_trial(confirmation.chosen),
            confirmation.candidates[confirmation.chosen].knobs,
            self._plan.baseline,
            self._plan.facts,
            rounds=rounds,
            most=self._plan.spec.measurement.rounds,
        )
        if found.next and self._complete_step(confirmation, found.next):
            return True
        confirmation.take_back(found.knobs)
        return False

    def _complete_step(self, confirmation: Confirmation, step: Step) -> bool:
        """Measure a round of variants; return False without time for it and for the proof."""
        chosen = confirmation.chosen
        assert chosen is not None
        both = [confirmation.candidates[trial].knobs for trial in confirmation.members()]
        prices = self._prices()
        repeats = _MOST_REPEATS if confirmation.waits else 0
        kept = prices.rounds(both, confirmation.to_prove)
        kept += repeats * prices.costs.brief(self._plan.baseline)
        order = self._drawn(step.configurations, "attribution", step.round)
        missing = [knobs for knobs in order if not self._attributed(chosen, knobs, step.round)]
        rounds = max(1, FEWEST_ROUNDS + 1 - step.round) if confirmation.processes else 1
        if self._schedule.left < kept + rounds * prices.round(missing):
            return False
        proof = len(both) * confirmation.to_prove
        self._attribute_round(chosen, missing, step.round, _STEPS_TO_COME, proof)
        return True

    def _check_numerics(self, confirmation: Confirmation) -> bool:
        """Make one run that the numerics gate needs; return False if it needs none."""
        if confirmation.chosen is not None and not confirmation.nothing_to_choose:
            return False
        attempts, blocks = self._context.attempts(), self._context.blocks
        candidates = [
            one
            for one in confirmation.candidates.values()
            if confirmation.leads_baseline(one.trial) or self._may_win(confirmation, one.trial)
        ]
        check = gate.next_check(candidates, self._plan.baseline, attempts, blocks)
        if check is None:
            return False
        attempt = PlannedAttempt(check.trial, check.knobs, check.purpose, check.seed)
        monitor = TrajectoryMonitor(check.reference, formats=check.formats, earlier=check.earlier)
        self._run_monitored(attempt, monitor)
        return True

    def _may_win(self, confirmation: Confirmation, trial: int) -> bool:
        """Return whether a finalist may be faster than the baseline, by its trial in the search.

        A check of one that is surely slower would prove nothing. Only where steps are timed one by one
        is the error of a trial known well enough.
        """
        attempts = self._context.attempts()
        own, its = attempts.baseline(), attempts.searched().of_trial(trial).measured().first
        if confirmation.processes is None or own is None or its is None:
            return True
        return may_be_faster(its, own)

    def _check_epochs(self, confirmation: Confirmation) -> bool:
        """Run a finalist in short epochs whose loader workers stay; return whether it did.

        A finalist that has come to a second epoch by itself needs none.
        """
        attempts, blocks = self._context.attempts(), self._context.blocks
        compared = Comparison(attempts, blocks, self._plan.baseline, Rules.of(self._plan.spec))
        costs = self._context.costs()
        for trial in confirmation.members():
            knobs = confirmation.candidates[trial].knobs
            if self._recorded(Purpose.EPOCHS, trial, knobs) or not compared.lacks_epoch(
                trial, knobs
            ):
                continue
            if self._schedule.left > costs.profile(knobs):
                attempt = PlannedAttempt(trial, knobs, Purpose.EPOCHS)
                self._run_monitored(attempt, FitMonitor(FEW_BLOCKS))
                return True
        return False

    def _check_longest(self, confirmation: Confirmation) -> bool:
        """Run a finalist on the longest samples, if the workload knows them; return whether it did."""
        blocks = self._context.blocks
        members, prices = confirmation.members(), self._prices()
        configurations = [confirmation.candidates[trial].knobs for trial in members]
        proof = prices.rounds(configurations, confirmation.to_prove)
        for trial, knobs in zip(members, configurations, strict=True):
            if trial == confirmation.baseline or self._recorded(Purpose.LONGEST, trial, knobs):
                continue
            if not tells_longest(self._context.attempts(), trial, blocks):
                return False
            if self._schedule.left > prices.costs.profile(knobs) + proof:
                attempt = PlannedAttempt(trial, knobs, Purpose.LONGEST)
                self._run_monitored(attempt, FitMonitor(FEW_BLOCKS))
                return True
        return False

    def _run_monitored(self, attempt: PlannedAttempt, monitor: RunMonitor) -> None:
        """Make a run that is not timed, within what is left of the time."""
        limit = self._schedule.share(1.0)
        self._executor.run(self._planner.monitored(attempt, limit, monitor))

    def _complete_round(self, confirmation: Confirmation) -> bool:
        """Measure the missing members of a round one by one, in an order drawn for the round.

        Return False if there is no time for it.
        """
        number = confirmation.next_round
        if not self._round_in_turn(confirmation):
            return False
        for trial in self._drawn(confirmation.members(), "confirmation", number):
            knobs = confirmation.candidates[trial].knobs
            while trial not in (done := confirmation.recorded(self._context.attempts())):
                missing = [t for t in confirmation.members() if t not in done]
                if not self._has_time(confirmation, missing):
                    return False
                runs = len(missing) + confirmation.runs_to_come(self._schedule.rounds)
                shortest = self._context.costs().shortest(knobs)
                others = self._needed(confirmation, missing) - shortest
                limit = self._schedule.for_proof(1 / runs, shortest, others)
                attempt = PlannedAttempt(trial, knobs, Purpose.CONFIRM, number)
                self._executor.run(self._planner.timed(attempt, limit))
        return True

    def _repeat_baseline(self, confirmation: Confirmation) -> bool:
        """Run the baseline in another process, where more processes tell more than more rounds.

        Return whether it ran.
        """
        baseline, again = confirmation.baseline, self._context.attempts().of(Purpose.REPEAT)
        if baseline is None or not confirmation.waits or confirmation.to_prove:
            return False
        if confirmation.precise or confirmation.vain or len(again) >= _MOST_REPEATS:
            return False
        rounds_first = len(again) >= REPEATS_IF_UNSTEADY and not confirmation.decided()
        if rounds_first and self._has_time(confirmation, confirmation.members()):
            return False
        knobs, costs = confirmation.candidates[baseline].knobs, self._context.costs()
        if self._schedule.left < costs.brief(knobs):
            return False
        limit = self._schedule.for_proof(0.0, costs.brief(knobs, slow=True), 0.0)
        self._executor.run(
            self._planner.timed(PlannedAttempt(baseline, knobs, Purpose.REPEAT), limit)
        )
        return True

    def _round_in_turn(self, confirmation: Confirmation) -> bool:
        """Measure the members of a new round interleaved, if they fit together.

        A member that fails beside the others is left for a run of its own. Return False if there is no
        time for the round.
        """
        number, attempts = confirmation.next_round, self._context.attempts()
        if any(attempts.of(Purpose.CONFIRM).in_round(number)):
            return True
        order = self._drawn(confirmation.members(), "confirmation", number)
        if not self._has_time(confirmation, order):
            return False
        chosen = [confirmation.candidates[trial] for trial in order]
        members = [PlannedAttempt(one.trial, one.knobs, Purpose.CONFIRM, number) for one in chosen]
        knobs = [one.knobs for one in chosen]
        # A few rounds in turn tell more than many one by one.
        to_come = confirmation.runs_to_come(FEWEST_ROUNDS)
        least = self._prices().round(knobs)
        others = self._needed(confirmation, order) - least
        limit = self._schedule.for_proof(len(knobs) / (len(knobs) + to_come), least, others)
        peak_bytes = sum(one.peak_bytes for one in chosen)
        if plan := self._planner.interleaved(members, limit, peak_bytes):
            self._executor.run(plan)
        return True

    def _has_time(self, confirmation: Confirmation, missing: Sequence[int]) -> bool:
        """Return whether there is time for a round, and for all rounds that prove something.

        The first round needs time for a proof with slow launches; later rounds need time for usual
        launches.
        """
        prices, rounds = self._prices(), max(1, confirmation.to_prove)
        knobs = [confirmation.candidates[trial].knobs for trial in missing]
        if len(missing) < len(confirmation.members()):
            one_by_one = replace(prices, at_once=False)
            return self._schedule.may_end(one_by_one.usual_round(knobs))
        if confirmation.to_prove in (0, FEWEST_ROUNDS):
            return self._schedule.may_end(prices.rounds(knobs, rounds))
        return self._schedule.may_end(rounds * prices.usual_round(knobs))

    def _needed(self, confirmation: Confirmation, missing: Sequence[int]) -> float:
        """Return seconds of the shortest runs without which the round, and those before, prove nothing.

        Args:
            missing: trials that the round has yet to measure.
        """
        prices, to_come = self._prices(), max(0, confirmation.to_prove - 1)
        every = [confirmation.candidates[trial].knobs for trial in confirmation.members()]
        now = [confirmation.candidates[trial].knobs for trial in missing]
        return prices.rounds(now, 1) + prices.rounds(every, to_come)

    def _prices(self) -> Proof:
        return self._schedule.proof(self._context.attempts())

    def _look_closer(self, confirmation: Confirmation) -> None:
        if not confirmation.rounds:
            return
        chosen, baseline = confirmation.choice(), confirmation.baseline
        profiled = {chosen, chosen if baseline is None else baseline}
        for trial in sorted(profiled if self._plan.spec.workload.observable else ()):
            self._profile(trial, confirmation.candidates[trial].knobs)
        if baseline is not None and chosen != baseline:
            reduced = bool(confirmation.taken_back)
            self._attribute(chosen, confirmation.candidates[chosen].knobs, reduced=reduced)

    def _profile(self, trial: int, knobs: dict[str, Any]) -> None:
        """Run a configuration under the profiler, once."""
        while not self._recorded(Purpose.PROFILE, trial, knobs):
            if not self._schedule.left > self._context.costs().profile(knobs):
                return
            attempt = PlannedAttempt(trial, knobs, Purpose.PROFILE)
            self._run_monitored(attempt, ProfileMonitor())

    def _attribute(self, chosen: int, winner: dict[str, Any], *, reduced: bool) -> None:
        """Measure the winner, and the winner less each of its changes, in rounds."""
        several = attribution.variants(winner, self._plan.baseline, self._plan.facts)
        rounds = self._plan.spec.measurement.attribution
        for number in attribution_rounds(rounds, reduced=reduced):
            order = self._drawn(several, "attribution", number)
            missing = [k for k in order if not self._attributed(chosen, k, number)]
            # A round that is not complete compares nothing.
            if self._schedule.left < self._prices().round(missing):
                return
            self._attribute_round(chosen, missing, number)

    def _attribute_round(
        self,
        chosen: int,
        missing: list[dict[str, Any]],
        number: int,
        rounds: int = 0,
        proof: int = 0,
    ) -> None:
        """Run the missing variants of a round, interleaved where they fit together.

        Args:
            rounds: number of such rounds that may follow; a few interleaved ones tell more than many.
            proof: number of later runs that are to have as much time each.
        """
        few = min(rounds, FEWEST_ROUNDS - 1)
        self._attribute_in_turn(chosen, missing, number, few * len(missing) + proof)
        after = rounds * len(missing) + proof
        for index, knobs in enumerate(missing):
            while not self._attributed(chosen, knobs, number):
                if self._schedule.left <= 0:
                    return
                share = 1 / (len(missing) - index + after)
                limit = self._schedule.share(share, self._context.costs().shortest(knobs))
                attempt = PlannedAttempt(chosen, knobs, Purpose.ATTRIBUTE, number)
                self._executor.run(self._planner.timed(attempt, limit))

    def _attribute_in_turn(
        self, chosen: int, missing: Sequence[dict[str, Any]], number: int, after: int
    ) -> None:
        """Run the variants interleaved, if they fit together and the round has not begun.

        Args:
            after: number of later runs that are to have as much time each.
        """
        attempts = self._context.attempts()
        if any(attempts.of(Purpose.ATTRIBUTE).of_trial(chosen).in_round(number)):
            return
        known = [a.result.peak_bytes for a in attempts.recorded() if a.trial in (chosen, BASELINE)]
        needed = max(known, default=0) * len(missing)
        limit = self._schedule.share(len(missing) / (len(missing) + after))
        members = [PlannedAttempt(chosen, knobs, Purpose.ATTRIBUTE, number) for knobs in missing]
        if plan := self._planner.interleaved(members, limit, needed):
            self._executor.run(plan)

    def _attributed(self, chosen: int, knobs: dict[str, Any], number: int) -> bool:
        return self._recorded(Purpose.ATTRIBUTE, chosen, knobs, number)

    def _drawn(self, several: Sequence[Drawn], what_for: str, round_: int) -> list[Drawn]:
        """Return the members in an order drawn for the study, the purpose and the round.

        Every other round has the order of the one before, backwards, so that no member is the first more
        often than others: on two shared cores the first of two equals that took turns was the slower
        one, by 0.75 % (standard error 0.19, ten rounds).
        """
        order = list(several)
        pair, backwards = divmod(round_, 2)
        random.Random(f"{self._plan.spec.seed}/{what_for}/{pair}").shuffle(order)
        return order[::-1] if backwards else order

    def _recorded(
        self, purpose: Purpose, trial: int, knobs: dict[str, Any], round_: int = 0
    ) -> bool:
        own = self._context.attempts().of(purpose).of_trial(trial).in_round(round_)
        return bool(own.with_knobs(knobs).recorded())
