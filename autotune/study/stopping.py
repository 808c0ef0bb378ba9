"""End of the search: its budget is spent, or another trial is not worth its cost. Pure.

A trial takes seconds on all ranks; a gain takes its share off the seconds of the job, on as many. So a
trial is worth it as long as its expected gain is above its seconds over those of the job (Xie et al.
2024, Cost-aware Bayesian optimization via the Pandora's box Gittins index, section 3.2: stop once no
acquisition exceeds its cost). Gains that the confirmation could not show are none. The rule depends on
the trials alone, so a later daemon decides the same.
"""

import math
import statistics
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Self

from optuna.trial import FrozenTrial, TrialState
from scipy import special

from autotune.analysis.wording import share_text
from autotune.config import BudgetSpec, StudySpec
from autotune.search.observations import NORMAL_95
from autotune.search.performance_model import Prediction
from autotune.search.trial_attributes import end_of, value_of
from autotune.study.policy import STUDY
from storage import SEARCH_RUNS, Attempts, AttemptState, Purpose, SearchEndCause

Predict = Callable[[list[FrozenTrial]], Prediction | None]
"""Prediction of the sampler's model from trials; None without a model, or with too few trials."""

FINEST_GAIN = 0.0001
"""Least expected gain that is told by a figure."""
_SECONDS_PER_HOUR = 3600.0
_FAILURES = (AttemptState.ERROR, AttemptState.CRASH)


@dataclass(frozen=True)
class SearchEnd:
    """Reason why a search ends: the cause as data, and in words."""

    cause: SearchEndCause
    text: str


class Budget:
    """Budget of one study in trials and device hours; a `TimeBudget` has its time."""

    def __init__(self, limits: BudgetSpec, world_size: int) -> None:
        """Take in the limits, for trials with this many ranks."""
        self._limits = limits
        self._world_size = world_size

    def why_spent(self, trials: Sequence[FrozenTrial], attempts: Attempts) -> SearchEnd | None:
        """Return why the budget is spent, or why no trial will run; None while neither holds."""
        limits = self._limits
        begun = [trial for trial in trials if trial.state != TrialState.WAITING]
        if limits.trials is not None and _launched(begun, attempts) >= limits.trials:
            text = f"the budget of {limits.trials} trials is spent"
            return SearchEnd(SearchEndCause.TRIALS, text)
        hours = limits.device_hours
        if hours is not None and self._device_hours(begun, attempts) >= hours:
            spent = self._device_hours([], attempts) >= hours
            what = "is spent" if spent else "will be spent by what runs"
            text = f"the budget of {hours:g} device hours {what}"
            return SearchEnd(SearchEndCause.DEVICE_HOURS, text)
        text = _all_fail([trial for trial in begun if trial.state.is_finished()])
        return SearchEnd(SearchEndCause.ALL_FAIL, text) if text else None

    def _device_hours(self, begun: Sequence[FrozenTrial], attempts: Attempts) -> float:
        """Return what the search has spent, and what its running trials usually take."""
        searching = attempts.of(*SEARCH_RUNS, Purpose.FIT)
        spent = sum(a.result.wall_seconds for a in searching)
        running = sum(trial.state == TrialState.RUNNING for trial in begun)
        spent += running * usual_seconds(attempts)
        return spent * self._world_size / _SECONDS_PER_HOUR


def usual_seconds(attempts: Attempts) -> float:
    """Return the usual seconds of a trial with the baseline beside it; 0 while none is recorded."""
    kinds = attempts.searched(), attempts.of(Purpose.PAIRED).recorded()
    return sum(statistics.median([a.result.wall_seconds for a in some] or [0.0]) for some in kinds)


def _all_fail(ended: Sequence[FrozenTrial]) -> str:
    """Return why trials show that none will run, in words; empty if they do not.

    A few errors show it. A trial that is out of memory, or has no step in its time, leaves hope that
    another one runs, so it takes more of these.
    """
    failed = (end_of(trial) in _FAILURES for trial in ended)
    if len(ended) >= STUDY.broken_after and all(failed):
        return "every trial ends in an error"
    if len(ended) >= STUDY.hopeless_after and all(value_of(trial) is None for trial in ended):
        return f"none of {len(ended)} trials has run"
    return ""


def _launched(trials: Sequence[FrozenTrial], attempts: Attempts) -> int:
    launched = {a.trial for a in attempts.of(Purpose.SEARCH)}
    return sum(trial.number in launched for trial in trials)


