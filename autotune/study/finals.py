"""The finals of a study: numerics gate, confirmation rounds, then a closer look at the winner.

The closer look profiles the winner's step, measures what each of its knobs brings, and runs winner and
baseline for minutes: clocks and temperatures settle in a long run and not in a short one.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from autotune.analysis.confirmation import Confirmation
from autotune.analysis.finalists import Selection, choices, may_be_faster
from autotune.analysis.gate_plan import next_check
from autotune.analysis.memory import tells_longest
from autotune.analysis.process_spread import repeats_made
from autotune.analysis.rounds import replay_study
from autotune.analysis.sameness import Comparison, Rules
from autotune.analysis.soak_runs import soak_runs
from autotune.errors import LauncherError
from autotune.runs.monitors import (
    FitMonitor,
    ProfileMonitor,
    TimedMonitor,
)
from autotune.runs.policy import RUNS
from autotune.study import finals_plan
from autotune.study.ablation import Ablation
from autotune.study.policy import STUDY
from autotune.study.round_time import RoundTime
from autotune.study.run_planner import PlannedAttempt
from autotune.study.runner import Runner
from storage import ChoiceReason, MessageCode, NewMessage, Purpose


class Finals:
    """Finals of one study, which go on from wherever the records stand, as far as the time goes."""

    def __init__(self, runner: Runner, try_without_refused: Callable[[], bool]) -> None:
        """Prepare the finals, before anything runs.

        Args:
            try_without_refused: tries the fastest trial without what the numerics gate refuses of it;
                returns whether it ran.
        """
        self._runner = runner
        self._try_without_refused = try_without_refused
        self._context = runner.context
        self._setup = runner.context.setup
        self._time = runner.time
        self._ablation = Ablation(runner)
        self._void: set[int] | None = None
        self._moves = 0
        self._finalists: set[int] = set()
        self.selection: Selection | None = None
        """Latest choice of the finalists; None before the first."""

    def begun(self) -> bool:
        """Return whether the time ended in the middle of the rounds.

        They go on before anything else: another trial of the search would make them void.
        """
        if not self._time.limited:
            return False
        confirmation = self._replay()
        return (
            confirmation is not None
            and bool(confirmation.rounds)
            and bool(confirmation.members())
            and not confirmation.decided()
        )

    def run(self) -> None:
        """Measure the finals; then profile the choice, run its ablation, and run it for long.

        Raises:
            LauncherError: its runs come to be on another machine again and again.
        """
        confirmation = self.prove()
        if confirmation is not None:
            confirmation = self._as_measured(confirmation)
            self._look_closer(confirmation)
            SoakPair(self._runner).run(confirmation)

    def prove(self) -> Confirmation | None:
        """Measure the finals until they are decided, or as far as there is time; return the outcome.

        None: there is nothing to measure.

        Raises:
            LauncherError: its runs come to be on another machine again and again.
        """
        while True:
            confirmation = self._replay()
            if confirmation is None or not confirmation.members():
                return None
            self._note_void(confirmation.void)
            self._note_finalists(confirmation)
            if self._replace_refused(confirmation) or self._check_numerics(confirmation):
                continue  # a refused finalist makes room for the next
            if self._lacks_time_for_rivals(confirmation):
                return None
            if self._check_epochs(confirmation):
                continue
            if self._ablation.revert(confirmation):
                continue
            if self._check_longest(confirmation):
                continue  # as does one that outgrows the memory
            if self._repeat_baseline(confirmation):
                continue
            if confirmation.decided() or not self._complete_round(confirmation):
                confirmation.end()
                return confirmation

    def _lacks_time_for_rivals(self, confirmation: Confirmation) -> bool:
        """Return whether only the baseline is to be measured, for lack of time for what may be faster.

        Its rounds alone would show nothing, and take the time that a check may have later.
        """
        own, baseline = self._context.attempts().baseline(), confirmation.baseline
        if confirmation.rounds or confirmation.members() != [baseline] or own is None:
            return False
        left_out = set(self.selection.unaffordable if self.selection else ())
        rivals = self._runner.price.eligible()
        return any(may_be_faster(one, own) for one in rivals if one.trial in left_out)

    def _as_measured(self, confirmation: Confirmation) -> Confirmation:
        """Return the confirmation of the reduced winner, where that was measured alone."""
        if not confirmation.reverted or confirmation.gain_is_measured:
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
        if self._moves > STUDY.most_moves:
            raise LauncherError(
                f"the machine has changed {self._moves} times in the middle of the confirmation, and "
                "nothing could be compared; see that its agents stay on one"
            )
        self._void = void

    def _note_finalists(self, confirmation: Confirmation) -> None:
        """Record which trials are measured again and why, whenever others are."""
        finalists = set(confirmation.candidates) - {confirmation.baseline}
        if confirmation.rounds or not finalists or finalists == self._finalists:
            return
        self._finalists = finalists
        attempts, barred = self._context.attempts(), self._context.barred().trials
        unaffordable = self.selection.unaffordable if self.selection else ()
        found = choices(attempts, finalists, barred, unaffordable)
        again = [
            f"trial {one.trial}" + (f" (expected {one.expected:.2f}x)" if one.expected else "")
            for one in found
            if one.reason is ChoiceReason.FINALIST
        ]
        said = f"Measured again with yours: {', '.join(again)}."
        self._context.record_choice(found)
        self._context.say(NewMessage(said, MessageCode.FINALISTS))

    def _replay(self) -> Confirmation | None:
        self.selection = finals_plan.selection(self._context, self._time)
        attempts, spec, blocks = self._context.attempts(), self._setup.spec, self._context.blocks
        return replay_study(attempts, spec, blocks, self.selection, self._context.barred().trials)

    def _replace_refused(self, confirmation: Confirmation) -> bool:
        """Try the fastest trial without what is refused of it; return whether it ran.

        That is done before any round: rounds from before a trial of the search do not count.
        """
        return not confirmation.rounds and self._try_without_refused()

    def _check_numerics(self, confirmation: Confirmation) -> bool:
        """Make one run that the numerics gate needs; return False if it needs none."""
        if confirmation.selected is not None and not confirmation.nothing_to_choose:
            return False
        attempts, blocks = self._context.attempts(), self._context.blocks
        candidates = [
            one
            for one in confirmation.candidates.values()
            if confirmation.leads_baseline(one.trial) or self._may_win(confirmation, one.trial)
        ]
        check = next_check(candidates, self._setup.baseline, attempts, blocks)
        if check is None:
            return False
        self._runner.run_check(check)
        return True

    def _may_win(self, confirmation: Confirmation, trial: int) -> bool:
        """Return whether a finalist may be faster than the baseline, by its trial in the search.

        A check of one that is surely slower would prove nothing. Only where steps are timed one by one
        is the error of a trial known well enough. Where the baseline is out, the best that runs is
        recommended.
        """
        if confirmation.baseline not in confirmation.members():
            return True
        attempts = self._context.attempts()
        own, its = attempts.baseline(), attempts.searched().of_trial(trial).measured().first
        if confirmation.spread is None or own is None or its is None:
            return True
        return may_be_faster(its, own)

    def _check_epochs(self, confirmation: Confirmation) -> bool:
        """Run a finalist in short epochs whose loader workers stay; return whether it did.

        A finalist that has come to a second epoch by itself needs none.
        """
        attempts, blocks = self._context.attempts(), self._context.blocks
        compared = Comparison(attempts, blocks, self._setup.baseline, Rules.of(self._setup.spec))
        costs = self._context.costs()
        for trial in confirmation.members():
            knobs = confirmation.candidates[trial].knobs
            if self._has_told(Purpose.EPOCHS, trial, knobs) or not compared.lacks_epoch(
                trial, knobs
            ):
                continue
            if self._time.left > costs.profile(knobs):
                attempt = PlannedAttempt(trial, knobs, Purpose.EPOCHS)
                self._runner.run_monitored(attempt, FitMonitor(RUNS.blocks_of_fit))
                return True
        return False

    def _has_told(self, purpose: Purpose, trial: int, knobs: dict[str, Any]) -> bool:
        """Return whether a run is recorded, and is neither cut short nor a failure by chance."""
        own = self._context.attempts().of(purpose).of_trial(trial).with_knobs(knobs)
        return bool(own.conclusive())

    def _check_longest(self, confirmation: Confirmation) -> bool:
        """Run a finalist on the longest samples, if the workload knows them; return whether it did."""
        blocks = self._context.blocks
        members, price = confirmation.members(), self._runner.price
        configurations = confirmation.knobs_of(members)
        proof = price.rounds(configurations, confirmation.to_prove)
        for trial, knobs in zip(members, configurations, strict=True):
            if trial == confirmation.baseline or self._has_told(Purpose.LONGEST, trial, knobs):
                continue
            if not tells_longest(self._context.attempts(), trial, blocks):
                continue
            if self._time.left > price.costs.profile(knobs) + proof:
                attempt = PlannedAttempt(trial, knobs, Purpose.LONGEST)
                self._runner.run_monitored(attempt, FitMonitor(RUNS.blocks_of_fit))
                return True
        return False

    def _complete_round(self, confirmation: Confirmation) -> bool:
        """Measure the missing members of a round one by one, in an order drawn for the round.

        Return False if there is no time for it.
        """
        number = confirmation.next_round
        if not self._round_interleaved(confirmation):
            return False
        for trial in self._runner.drawn(confirmation.members(), "confirmation", number):
            knobs = confirmation.candidates[trial].knobs
            while trial not in (done := self._recorded(confirmation)):
                missing = [t for t in confirmation.members() if t not in done]
                times = self._round_time(confirmation)
                if not times.enough(missing):
                    return False
                limit = times.alone(trial, missing)
                attempt = PlannedAttempt(trial, knobs, Purpose.CONFIRM, round=number)
                self._runner.run_timed(attempt, limit)
        return True

    def _round_time(self, confirmation: Confirmation) -> RoundTime:
        return RoundTime(confirmation, self._runner.price, self._time)

    def _recorded(self, confirmation: Confirmation) -> dict[int, float | None]:
        """Return what this daemon has recorded of the next round."""
        return confirmation.recorded(self._context.attempts(), self._context.lease.epoch)

    def _repeat_baseline(self, confirmation: Confirmation) -> bool:
        """Run the baseline in another process, where more processes tell more than more rounds.

        Return whether it ran.
        """
        baseline, again = confirmation.baseline, repeats_made(self._context.attempts())
        if baseline is None or not confirmation.baseline_unsteady or confirmation.to_prove:
            return False
        if confirmation.settled or again >= STUDY.most_repeats:
            return False
        rounds_first = again >= STUDY.repeats_if_unsteady and not confirmation.decided()
        members = confirmation.members()
        if rounds_first and self._round_time(confirmation).enough(members):
            return False
        knobs, costs = confirmation.candidates[baseline].knobs, self._context.costs()
        if self._time.left < costs.brief(knobs):
            return False
        limit = self._time.for_proof(0.0, costs.brief(knobs, slow=True), 0.0)
        self._runner.run_timed(PlannedAttempt(baseline, knobs, Purpose.REPEAT), limit)
        return True

    def _round_interleaved(self, confirmation: Confirmation) -> bool:
        """Measure the members of a new round interleaved, if they fit together.

        A member that fails beside the others is left for a run of its own. Return False if there is no
        time for the round.
        """
        number, attempts = confirmation.next_round, self._context.attempts()
        if any(attempts.of(Purpose.CONFIRM).in_round(number)):
            return True
        order = self._runner.drawn(confirmation.members(), "confirmation", number)
        times = self._round_time(confirmation)
        if not times.enough(order):
            return False
        chosen = [confirmation.candidates[trial] for trial in order]
        members = [
            PlannedAttempt(one.trial, one.knobs, Purpose.CONFIRM, round=number) for one in chosen
        ]
        limit = times.interleaved(order)
        peak_bytes = sum(one.peak_bytes for one in chosen)
        self._runner.run_interleaved(members, limit, peak_bytes)
        return True

    def _look_closer(self, confirmation: Confirmation) -> None:
        if not confirmation.rounds:
            return
        chosen, baseline = confirmation.recommended(), confirmation.baseline
        profiled = {chosen, chosen if baseline is None else baseline}
        for trial in sorted(profiled if self._setup.spec.workload.observable else ()):
            self._profile(trial, confirmation.candidates[trial].knobs)
        if baseline is not None and chosen != baseline:
            reduced = bool(confirmation.reverted)
            self._ablation.measure(chosen, confirmation.candidates[chosen].knobs, reduced=reduced)

    def _profile(self, trial: int, knobs: dict[str, Any]) -> None:
        """Run a configuration under the profiler, once."""
        while not self._runner.recorded(Purpose.PROFILE, trial, knobs):
            if not self._time.left > self._context.costs().profile(knobs):
                return
            attempt = PlannedAttempt(trial, knobs, Purpose.PROFILE)
            self._runner.run_monitored(attempt, ProfileMonitor())


class SoakPair:
    """Soak runs of winner and baseline, which go on from wherever the records stand."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._context = runner.context
        self._time = runner.time

    def run(self, confirmation: Confirmation) -> None:
        """Measure both, where the winner beats the baseline and there is time.

        Only runs of one daemon compare: of a pair that another left incomplete both are measured.
        """
        baseline, chosen = confirmation.baseline, confirmation.recommended()
        if baseline is None or chosen == baseline or not confirmation.rounds:
            return
        order = [chosen, baseline]
        random.Random(f"{self._context.setup.spec.seed}/long").shuffle(order)
        if all(self._measured(confirmation, trial) for trial in order):
            return
        if not (seconds := self._time.soak_seconds()):
            return
        for trial in order:
            self._measure(confirmation, trial, seconds)

    def _measure(self, confirmation: Confirmation, trial: int, seconds: float) -> None:
        noise = self._runner.planner.noise.sigma_run
        limits = self._context.setup.confirm_limits(sigma_run=noise)
        knobs = confirmation.candidates[trial].knobs
        power = None if trial == confirmation.baseline else self._context.setup.power_limit
        limits = replace(limits, longest=seconds, fewest=math.inf, power=power)
        limit = self._time.for_soak(knobs, limits.warmup + seconds)
        epoch = self._context.lease.epoch
        while self._time.left >= limit.hard and not self._measured(confirmation, trial, epoch):
            attempt = PlannedAttempt(trial, knobs, Purpose.SOAK)
            self._runner.run_monitored(attempt, TimedMonitor(limits), limit)

    def _measured(self, confirmation: Confirmation, trial: int, epoch: int | None = None) -> bool:
        """Return whether a run has shown what it may; one that fails by chance is repeated once."""
        knobs = confirmation.candidates[trial].knobs
        runs = soak_runs(self._context.attempts(), epoch).of_trial(trial).with_knobs(knobs)
        return bool(runs.conclusive()) or any(run.in_vain for run in runs)
