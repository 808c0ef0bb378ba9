"""The search of a study: ask, launch, watch and tell, until another trial is not worth its time."""

from collections.abc import Callable, Iterator, Mapping

from optuna.trial import FrozenTrial, TrialState

from autotune.analysis import outcomes
from autotune.analysis.barred import Barred
from autotune.analysis.node_speeds import NodeSpeeds
from autotune.analysis.noise_backfill import error_of, errors_of_early
from autotune.analysis.shortfall import rounded_up
from autotune.analysis.wording import difference, share_text, too_slow
from autotune.errors import BaselineFails
from autotune.measurement.measure import Measure
from autotune.search.outline import outline
from autotune.search.sampling import Exhausted, sampler
from autotune.study.calibration import Calibration
from autotune.study.context import StudyContext
from autotune.study.dashboard_sync import DashboardSync, ObjectiveValues, tell_result
from autotune.study.executor import Finished, TrialExecutor
from autotune.study.follow_ups import FollowUps
from autotune.study.run_planner import RunPlanner
from autotune.study.slot_pool import SlotPool
from autotune.study.stopping import (
    FINEST_GAIN,
    Budget,
    ExpectedGainStopping,
    SearchEnd,
    TrialEconomics,
    usual_seconds,
)
from autotune.study.time_budget import TimeBudget
from storage import (
    AttemptResult,
    Attempts,
    AttemptState,
    MessageCode,
    NewMessage,
    Purpose,
    SearchEndCause,
    StoredAttempt,
    StoredNoise,
    TrialLedger,
)
from storage.trials import asked_before

_POLL_SECONDS = 0.2


