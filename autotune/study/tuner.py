"""One study: ask, launch, watch, tell, confirm, conclude. The loop and nothing else."""

import statistics
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from optuna.trial import FrozenTrial, TrialState

from autotune.analysis import baseline
from autotune.analysis.calibration import Calibration
from autotune.analysis.conclusion import StudyFacts, build_verdict
from autotune.analysis.confirmation import Selection
from autotune.analysis.contenders import error_of
from autotune.analysis.early import errors_of_early
from autotune.analysis.levels import Levels
from autotune.analysis.provenance import Records
from autotune.analysis.verdict import Verdict
from autotune.analysis.wording import difference, quantity, too_slow
from autotune.errors import BadInput, BaselineFails, LauncherError, LeaseLost
from autotune.measurement.noise import total_half_width
from autotune.search.outline import outline
from autotune.search.sampling import Exhausted, sampler
from autotune.study.bench import Bench, Finished
from autotune.study.board import Board
from autotune.study.budget import Budget
from autotune.study.finals import Finals
from autotune.study.follow_ups import FollowUps
from autotune.study.job import Job
from autotune.study.opening import Opening
from autotune.study.pacemaker import Pacemaker
from autotune.study.schedule import Schedule
from autotune.study.worth import Stakes, Worth
from autotune.views.notes import trial_note
from search_spaces.constraints import refused_global_batch
from storage import (
    AttemptResult,
    Attempts,
    AttemptState,
    Purpose,
    StoredAttempt,
    StoredNoise,
    TrialLedger,
)

_POLL_SECONDS = 0.2
_PROOF_FIRST = "the proof that had begun is brought to its end first"
_MOST_DOUBT = 0.3
"""Of a rate: a trial of a step or two has no interval of its own, yet is not further off."""


class Stopped(Exception):
    """Somebody asked the study to stop."""


@dataclass
class Signals:
    """What reaches a running study from outside its thread."""

    stop: threading.Event = field(default_factory=threading.Event)
    lease_lost: threading.Event = field(default_factory=threading.Event)
    waiting: threading.Event = field(default_factory=threading.Event)
    """Another study has the machine: the time does not count."""
    opening: threading.Event = field(default_factory=threading.Event)
    """Nothing is measured yet that would be disturbed by looking often."""

    def check(self) -> None:
        """Raise what has happened.

        Raises:
            LeaseLost: another daemon has the study.
            Stopped: it is to stop.
        """
        if self.lease_lost.is_set():
            raise LeaseLost("another daemon has taken over; this one writes no more")
        if self.stop.is_set():
            raise Stopped