@dataclass(frozen=True)
class TrialEconomics:
    """Economics of a trial: what a gain saves, and what it has to be.

    Attributes:
        expected_job_hours: length of the job that the result is for.
        rounds: most rounds of the confirmation.
        min_improvement: gain that a trial has to bring, as the user says; None: what it costs.
    """

    expected_job_hours: float
    rounds: int
    min_improvement: float | None = None

    @classmethod
    def of(cls, spec: StudySpec) -> Self:
        """Return the economics of a study."""
        rounds = spec.measurement.rounds
        return cls(spec.objective.expected_job_hours, rounds, spec.budget.min_improvement)

    def cost(self, seconds: float) -> float:
        """Return the cost of a trial, as a share of the job."""
        return seconds / (self.expected_job_hours * _SECONDS_PER_HOUR)

    def visible(self, sigma: float) -> float:
        """Return the least difference that the confirmation can show, were its rounds separate runs."""
        return NORMAL_95 * sigma * math.sqrt(2 / self.rounds)

    def least(self, seconds: float, sigma: float) -> float:
        """Return the expected gain that a trial has to have.

        At least the smallest visible gain, times the chance at which the search may end: less is noise.
        """
        wanted = self.cost(seconds) if self.min_improvement is None else self.min_improvement
        return max(wanted, STUDY.chance_of_more * self.visible(sigma))

    @property
    def cause(self) -> SearchEndCause:
        """Cause of an end by this rule."""
        own = self.min_improvement is not None
        return SearchEndCause.MIN_IMPROVEMENT if own else SearchEndCause.NOT_WORTH_IT

    def told(self, seconds: float, sigma: float) -> str:
        """Return why the gain has to be that large, in words."""
        wanted = (
            f"{seconds:.3g} s are {self.cost(seconds):.2g} of a job of "
            f"{self.expected_job_hours:g} hours, objective.expected_job_hours"
            if self.min_improvement is None
            else f"budget.min_improvement {self.min_improvement:.2%}"
        )
        return f"{wanted}, noise between runs {sigma:.1%}"


class ExpectedGainStopping:
    """Stopping rule of one study: the expected gain of the next trial against its cost."""

    def __init__(self, economics: TrialEconomics, predict: Predict) -> None:
        """Take in the economics of a trial, and the prediction of what trials may bring."""
        self._economics = economics
        self._predict = predict

    def why_enough(
        self,
        trials: Sequence[FrozenTrial],
        seconds: float,
        sigma: float,
        barred: Container[int] = (),
    ) -> SearchEnd | None:
        """Return why another trial is not worth its cost; None if it may be.

        Args:
            trials: trials of the study; none of them waits.
            seconds: expected time of another trial.
            sigma: relative standard deviation between equal runs.
            barred: numbers of trials that may not be recommended: their speeds do not count.
        """
        ended = sorted(
            (t for t in trials if t.state.is_finished() and t.number not in barred),
            key=lambda trial: (trial.datetime_complete or trial.datetime_start, trial.number),
        )
        if self._economics.min_improvement == 0:
            return None
        text = self._brought_little(ended, seconds, sigma)
        text = text or self._expects_little(trials, ended, seconds, sigma)
        return SearchEnd(self._economics.cause, text) if text else None

    def _expects_little(
        self,
        trials: Sequence[FrozenTrial],
        ended: Sequence[FrozenTrial],
        seconds: float,
        sigma: float,
    ) -> str:
        """Return why the model expects too little of another trial, in words; empty if it does not.

        Args:
            ended: those that have ended, in the order of their ends.
        """
        if len(ended) <= STUDY.fewest_trials:
            return ""
        found = self._poor(trials, seconds, sigma)
        # One more before that is believed: it must have been so before the last trial as well.
        before = [trial for trial in trials if trial.number != ended[-1].number]
        if found is None or self._poor(before, seconds, sigma) is None:
            return ""
        worth, tolerable = self._limits(seconds, sigma)
        return (
            f"another trial is expected to bring {share_text(found.gain, FINEST_GAIN)}, less than the "
            f"{worth:.2%} that are worth it ({self._economics.told(seconds, sigma)}), and with "
            f"{1 - found.chance_of_more(tolerable):.0%} nothing is better than the finalists by more "
            f"than {tolerable:.0%}"
        )

    def _limits(self, seconds: float, sigma: float) -> tuple[float, float]:
        """Return the gain that a trial has to bring, and the gain that may be left."""
        worth = self._economics.least(seconds, sigma)
        return worth, max(STUDY.tolerable_gain, worth)

    def _poor(
        self, trials: Sequence[FrozenTrial], seconds: float, sigma: float
    ) -> Prediction | None:
        """Return the prediction if the model holds and it predicts too little; else None."""
        found = self._predict(list(trials))
        if found is None:
            return None
        worth, tolerable = self._limits(seconds, sigma)
        much = found.gain >= worth or found.chance_of_more(tolerable) > STUDY.chance_of_more
        return None if much or not _holds(found) else found

    def _brought_little(self, ended: Sequence[FrozenTrial], seconds: float, sigma: float) -> str:
        """Return why the later half of many trials has brought too little; empty if it has not.

        A model that does not hold would go on for as long as there are configurations.
        """
        later = len(ended) // 2
        if len(ended) < STUDY.long_search:
            return ""
        rates = [value_of(trial) or 0.0 for trial in ended]
        early, best = max(rates[:-later]), max(rates)
        each = self._economics.min_improvement or self._economics.cost(seconds)
        worth = max(later * each, self._economics.visible(sigma))
        if best > early * (1 + worth):
            return ""
        brought = share_text(best / early - 1, FINEST_GAIN) if early else "nothing"
        return (
            f"the last {later} of {len(ended)} trials brought {brought}, where {worth:.2%} would be "
            f"worth it ({self._economics.told(seconds, sigma)})"
        )


def _holds(prediction: Prediction) -> bool:
    """Return whether measurements lie no farther from leave-one-out predictions than by chance."""
    told = prediction.measured
    return prediction.surprise <= float(special.chdtri(told, STUDY.surprise_probability)) / told