class SearchLoop:
    """Search of one study, which goes on from wherever the records stand."""

    def __init__(
        self,
        context: StudyContext,
        planner: RunPlanner,
        pool: SlotPool,
        time: TimeBudget,
        check: Callable[[], None],
    ) -> None:
        """Prepare the loop, before anything runs.

        Args:
            check: function that raises if the study is to stop.
        """
        self._context = context
        self._setup = context.setup
        self._spec = context.setup.spec
        self._planner = planner
        self._pool = pool
        self._time = time
        self._check = check
        self.space = self._setup.space()
        launched = {
            attempt.trial: attempt.knobs for attempt in context.attempts().of(Purpose.SEARCH)
        }
        database, name = context.repository.database, context.study.name
        self.space.keep(asked_before(database, name, launched))
        self._budget = Budget(self._spec.budget, self._setup.launcher.ranks)
        self._calibration = Calibration(
            self._spec.measurement.baseline_runs,
            context.known_sigma(),
            context.blocks,
            Measure.of(self._spec),
        )
        last = context.attempts().last
        self._since = last.id if last else 0
        self._sampler = sampler(
            self._spec.sampler,
            self.space,
            self._spec.seed + len(context.attempts()),
            self._setup.memory_of_rank(),
            self._spec.measurement.finalists,
        )
        self._stopping = ExpectedGainStopping(
            TrialEconomics.of(self._spec), self._sampler.prediction
        )
        self.ledger = TrialLedger(database, name, self._sampler, context.lease, launched)
        self._values = ObjectiveValues(self.ledger, self._spec.unit)
        self._follow_ups = FollowUps(context, self.space, time, self.ledger)
        self._told_no_time = False
        self.dashboard = DashboardSync(context, self.ledger)

    def begin(self) -> None:
        """Say what is searched, and have the baseline tried first, unless that was done before."""
        self._planner.noise = self._calibration.noise(self._context.attempts())
        if self.ledger.trials():
            return
        known = self._spec.counts != "steps" and self._spec.batch_known
        batch = self._setup.facts.global_batch_size
        size, *lonely = outline(self.space, batch, batch_known=known)
        self._context.say(NewMessage(size, MessageCode.SPACE))
        for reason in (*self.space.left_out, *lonely):
            self._context.say(
                NewMessage(f"Left out: {reason}.", MessageCode.LEFT_OUT, {"reason": reason})
            )
        if note := self._spec.note_on_tokens:
            self._context.say(note)
        self._enqueue_baseline()

    def run(self, executor: TrialExecutor) -> SearchEnd | None:
        """Run trials until the budget is spent; return why the search ends.

        None if it had ended before, and only open trials were finished.
        """
        ended = self._context.study.search_ended is not None
        return self._run(executor, self._recover(), ended=ended)

    def try_without_refused(self, executor: TrialExecutor) -> bool:
        """Try the fastest trial without what the numerics gate refuses of it; return whether it ran.

        It does not run where another trial is allowed no more, or its proof has no time.
        """
        attempts = self._context.attempts()
        found = self._follow_ups.without_refused(attempts)
        if found is None or self._budget.why_spent(self.ledger.trials(), attempts):
            return False
        knobs, price = self.space.complete(found.params), self._time.finals_price(attempts)
        if (lacking := self._time.lacks_for_late_trial(knobs, price)) > 0:
            self._tell_no_time(found.reason, lacking)
            return False
        self._context.say(f"To be tried next: {found.reason}.")
        trial = self.ledger.begin(found.params, self.space.distributions(), found.reason)
        self._launch(executor, trial, attempts)
        self._run(executor, [], ended=True)
        return True

    def _tell_no_time(self, what: str, lacking: float) -> None:
        """Say once what there is no time to try, and which wall time would do."""
        if not self._told_no_time:
            self._told_no_time = True
            enough = rounded_up((self._spec.budget.wall_time or 0.0) + lacking)
            self._context.say(
                f"There is no time left for {what}; about {enough:.0f} s would do (budget.wall_time)."
            )

    def _run(
        self, executor: TrialExecutor, unlaunched: list[FrozenTrial], *, ended: bool
    ) -> SearchEnd | None:
        """Run open trials, and others unless the search has ended; return why it ends."""
        end = None
        while True:
            self._check()
            # Trials that were begun before are finished, whatever the budget: none stays open.
            while executor.has_free_slot:
                searching = bool(unlaunched) or not ended
                if self._run_baseline_again(executor, searching=searching):
                    continue
                if unlaunched:
                    self._launch(executor, unlaunched.pop(0), self._context.attempts())
                elif searching:
                    end = self._launch_next(executor)
                    ended = end is not None
                else:
                    break
            if executor.idle and not unlaunched and not (unlaunched := self._recover()):
                return end
            for finished in executor.finished(_POLL_SECONDS):
                if finished.attempt.purpose == Purpose.CALIBRATE:
                    self._learn_noise()
                elif finished.attempt.purpose == Purpose.SEARCH:
                    self._tell(finished, unlaunched)
                self._check_that_baseline_runs()

    def why_over(self) -> SearchEnd | None:
        """Return why no further trial would be launched; None if one would."""
        trials, attempts = self.ledger.trials(), self._context.attempts()
        barred = self._inform_sampler(attempts)
        spent = self._why_spent(trials, attempts)
        return spent or self._why_enough(trials, attempts, barred)

    def end(self, end: SearchEnd | None) -> None:
        """Say once why the search ended and what the model expects by now.

        Args:
            end: reason; None if it was said before.
        """
        if end is not None and self._context.study.search_ended is None:
            text, data = f"The search ends: {end.text}.", {"cause": end.cause.value}
            said = NewMessage(text, MessageCode.SEARCH_END, data)
            self._context.end_search(end.text, [said, *self._expectation()])

    def see(self, shares: Mapping[str, float]) -> None:
        """Tell the sampler the shares of a step of the baseline, by part of its profile."""
        self._sampler.see(self._setup.baseline, shares)

    def close_what_is_open(self) -> None:
        """Fail the trials that were asked for after the search had ended."""
        for trial in self._recover():
            reason = AttemptResult(AttemptState.ERROR, "asked for after the search had ended")
            tell_result(self.ledger, trial.number, reason, "Not run: the search had ended.")

    def _run_baseline_again(self, executor: TrialExecutor, *, searching: bool) -> bool:
        """Launch another run of the baseline if one is due; return whether it was launched.

        Args:
            searching: True if trials are to come, for which noise and speeds of nodes are wanted.
        """
        attempts, baseline = self._context.attempts(), self._setup.baseline
        limit = self._time.for_trial(attempts)
        if limit.hard > 0 and (failed := outcomes.to_be_tried_again(attempts, self._since)):
            executor.submit(self._planner.calibration(failed.trial, limit))
            return True
        own = attempts.of(Purpose.SEARCH).of_baseline().last
        if own is None or not searching:
            return False
        if executor.idle and (undisturbed := self._time.for_undisturbed_run(attempts)):
            executor.submit(self._planner.calibration(own.trial, undisturbed))
            return True
        limit = self._time.for_calibration(attempts)
        if not self._time.may_calibrate(attempts):
            return False
        if attempts.of(Purpose.PAIRED) and self._planner.pairing.on_one_environment():
            return False  # it runs beside each trial
        due = self._calibration.due(
            attempts, self._pool.environments, executor.where_runs(baseline)
        )
        for free in filter(None, map(self._pool.free_in, due)):
            executor.submit(self._planner.calibration(own.trial, limit, free))
            return True
        return False

    def _check_that_baseline_runs(self) -> None:
        """Check that the baseline does not fail by itself."""
        attempts, name = self._context.attempts(), self._context.study.name
        if failure := outcomes.for_good(attempts, self._since):
            raise BaselineFails(
                f"your configuration fails by itself, {failure.result.state}: "
                f"{failure.result.cause or 'without a word'}. What it printed: autotune logs {name} "
                f"--trial {failure.trial}. Mend it, then: autotune resume {name}."
                f"{too_slow(failure.result.state)}"
            )
        if outcomes.runs_after_all(attempts):
            self._enqueue_baseline()

    def _launch_next(self, executor: TrialExecutor) -> SearchEnd | None:
        """Launch the next trial; return why none is launched."""
        trials, attempts = self.ledger.trials(), self._context.attempts()
        barred = self._inform_sampler(attempts)
        if end := self._why_spent(trials, attempts):
            return end
        if self._follow_ups.enqueue(trials, attempts):
            trials = self.ledger.trials()
        if end := self._why_enough(trials, attempts, barred):
            return end
        costs, warm = self._context.costs(), self._pool.warm_knobs
        self._sampler.price(lambda knobs: costs.expected(knobs, warm))
        try:
            trial = self.ledger.ask(self.space.distributions())
        except Exhausted:
            return self._all_tried("every feasible configuration that is found was tried", barred)
        self._launch(executor, trial, attempts)
        return None

    def _inform_sampler(self, attempts: Attempts) -> Barred:
        """Tell the sampler what the records show by now; return what may not be recommended."""
        barred, baseline = self._context.barred(), self._setup.baseline
        affordable = self._time.affordable(attempts)
        self._sampler.doubt(errors_of_early(attempts))
        self._sampler.restrict(
            lambda knobs: not barred.covers(knobs, baseline) and affordable(knobs), barred.trials
        )
        return barred

    def _why_spent(self, trials: list[FrozenTrial], attempts: Attempts) -> SearchEnd | None:
        """Return why the budget or the time ends the search; None while neither does."""
        spent = self._budget.why_spent(trials, attempts)
        return spent or self._time.why_spent(attempts)

    def _all_tried(self, text: str, barred: Barred) -> SearchEnd:
        if self._follow_ups.skips_compilation:
            text += ", or there is no time to compile it"
        if barred.kinds:
            text += ", or it is of a kind that a check refuses"
        return SearchEnd(SearchEndCause.ALL_TRIED, text)

    def _why_enough(
        self, trials: list[FrozenTrial], attempts: Attempts, barred: Barred
    ) -> SearchEnd | None:
        """Return why another trial is not worth it, or there is none; None if it is."""
        if any(trial.state == TrialState.WAITING for trial in trials):
            return None
        if self._sampler.has_model:
            sigma, seconds = self._planner.noise.sigma_run, usual_seconds(attempts)
            if end := self._stopping.why_enough(trials, seconds, sigma, barred.trials):
                return end
        if not self._sampler.has_more(trials):
            return self._all_tried("every feasible configuration has been tried", barred)
        return None

    def _expectation(self) -> Iterator[NewMessage]:
        """Yield what the sampler's model expects by now, if it has one."""
        attempts = self._context.attempts()
        self._inform_sampler(attempts)
        if expected := self._sampler.prediction(self.ledger.trials()):
            knobs = self.space.complete(expected.params)
            changed = difference(knobs, self._setup.baseline)
            value = self._values.expected(expected.value, knobs, attempts)
            reaches = f"{changed} for the best, with {self._values.text(value)}"
            if knobs == self._setup.baseline:  # its own value is a ratio to its first run
                reaches = "your configuration for the best"
            elif self._values.is_no_gain(value):
                reaches = f"your configuration for the best ({changed} is next)"
            text = (
                f"The model takes {reaches}, "
                f"and expects one more trial to bring {share_text(expected.gain, FINEST_GAIN)}."
            )
            data = {"knobs": knobs, "value": value, "gain": expected.gain}
            yield NewMessage(text, MessageCode.EXPECTATION, data)

    def _launch(self, executor: TrialExecutor, trial: FrozenTrial, attempts: Attempts) -> None:
        knobs = self.space.complete(trial.params)
        limit, barred = self._time.for_trial(attempts, knobs), [*self._context.barred().trials]
        if self._context.study.search_ended is not None:
            # It need not catch up with those in whose place it is.
            price = self._time.finals_price(attempts)
            limit, barred = self._time.for_late_trial(knobs, price), [*range(trial.number)]
        executor.submit(self._planner.search(trial.number, knobs, limit, barred))

    def _learn_noise(self) -> None:
        noise = self._planner.noise = self._calibration.noise(self._context.attempts())
        stored = StoredNoise(noise.sigma_run, noise.runs, noise.drift_per_hour)
        self._context.record_noise(stored)

    def _tell(self, finished: Finished, unlaunched: list[FrozenTrial]) -> None:
        if finished.result.state == AttemptState.LOST:
            number = finished.attempt.trial
            self._context.say(f"Trial {number}: {finished.result.cause}; it is launched again.")
            unlaunched.append(self.ledger.trials()[number])
            return
        self._tell_result(finished.attempt, finished.result)

    def _tell_result(self, attempt: StoredAttempt, result: AttemptResult) -> None:
        """Tell Optuna a result, at the speed of the node of the baseline's own trial."""
        speed = NodeSpeeds.of(self._context.attempts()).at(attempt.environment)
        told = speed.applied(result)
        note = self.dashboard.trial_note(attempt, told, speed)
        value = self._values.of(told, self._context.attempts())
        error = speed.doubted(error_of(result))
        tell_result(self.ledger, attempt.trial, told, note, standard_error=error, value=value)

    def _recover(self) -> list[FrozenTrial]:
        """Tell what was recorded but not told; return trials that were asked for but not run."""
        recorded = {a.trial: a for a in self._context.attempts().searched()}
        unlaunched: list[FrozenTrial] = []
        for trial in self.ledger.trials():
            if trial.state != TrialState.RUNNING:
                continue
            attempt = recorded.get(trial.number)
            if attempt is None:
                unlaunched.extend(self._completed(trial))
            else:
                self._tell_result(attempt, attempt.result)
        return unlaunched

    def _completed(self, trial: FrozenTrial) -> Iterator[FrozenTrial]:
        """Yield a trial that was asked for, with all of its values; nothing if it cannot have them."""
        try:
            complete = self.ledger.complete_params(trial, self.space.distributions())
        except (Exhausted, ValueError) as error:
            why = str(error) or "its values were tried, or are not allowed"
            reason = AttemptResult(AttemptState.ERROR, f"no configuration of this study: {why}")
            tell_result(self.ledger, trial.number, reason, f"Not run: {why}.")
        else:
            yield complete

    def _enqueue_baseline(self) -> None:
        baseline = self._setup.baseline
        params = {name: baseline[name] for name in self.space.distributions()}
        self.ledger.enqueue(params, "baseline")
