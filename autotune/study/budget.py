"""Whether a study has searched enough, whatever time there is. Pure."""

from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState
from scipy import stats

from autotune.search.performance_model import Prediction
from autotune.spec import BudgetSpec
from storage import Attempts, AttemptState, Purpose

_BROKEN_AFTER = 5
"""When the first trials, and so many, all fail, it is the workload and not the knobs."""
_FEWEST_TRIALS = 6
"""Before the model's word that nothing is left to gain is taken for it."""
_SHARE_OF_NOISE = 0.1
_TOLERABLE, _CHANCE = 0.02, 0.1
"""What may be left beyond the finalists when a search ends, and the chance that it is more."""
_SURPRISE = 0.025
"""Chance of residuals as large as those of a model that is not believed."""
_FAILURES = (AttemptState.ERROR, AttemptState.CRASH)


class Budget:
    """Of one study: trials, device hours, and what another trial is worth."""

    def __init__(self, limits: BudgetSpec, world_size: int) -> None:
        """Take in what is allowed, for trials of so many ranks."""
        self._limits = limits
        self._poor_since: int | None = None
        self._world_size = world_size

    def why_not_worth_it(self, prediction: Prediction | None, measured: int, sigma: float) -> str:
        """The reason why another trial is not worth its cost, in words; empty if it may be.

        Args:
            prediction: of the sampler's model, if it has one.
            measured: trials so far.
            sigma: relative standard deviation between equal runs: a gain far below it goes unseen.
        """
        least = self._limits.least_gain
        if prediction is None or not least or measured < _FEWEST_TRIALS:
            return ""
        worth = max(least, _SHARE_OF_NOISE * sigma)
        tolerable = max(_TOLERABLE, worth)
        chance = prediction.chance_of_more(tolerable)
        if prediction.gain >= worth or chance > _CHANCE or not _holds(prediction, measured):
            self._poor_since = None
            return ""
        self._poor_since = measured if self._poor_since is None else self._poor_since
        if self._poor_since == measured:  # one more before that is believed
            return ""
        return (
            f"another trial is expected to bring {prediction.gain:.2%}, less than the {worth:.2%} that "
            f"are worth it (budget.least_gain {least:.2%}, noise between runs {sigma:.1%}), and with "
            f"{1 - chance:.0%} nothing is faster than the finalists by more than {tolerable:.0%}"
        )

    def why_enough(self, trials: Sequence[FrozenTrial], attempts: Attempts) -> str:
        """The reason to end the search, in words; empty while there is none."""
        limits = self._limits
        begun = [trial for trial in trials if trial.state != TrialState.WAITING]
        if limits.trials is not None and _launched(begun, attempts) >= limits.trials:
            return f"the budget of {limits.trials} trials is spent"
        if limits.device_hours is not None and self._device_hours(attempts) >= limits.device_hours:
            return f"the budget of {limits.device_hours:g} device hours is spent"
        ends = [trial.user_attrs.get("end") for trial in begun if trial.state.is_finished()]
        if len(ends) >= _BROKEN_AFTER and all(end in _FAILURES for end in ends):
            return "every trial ends in an error"
        return ""

    def _device_hours(self, attempts: Attempts) -> float:
        searching = attempts.of(Purpose.SEARCH, Purpose.CALIBRATE, Purpose.FIT)
        spent = sum(a.result.wall_seconds for a in searching)
        return spent * self._world_size / 3600


def _holds(prediction: Prediction, measured: int) -> bool:
    """Whether measurements lie no farther from what the model makes of all others than by chance."""
    return prediction.surprise <= float(stats.chi2.isf(_SURPRISE, measured)) / measured


def _launched(trials: Sequence[FrozenTrial], attempts: Attempts) -> int:
    launched = {a.trial for a in attempts.of(Purpose.SEARCH)}
    return sum(trial.number in launched for trial in trials)
