"""The finals of a study: numerics gate, finalists and baseline again in randomised rounds, then a
closer look at the winner: what its step is made of, and what each of its knobs brings."""

import random
from collections.abc import Sequence
from typing import Any, TypeVar

from autotune.analysis import attribution, gate
from autotune.analysis.confirmation import (
    FEWEST_ROUNDS,
    Confirmation,
    confirmed_alone,
    replay,
)
from autotune.analysis.memory import barred, tells_longest
from autotune.analysis.parsimony import Step, attribution_rounds, spared
from autotune.analysis.proof import Proof
from autotune.analysis.sameness import Comparison, Rules
from autotune.errors import LauncherError
from autotune.runs.monitors import FitMonitor, ProfileMonitor, TrajectoryMonitor
from autotune.runs.plan import FEW_BLOCKS
from autotune.study.bench import Bench
from autotune.study.job import BASELINE, Job
from autotune.study.long_pair import LongPair
from autotune.study.schedule import Course, Schedule
from autotune.study.taking_turns import TakingTurns
from storage import Purpose

Drawn = TypeVar("Drawn")
_STEPS_TO_COME = 5
"""Rounds that show what the chosen one can do without, about."""
_MOST_REPEATS = 12
"""Runs of a baseline whose processes lie apart, besides the rounds (judgement: the mean of twelve is
known to a third of the spread)."""
_MOST_MOVES = 3
"""How often rounds may be void, in one go, because the machine has changed."""