class Tuner:
    """Runs a study from wherever its records stand to its verdict."""

    def __init__(self, job: Job, signals: Signals) -> None:
        self._job = job
        self._plan = job.plan
        self._spec = job.plan.spec
        self._signals = signals
        self._workers = job.plan.launcher.workers
        self._budget = Budget(self._spec.budget, self._workers)
        self._schedule = Schedule(job)
        self._space = self._plan.space()
        self._calibration = Calibration(
            self._spec.measurement.baseline_runs,
            job.known_sigma(),
            job.repository.attempts.blocks,
        )
        before = len(job.attempts())
        last = job.attempts().last
        self._since = last.id if last else 0
        self._sampler = sampler(
            self._spec.sampler,
            self._space,
            self._spec.seed + before,
            self._plan.memory_of_rank(),
            self._spec.measurement.finalists,
        )
        self._worth = Worth(Stakes.of(self._spec), self._sampler.prediction)
        self._pacemaker = Pacemaker(job)
        self._ledger = self._open_ledger()
        self._follow_ups = FollowUps(job, self._space, self._schedule, self._ledger)
        self.board = Board(job, self._ledger)

    def run(self) -> Verdict:
        """Search, confirm, conclude.

        Raises:
            BadInput: the baseline cannot run here, with the reason.
            BaselineFails: it fails again and again, for a reason of its own.
            Stopped, LeaseLost: see Signals.
        """
        self._check_baseline()
        try:
            with Bench(self._job, self._signals.check, self.board.update) as bench:
                selection = self._measured(bench)
        except (Stopped, LauncherError):
            self.board.catch_up()
            raise
        self._close_what_is_open()
        records = Records.of(self._job.repository, self._job.attempts())
        return build_verdict(records, self._spec, self._facts(selection))

    def _measured(self, bench: Bench) -> Selection | None:
        """Measure opening, search and finals; return how the finalists were chosen."""
        bench.noise = self._calibration.noise(self._job.attempts())
        allowed = self._schedule.for_opening()
        looks = self._schedule.pays_to_look()
        opening = Opening(self._job, self._space, allowed, looks=looks)
        for suggestion in opening.run(bench, self._ledger):
            self._job.say(f"To be tried first: {suggestion.reason}.")
        if parts := opening.parts():
            self._sampler.see(self._plan.baseline, parts)
        finals = Finals(self._job, bench, self._schedule)
        self._end_search(_PROOF_FIRST if finals.begun() else self._search(bench))
        finals.run()
        return finals.selection

    def _facts(self, selection: Selection | None) -> StudyFacts:
        proof = self._schedule.proof(self._job.attempts())
        wall_time = self._schedule.wall_time
        return StudyFacts(
            self._job.study.name,
            ended=True,
            left=wall_time.left if wall_time else None,
            selection=selection,
            reserved=proof.reserved,
            needed=proof.needed,
        )

    @property
    def unit(self) -> str:
        """Of the objective."""
        return self._spec.unit

    def _open_ledger(self) -> TrialLedger:
        job = self._job
        searched = job.attempts().of(Purpose.SEARCH)
        launched = {attempt.trial: attempt.knobs for attempt in searched}
        database, name = job.repository.database, job.study.name
        ledger = TrialLedger(database, name, self._sampler, job.lease, launched)
        if not ledger.trials():
            for reason in self._space.left_out:
                self._job.say(f"Left out: {reason}.")
            known = self._spec.counts != "steps"
            batch = self._plan.facts.global_batch
            for line in outline(self._space, batch, batch_known=known):
                self._job.say(line)
            if note := self._spec.note_on_tokens:
                self._job.say(note)
            self._enqueue_baseline(ledger)
            ledger.name_objective(f"throughput, {self.unit}")
        return ledger

    def _enqueue_baseline(self, ledger: TrialLedger) -> None:
        today = self._plan.baseline
        params = {name: today[name] for name in self._space.distributions()}
        ledger.enqueue(params, "baseline")

    def _check_baseline(self) -> None:
        fixed = self._plan.facts.global_batch
        if fixed and (refused := refused_global_batch(fixed, self._workers)):
            raise BadInput(f"objective.global_batch: {refused}")
        self._plan.check_baseline()

    # The search

    def _search(self, bench: Bench) -> str:
        """Run trials until the budget is spent; returns why it ended."""
        unlaunched = self._recover()
        reason = self._job.study.search_ended or ""
        while True:
            self._signals.check()
            # Trials that were begun before are finished, whatever the budget: none stays open.
            while bench.has_free_slot:
                searching = bool(unlaunched) or not reason
                if self._run_baseline_again(bench, searching=searching):
                    continue
                if unlaunched:
                    self._launch(bench, unlaunched.pop(0), self._job.attempts())
                elif searching:
                    reason = self._launch_next(bench)
                else:
                    break
            if bench.idle and not unlaunched and not (unlaunched := self._recover()):
                return reason
            for finished in bench.finished(_POLL_SECONDS):
                if finished.attempt.purpose == Purpose.CALIBRATE:
                    self._learn_noise(bench)
                elif finished.attempt.purpose == Purpose.SEARCH:
                    self._tell(finished, unlaunched)
                self._check_that_baseline_runs()

    def _run_baseline_again(self, bench: Bench, *, searching: bool) -> bool:
        """Launch it if that is due; whether it was.

        Args:
            searching: trials are to come, for which noise and levels are wanted.
        """
        attempts, today = self._job.attempts(), self._plan.baseline
        allowed = self._schedule.for_trial(attempts)
        if failed := baseline.to_be_tried_again(attempts):
            bench.start(failed.trial, today, Purpose.CALIBRATE, allowed=allowed)
            return True
        allowed = self._schedule.for_calibration(attempts)
        own = attempts.of(Purpose.SEARCH).of_baseline().last
        if own is None or not searching or not self._schedule.may_calibrate(attempts):
            return False
        if attempts.of(Purpose.PAIRED) and self._pacemaker.at_home(bench):
            return False  # it runs beside each trial
        due = self._calibration.due(attempts, bench.environments, bench.where_runs(today))
        for environment in filter(bench.has_free_slot_in, due):
            bench.start_in(environment, own.trial, today, Purpose.CALIBRATE, allowed=allowed)
            return True
        return False

    def _check_that_baseline_runs(self) -> None:
        """Nothing is searched around a configuration that fails by itself.

        Raises:
            BaselineFails: it does.
        """
        attempts, name = self._job.attempts(), self._job.study.name
        if failure := baseline.for_good(attempts, self._since):
            raise BaselineFails(
                f"your configuration fails by itself, {failure.result.state}: "
                f"{failure.result.cause or 'without a word'}. What it printed: autotune logs {name} "
                f"--trial {failure.trial}. Mend it, then: autotune resume {name}."
                f"{too_slow(failure.result.state)}"
            )
        if baseline.runs_after_all(attempts):
            self._enqueue_baseline(self._ledger)

    def _launch_next(self, bench: Bench) -> str:
        """Launch the next trial; why none is, in words."""
        trials, attempts = self._ledger.trials(), self._job.attempts()
        self._sampler.doubt(errors_of_early(attempts))
        if reason := self._why_over(trials, attempts):
            return reason
        self._follow_ups.enqueue(trials, attempts)
        trials = self._ledger.trials()
        self._sampler.afford(self._schedule.affordable(attempts))
        if reason := self._why_enough(trials, attempts, bench.noise.sigma_run):
            return reason
        if not self._sampler.has_more(trials):
            untried = ", or there is no time to compile it" if self._follow_ups.left_out else ""
            return f"every feasible configuration has been tried{untried}"
        costs, resident = self._job.costs(), bench.resident
        self._sampler.price(lambda knobs: costs.expected(knobs, resident))
        self._launch(bench, self._ledger.ask(self._space.distributions()), attempts)
        return ""

    def _why_over(self, trials: list[FrozenTrial], attempts: Attempts) -> str:
        """Return why there may be no other trial, whatever it would bring; empty if there may."""
        return self._budget.why_enough(trials, attempts) or self._schedule.why_enough_searched(
            attempts
        )

    def _why_enough(self, trials: list[FrozenTrial], attempts: Attempts, sigma_run: float) -> str:
        """Return why another trial is not worth it; empty if it is."""
        if any(trial.state == TrialState.WAITING for trial in trials):
            return ""
        if not self._sampler.has_model:
            return ""
        return self._worth.why_not(trials, _usual_seconds(attempts), sigma_run)

    def _end_search(self, reason: str) -> None:
        """Say why it ended and what the model expects by now, once and for all."""
        if self._job.study.search_ended is None:
            messages = [f"The search ends: {reason}.", *self._expectation()]
            self._job.end_search(reason, messages)

    def _expectation(self) -> Iterator[str]:
        """What the sampler's model expects by now, if it has one."""
        if expected := self._sampler.prediction(self._ledger.trials()):
            changed = difference(self._space.complete(expected.params), self._plan.baseline)
            yield (
                f"The model takes {changed} for the best, with {quantity(expected.value)} "
                f"{self.unit}, and expects one more trial to bring {expected.gain:.2%}."
            )

    def _launch(self, bench: Bench, trial: FrozenTrial, attempts: Attempts) -> None:
        knobs = self._space.complete(trial.params)
        # The baseline is never stopped early: everything is compared with it.
        racing = knobs != self._plan.baseline
        levels = Levels.of(attempts)
        low = _incumbent_low(levels.applied(attempts), bench.noise.df) if racing else 0.0
        allowed = self._schedule.for_trial(attempts, knobs)
        level = self._pacemaker.level(trial.number, knobs, bench, allowed)
        if level:
            bench.start_paced(trial.number, knobs, level, incumbent_low=low, allowed=allowed)
            return
        bench.start(
            trial.number,
            knobs,
            incumbent_low=lambda environment: levels.at(environment).least(low),
            allowed=allowed,
        )

    def _learn_noise(self, bench: Bench) -> None:
        noise = bench.noise = self._calibration.noise(self._job.attempts())
        stored = StoredNoise(noise.sigma_run, noise.runs, noise.drift_per_hour)
        self._job.record_noise(stored)

    def _tell(self, finished: Finished, unlaunched: list[FrozenTrial]) -> None:
        if finished.result.state == AttemptState.LOST:
            number = finished.attempt.trial
            self._job.say(f"Trial {number}: {finished.result.cause}; it is launched again.")
            unlaunched.append(self._ledger.trials()[number])
            return
        self._tell_result(finished.attempt, finished.result)

    def _tell_result(self, attempt: StoredAttempt, result: AttemptResult) -> None:
        """As it would be where the baseline's own trial ran."""
        level = Levels.of(self._job.attempts()).at(attempt.environment)
        told = level.applied(result)
        note = trial_note(attempt, told, self.unit, level=level)
        self._ledger.tell(attempt.trial, told, note, level.doubted(error_of(result)))

    def _recover(self) -> list[FrozenTrial]:
        """Tell what was recorded but not told; returns trials that were asked for but not run."""
        recorded = {a.trial: a for a in self._job.attempts().searched()}
        unlaunched: list[FrozenTrial] = []
        for trial in self._ledger.trials():
            if trial.state != TrialState.RUNNING:
                continue
            attempt = recorded.get(trial.number)
            if attempt is None:
                unlaunched.extend(self._completed(trial))
            else:
                self._tell_result(attempt, attempt.result)
        return unlaunched

    def _completed(self, trial: FrozenTrial) -> Iterator[FrozenTrial]:
        """A trial that was asked for with all of its values; none if it cannot have them."""
        try:
            complete = self._ledger.complete_params(trial, self._space.distributions())
        except (Exhausted, ValueError) as error:
            why = str(error) or "its values were tried, or are not allowed"
            reason = AttemptResult(AttemptState.ERROR, f"no configuration of this study: {why}")
            self._ledger.tell(trial.number, reason, f"Not run: {why}.")
        else:
            yield complete

    def _close_what_is_open(self) -> None:
        """A trial that somebody else has asked for since the search ended is not run any more."""
        for trial in self._recover():
            reason = AttemptResult(AttemptState.ERROR, "asked for after the search had ended")
            self._ledger.tell(trial.number, reason, "Not run: the search had ended.")


def _usual_seconds(attempts: Attempts) -> float:
    """Of a trial, and of the baseline beside it, by those that are recorded; 0 while none is."""
    kinds = attempts.searched(), attempts.of(Purpose.PAIRED).recorded()
    return sum(statistics.median([a.result.wall_seconds for a in some] or [0.0]) for some in kinds)


def _incumbent_low(attempts: Attempts, freedom: float) -> float:
    """Lower bound of the best rate so far.

    Args:
        freedom: with which the noise between runs is known.
    """
    results = [a.result for a in attempts.searched().complete()]
    lows = [
        r.throughput * (1 - min(_doubt(r, freedom), _MOST_DOUBT))
        for r in results
        if r.throughput is not None
    ]
    return max(lows, default=0.0)


def _doubt(result: AttemptResult, freedom: float) -> float:
    own = _MOST_DOUBT if result.block_half_width is None else result.block_half_width
    return total_half_width(own, result.sigma_run or 0.0, freedom)
