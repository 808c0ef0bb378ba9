"""Whether a study has searched enough, whatever time there is. Pure."""

from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

from autotune.search.performance_model import Prediction
from autotune.spec import BudgetSpec
from storage import Attempts, AttemptState, Purpose

_BROKEN_AFTER = 5
"""When the first trials, and so many, all fail, it is the workload and not the knobs."""
_FEWEST_TRIALS = 6
"""Before the model's word that nothing is left to gain is taken for it."""
_SHARE_OF_NOISE = 0.1
_FAILURES = (AttemptState.ERROR, AttemptState.CRASH)


class Budget:
    """Of one study: trials, device hours, and what another trial is worth."""

    def __init__(self, limits: BudgetSpec, world_size: int) -> None:
        """Take in what is allowed, for trials of so many ranks."""
        self._limits = limits
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
        if prediction.gain >= worth:
            return ""
        return (
            f"another trial is expected to bring {prediction.gain:.2%}, less than the {worth:.2%} that "
            f"are worth it (budget.least_gain {least:.2%}, noise between runs {sigma:.1%})"
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


def _launched(trials: Sequence[FrozenTrial], attempts: Attempts) -> int:
    launched = {a.trial for a in attempts.of(Purpose.SEARCH)}
    return sum(trial.number in launched for trial in trials)