class Finals:
    """Goes on from wherever the records stand, as far as the time goes."""

    def __init__(self, job: Job, bench: Bench, schedule: Schedule) -> None:
        """Take in whom to ask.

        Args:
            job: the study.
            bench: runs the attempts; idle.
            schedule: of its time.
        """
        self._job = job
        self._plan = job.plan
        self._bench = bench
        self._schedule = schedule
        self._turns = TakingTurns(job)
        self._void: set[int] | None = None
        self._moves = 0

    def begun(self) -> bool:
        """Return whether the time ended in the middle of the rounds. They go on before anything else:
        another trial of the search would make them count for nothing."""
        if not self._schedule.limited:
            return False
        confirmation = self._replay()
        return (
            confirmation is not None
            and bool(confirmation.rounds)
            and bool(confirmation.members())
            and not confirmation.decided()
        )

    def run(self) -> Confirmation | None:
        """The confirmation, decided or as far as there was time; None if there is nobody to confirm.

        Raises:
            LauncherError: its runs come to be on another machine again and again.
        """
        while True:
            confirmation = self._replay()
            if confirmation is None or not confirmation.members():
                return None
            self._note_void(confirmation.void)
            if self._check_numerics(confirmation):
                continue  # whoever is refused makes room for the next
            if self._check_epochs(confirmation):
                continue
            if self._take_back(confirmation):
                continue
            if self._check_longest(confirmation):
                continue  # as does whoever outgrows the memory
            if self._repeat_baseline(confirmation):
                continue
            if confirmation.decided() or not self._complete_round(confirmation):
                confirmation = self._as_measured(confirmation)
                self._look_closer(confirmation)
                LongPair(self._job, self._bench, self._schedule).run(confirmation)
                return confirmation

    def _as_measured(self, confirmation: Confirmation) -> Confirmation:
        """The same where what was taken back of the chosen one was measured without it."""
        if not confirmation.taken_back or confirmation.measured_alone:
            return confirmation
        return self._replay() or confirmation

    def _note_void(self, void: set[int]) -> None:
        """Say that rounds do not count any more because the machine has changed."""
        new = set() if self._void is None else void - self._void
        if new:
            self._moves += 1
            numbers = ", ".join(map(str, sorted(new)))
            self._job.say(
                "What ran on another machine is not compared with what runs now (rounds "
                f"{numbers} of the confirmation): it is measured anew."
            )
        if self._moves > _MOST_MOVES:
            raise LauncherError(
                f"the machine has changed {self._moves} times in the middle of the confirmation, and "
                "nothing could be compared; see that its agents stay on one"
            )
        self._void = void

    def checks(self) -> gate.GateRecord:
        """What the numerics gate has found."""
        return gate.record(
            self._job.attempts(),
            self._job.repository.attempts.blocks,
            self._plan.baseline,
            Rules.of(self._plan.spec),
        )

    def _replay(self) -> Confirmation | None:
        course = Course.of(self._job, self._schedule)
        wanted, attempts = self._plan.spec.measurement, self._job.attempts()
        blocks = self._job.repository.attempts.blocks
        return replay(
            attempts,
            finalists=course.finalists,
            most_rounds=wanted.rounds,
            barred=barred(attempts, blocks, self._plan.baseline, Rules.of(self._plan.spec)),
            unaffordable=course.unaffordable,
            same_batch=course.same_batch,
            blocks=blocks,
        )

    def _take_back(self, confirmation: Confirmation) -> bool:
        """Measure a round that tells which changes of the chosen one bring nothing, before it is
        measured alone; without one, leave out those that are known by then."""
        rounds = self._plan.spec.measurement.attribution
        if confirmation.chosen is None or rounds < 2:
            return False
        attempts = self._job.attempts()
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
        """Measure a round of these; False if there is no time for it and for what proves the result."""
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
        """Make one run that the numerics gate needs; False if it needs none."""
        if confirmation.chosen is not None and not confirmation.nothing_to_choose:
            return False
        candidates = list(confirmation.candidates.values())
        attempts, blocks = self._job.attempts(), self._job.repository.attempts.blocks
        check = gate.next_check(candidates, self._plan.baseline, attempts, blocks)
        if check is None:
            return False
        self._bench.run(
            check.trial,
            check.knobs,
            check.purpose,
            round_=check.seed,
            judge=TrajectoryMonitor(check.reference, formats=check.formats, earlier=check.earlier),
            allowed=self._schedule.share(1.0),
        )
        return True

    def _check_epochs(self, confirmation: Confirmation) -> bool:
        """Run a finalist in short epochs whose loader workers stay, unless it has come to a second epoch
        by itself; whether it did."""
        attempts, blocks = self._job.attempts(), self._job.repository.attempts.blocks
        compared = Comparison(attempts, blocks, self._plan.baseline, Rules.of(self._plan.spec))
        costs = self._job.costs()
        for trial in confirmation.members():
            knobs = confirmation.candidates[trial].knobs
            if self._recorded(Purpose.EPOCHS, trial, knobs) or not compared.lacks_epoch(
                trial, knobs
            ):
                continue
            if self._schedule.left > costs.profile(knobs):
                allowed = self._schedule.share(1.0)
                self._bench.run(
                    trial, knobs, Purpose.EPOCHS, judge=FitMonitor(FEW_BLOCKS), allowed=allowed
                )
                return True
        return False

    def _check_longest(self, confirmation: Confirmation) -> bool:
        """Run a finalist once on the longest samples, where the workload knows them; whether it did."""
        blocks = self._job.repository.attempts.blocks
        members, prices = confirmation.members(), self._prices()
        configurations = [confirmation.candidates[trial].knobs for trial in members]
        proof = prices.rounds(configurations, confirmation.to_prove)
        for trial, knobs in zip(members, configurations, strict=True):
            if trial == confirmation.baseline or self._recorded(Purpose.LONGEST, trial, knobs):
                continue
            if not tells_longest(self._job.attempts(), trial, blocks):
                return False
            if self._schedule.left > prices.costs.profile(knobs) + proof:
                allowed = self._schedule.share(1.0)
                judge = FitMonitor(FEW_BLOCKS)
                self._bench.run(trial, knobs, Purpose.LONGEST, judge=judge, allowed=allowed)
                return True
        return False

    def _complete_round(self, confirmation: Confirmation) -> bool:
        """Measure whoever is still missing, one after another, in an order drawn for the round; False
        if there is no time for it."""
        number = confirmation.next_round
        if not self._round_in_turn(confirmation):
            return False
        for trial in self._drawn(confirmation.members(), "confirmation", number):
            knobs = confirmation.candidates[trial].knobs
            while trial not in (done := confirmation.recorded(self._job.attempts())):
                missing = [t for t in confirmation.members() if t not in done]
                if not self._has_time(confirmation, missing):
                    return False
                runs = len(missing) + confirmation.runs_to_come(self._schedule.rounds)
                shortest = self._job.costs().shortest(knobs)
                others = self._needed(confirmation, missing) - shortest
                allowed = self._schedule.for_proof(1 / runs, shortest, others)
                self._bench.run(trial, knobs, Purpose.CONFIRM, round_=number, allowed=allowed)
        return True

    def _repeat_baseline(self, confirmation: Confirmation) -> bool:
        """Run the baseline in another process, where its processes lie so far apart that more of them
        tell more than more rounds; return whether it did.
        """
        baseline, again = confirmation.baseline, self._job.attempts().of(Purpose.REPEAT)
        if baseline is None or not confirmation.waits or not confirmation.decided():
            return False
        if confirmation.precise or confirmation.contradicted or len(again) >= _MOST_REPEATS:
            return False
        knobs, costs = confirmation.candidates[baseline].knobs, self._job.costs()
        if self._schedule.left < costs.brief(knobs):
            return False
        allowed = self._schedule.for_proof(0.0, costs.brief(knobs, slow=True), 0.0)
        self._bench.run(baseline, knobs, Purpose.REPEAT, allowed=allowed)
        return True

    def _round_in_turn(self, confirmation: Confirmation) -> bool:
        """Measure all members of a round that nobody has begun at once, in turn, where that can be;
        False if there is no time for it. Who fails beside the others is left for a run of its own."""
        number, attempts = confirmation.next_round, self._job.attempts()
        if any(attempts.of(Purpose.CONFIRM).in_round(number)):
            return True
        order = self._drawn(confirmation.members(), "confirmation", number)
        if not self._has_time(confirmation, order):
            return False
        chosen = [confirmation.candidates[trial] for trial in order]
        members = [(one.trial, one.knobs) for one in chosen]
        knobs = [one.knobs for one in chosen]
        # A few rounds in turn tell more than many one by one.
        to_come = confirmation.runs_to_come(FEWEST_ROUNDS)
        least = self._prices().round(knobs)
        others = self._needed(confirmation, order) - least
        allowed = self._schedule.for_proof(len(knobs) / (len(knobs) + to_come), least, others)
        if not self._turns.possible(knobs, sum(one.peak_bytes for one in chosen), allowed):
            return True
        self._bench.run_interleaved(members, Purpose.CONFIRM, round_=number, allowed=allowed)
        return True

    def _has_time(self, confirmation: Confirmation, missing: Sequence[int]) -> bool:
        """Return whether a round may go on; whether to begin one, and with it all that prove something.
        The proof begins where there is time for it even if launches are slow, and goes on while there
        is for launches as most are."""
        prices, rounds = self._prices(), max(1, confirmation.to_prove)
        knobs = [confirmation.candidates[trial].knobs for trial in missing]
        if len(missing) < len(confirmation.members()):
            return self._schedule.may_end(prices.usual_round(knobs))
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
        return self._schedule.proof(self._job.attempts())

    def _look_closer(self, confirmation: Confirmation) -> None:
        if not confirmation.rounds:
            return
        chosen, baseline = confirmation.choice(), confirmation.baseline
        profiled = {chosen, chosen if baseline is None else baseline}
        for trial in sorted(() if self._plan.spec.workload.command else profiled):
            self._profile(trial, confirmation.candidates[trial].knobs)
        if baseline is not None and chosen != baseline:
            reduced = bool(confirmation.taken_back)
            self._attribute(chosen, confirmation.candidates[chosen].knobs, reduced=reduced)

    def _profile(self, trial: int, knobs: dict[str, Any]) -> None:
        """Run a configuration under the profiler, once."""
        while not self._recorded(Purpose.PROFILE, trial, knobs):
            if not self._schedule.left > self._job.costs().profile(knobs):
                return
            allowed = self._schedule.share(1.0)
            self._bench.run(trial, knobs, Purpose.PROFILE, judge=ProfileMonitor(), allowed=allowed)

    def _attribute(self, chosen: int, winner: dict[str, Any], *, reduced: bool) -> None:
        """In turn, in rounds: the winner, and the winner less each of its changes."""
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
        """Run these in turn.

        Args:
            rounds: like it that may follow; of those in turn a few tell more than many one by one.
            proof: runs that are to have as much time after them.
        """
        few = min(rounds, FEWEST_ROUNDS - 1)
        self._attribute_in_turn(chosen, missing, number, few * len(missing) + proof)
        after = rounds * len(missing) + proof
        for index, knobs in enumerate(missing):
            while not self._attributed(chosen, knobs, number):
                if self._schedule.left <= 0:
                    return
                share = 1 / (len(missing) - index + after)
                allowed = self._schedule.share(share, self._job.costs().shortest(knobs))
                self._bench.run(chosen, knobs, Purpose.ATTRIBUTE, round_=number, allowed=allowed)

    def _attribute_in_turn(
        self, chosen: int, missing: Sequence[dict[str, Any]], number: int, after: int
    ) -> None:
        """The same at once, in turn, where that can be and nobody has begun; so many runs are to have as
        much time after it."""
        attempts = self._job.attempts()
        if any(attempts.of(Purpose.ATTRIBUTE).of_trial(chosen).in_round(number)):
            return
        known = [a.result.peak_bytes for a in attempts.recorded() if a.trial in (chosen, BASELINE)]
        needed = max(known, default=0) * len(missing)
        allowed = self._schedule.share(len(missing) / (len(missing) + after))
        if self._turns.possible(missing, needed, allowed):
            members = [(chosen, knobs) for knobs in missing]
            self._bench.run_interleaved(members, Purpose.ATTRIBUTE, round_=number, allowed=allowed)

    def _attributed(self, chosen: int, knobs: dict[str, Any], number: int) -> bool:
        return self._recorded(Purpose.ATTRIBUTE, chosen, knobs, number)

    def _drawn(self, several: Sequence[Drawn], what_for: str, round_: int) -> list[Drawn]:
        """In an order that is drawn for this study, purpose and round: the same when it goes on.

        Every other round has that of the one before, backwards, so that nobody is the first one more
        often than others: on two shared cores the first of two equals that took turns was the slower
        one, by 0.75 % (standard error 0.19, ten rounds)."""
        order = list(several)
        pair, backwards = divmod(round_, 2)
        random.Random(f"{self._plan.spec.seed}/{what_for}/{pair}").shuffle(order)
        return order[::-1] if backwards else order

    def _recorded(
        self, purpose: Purpose, trial: int, knobs: dict[str, Any], round_: int = 0
    ) -> bool:
        own = self._job.attempts().of(purpose).of_trial(trial).in_round(round_)
        return bool(own.with_knobs(knobs).recorded())
