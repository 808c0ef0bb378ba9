"""One study: ask, launch, watch, tell, confirm, conclude. The loop and nothing else."""

import threading
from dataclasses import dataclass, field

from optuna.trial import FrozenTrial, TrialState

from autotune.analysis.calibration import Calibration
from autotune.analysis.verdict import (
    Verdict,
    conclude,
    difference,
    end_of_baseline,
    no_result,
    quantity,
)
from autotune.errors import BadInput, LeaseLost
from autotune.report.notes import trial_note
from autotune.runs import requests as plan
from autotune.runs.judging import LOST
from autotune.search.sampling import sampler
from autotune.spec import StudySpec
from autotune.study.bench import Bench, Finished, Job
from autotune.study.budget import Budget
from autotune.study.finals import Finals
from autotune.study.opening import Opening
from launchers import Launcher
from search_spaces.constraints import refused_global_batch
from storage import Purpose, StoredAttempt, StoredNoise, TrialLedger

_POLL_SECONDS = 0.2


class Stopped(Exception):
    """Somebody asked the study to stop."""


@dataclass
class Signals:
    """What reaches a running study from outside its thread."""

    stop: threading.Event = field(default_factory=threading.Event)
    lease_lost: threading.Event = field(default_factory=threading.Event)
    waiting: threading.Event = field(default_factory=threading.Event)
    """Another study has the machine: the time does not count."""

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

    def __init__(self, job: Job, launcher: Launcher, signals: Signals) -> None:
        self._job = job
        self._spec: StudySpec = job.spec
        self._launcher = launcher
        self._signals = signals
        self._budget = Budget(job.spec.budget, job.study.elapsed, job.world_size)
        self._space = plan.space(job.spec, launcher)
        self._calibration = Calibration(
            job.spec.full_baseline(), job.spec.measurement.baseline_runs, job.known_sigma()
        )
        before = len(self._attempts())
        self._sampler = sampler(
            self._spec.sampler,
            self._space,
            self._spec.seed + before,
            plan.memory_of_rank(self._spec, launcher.slots[0]),
        )
        self._ledger = self._open_ledger()

    def run(self) -> Verdict:
        """Search, confirm, conclude.

        Raises:
            BadInput: the baseline cannot run here, with the reason.
            Stopped, LeaseLost: see Signals.
        """
        self._check_baseline()
        bench = Bench(self._job, self._launcher.slots)
        bench.sigma_run = self._calibration.noise(self._attempts()).sigma_run
        try:
            opening = Opening(self._job, self._space, self._launcher, self._signals.check)
            for suggestion in opening.run(bench, self._ledger):
                self._say(f"To be tried first: {suggestion.reason}.")
            reason = self._search(bench)
            self._say(f"The search ends: {reason}.")
            self._explain()
            facts = plan.facts(self._spec, self._launcher)
            finals = Finals(
                self._job, bench, facts, self._signals.check, lambda: self._budget.out_of_time
            )
            confirmation = finals.run()
        finally:
            bench.abandon()
        if confirmation is None:
            return no_result(self._attempts())
        end = end_of_baseline(self._attempts(), self._spec.full_baseline())
        return conclude(confirmation, self.unit, self._job.world_size, finals.checks(), end)

    @property
    def ledger(self) -> TrialLedger:
        """The study's trials in Optuna."""
        return self._ledger

    @property
    def unit(self) -> str:
        """Of the objective."""
        return self._spec.objective.unit

    def _open_ledger(self) -> TrialLedger:
        ledger = TrialLedger(self._job.repository.database, self._job.study.name, self._sampler)
        if not ledger.trials():
            for reason in self._space.left_out:
                self._say(f"Left out: {reason}.")
            distributions = self._space.distributions()
            baseline = self._spec.full_baseline()
            ledger.enqueue({name: baseline[name] for name in distributions}, "baseline")
            ledger.name_objective(f"throughput, {self.unit}")
        return ledger

    def _check_baseline(self) -> None:
        fixed = self._spec.objective.global_batch
        if fixed and (refused := refused_global_batch(fixed, self._job.world_size)):
            raise BadInput(f"objective.global_batch: {refused}")
        problems = self._space.problems({})
        if problems:
            raise BadInput(
                "the baseline cannot run here: " + "; ".join(problems) + "; change `baseline`"
            )

    # The search

    def _search(self, bench: Bench) -> str:
        """Run trials until the budget is spent; returns why it ended."""
        unlaunched = self._recover()
        reason = ""
        while True:
            self._signals.check()
            # Trials that were begun before are finished, whatever the budget: none stays open.
            while bench.has_free_slot and unlaunched:
                self._launch(bench, unlaunched.pop(0))
            while bench.has_free_slot and self._run_baseline_again(bench):
                pass
            while bench.has_free_slot and not reason:
                reason = self._why_enough(bench) or self._launch_next(bench)
            if bench.idle and not unlaunched:
                return reason
            for finished in bench.finished(_POLL_SECONDS):
                if finished.attempt.purpose == Purpose.CALIBRATE:
                    self._learn_noise(bench)
                else:
                    self._tell(finished, unlaunched)

    def _why_enough(self, bench: Bench) -> str:
        trials, attempts = self._ledger.trials(), self._attempts()
        if reason := self._budget.why_enough(trials, attempts):
            return reason
        if any(trial.state == TrialState.WAITING for trial in trials):
            return ""
        measured = sum(a.purpose == Purpose.SEARCH and a.recorded for a in attempts)
        expected = self._sampler.prediction(trials)
        return self._budget.why_not_worth_it(expected, measured, bench.sigma_run)

    def _explain(self) -> None:
        """Say what the sampler's model expects by now, if it has one."""
        if expected := self._sampler.prediction(self._ledger.trials()):
            changed = difference(self._space.complete(expected.params), self._spec.full_baseline())
            self._say(
                f"The model takes {changed} for the best, with {quantity(expected.value)} "
                f"{self.unit}, and expects one more trial to bring {expected.gain:.2%}."
            )

    def _launch_next(self, bench: Bench) -> str:
        if not self._sampler.has_more(self._ledger.trials()):
            return "every feasible configuration has been tried"
        self._launch(bench, self._ledger.ask(self._space.distributions()))
        return ""

    def _launch(self, bench: Bench, trial: FrozenTrial) -> None:
        knobs = self._space.complete(trial.params)
        # The baseline is never stopped early: everything is compared with it.
        racing = knobs != self._spec.full_baseline()
        bench.start(trial.number, knobs, incumbent_low=self._incumbent_low() if racing else 0.0)

    def _run_baseline_again(self, bench: Bench) -> bool:
        attempts = self._attempts()
        own = self._calibration.due(attempts)
        if own is None:
            return False
        again = [a for a in attempts if a.purpose == Purpose.CALIBRATE]
        number = 1 + sum(a.running or a.recorded for a in again)  # a lost one is repeated
        bench.start(own.trial, own.knobs, Purpose.CALIBRATE, round_=number)
        return True

    def _learn_noise(self, bench: Bench) -> None:
        found = self._calibration.noise(self._attempts())
        bench.sigma_run = found.sigma_run
        self._job.record_noise(StoredNoise(**vars(found)))

    def _tell(self, finished: Finished, unlaunched: list[FrozenTrial]) -> None:
        number = finished.attempt.trial
        if finished.result.state == LOST:
            self._say(f"Trial {number}: {finished.result.cause}; it is launched again.")
            unlaunched.append(self._ledger.trials()[number])
            return
        note = trial_note(finished.attempt, finished.result, self.unit)
        self._ledger.tell(number, finished.result, note)

    def _recover(self) -> list[FrozenTrial]:
        """Tell what was recorded but not told; returns trials that were asked for but not run."""
        recorded = {
            a.trial: a for a in self._attempts() if a.purpose == Purpose.SEARCH and a.recorded
        }
        unlaunched = []
        for trial in self._ledger.trials():
            if trial.state != TrialState.RUNNING:
                continue
            attempt = recorded.get(trial.number)
            if attempt is None:
                complete = self._ledger.complete_params(trial, self._space.distributions())
                unlaunched.append(complete)
            else:
                note = trial_note(attempt, attempt.result, self.unit)
                self._ledger.tell(trial.number, attempt.result, note)
        return unlaunched

    def _incumbent_low(self) -> float:
        lows = [
            a.result.throughput * (1 - a.result.half_width)
            for a in self._attempts()
            if a.result.state == "COMPLETE"
            and a.purpose == Purpose.SEARCH
            and a.result.throughput is not None
            and a.result.half_width is not None
        ]
        return max(lows, default=0.0)

    def _attempts(self) -> list[StoredAttempt]:
        return self._job.repository.attempts(self._job.study.id)

    def _say(self, message: str) -> None:
        self._job.repository.say(self._job.lease, self._job.study.id, message)
