"""Whether a study has searched enough. Pure, but for the clock."""

from collections.abc import Callable, Sequence

from optuna.trial import FrozenTrial, TrialState

from autotune.search.performance_model import Prediction
from autotune.spec import BudgetSpec
from storage import Attempts, AttemptState, Purpose

_CONFIRMATION_SHARE = 0.25
"""Of the wall time: kept back from the search."""
_BROKEN_AFTER = 5
"""When the first trials, and so many, all fail, it is the workload and not the knobs."""
_FEWEST_TRIALS = 6
"""Before the model's word that nothing is left to gain is taken for it."""
_SHARE_OF_NOISE = 0.1
_FAILURES = (AttemptState.ERROR, AttemptState.CRASH)


class Budget:
    """Of one study, some of which an earlier daemon may have spent."""

    def __init__(
        self, limits: BudgetSpec, elapsed: float, world_size: int, clock: Callable[[], float]
    ) -> None:
        """Go on counting from so many seconds, by the clock of the launcher."""
        self._limits = limits
        self._world_size = world_size
        self._clock = clock
        self._started = clock() - elapsed

    @property
    def out_of_time(self) -> bool:
        """Whether all wall time is spent, that of the confirmation included."""
        wall_time = self._limits.wall_time
        return wall_time is not None and self._elapsed() >= wall_time

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
        if limits.wall_time is not None:
            share = (1 - _CONFIRMATION_SHARE) * limits.wall_time
            if self._elapsed() >= share:
                return f"{share:.0f} s of the wall time are spent; the rest is for confirmation"
        if limits.device_hours is not None and self._device_hours(attempts) >= limits.device_hours:
            return f"the budget of {limits.device_hours:g} device hours is spent"
        ends = [trial.user_attrs.get("end") for trial in begun if trial.state.is_finished()]
        if len(ends) >= _BROKEN_AFTER and all(end in _FAILURES for end in ends):
            return "every trial ends in an error"
        return ""

    def _elapsed(self) -> float:
        return self._clock() - self._started

    def _device_hours(self, attempts: Attempts) -> float:
        searching = attempts.of(Purpose.SEARCH, Purpose.CALIBRATE, Purpose.FIT)
        spent = sum(a.result.wall_seconds for a in searching)
        return spent * self._world_size / 3600


def _launched(trials: Sequence[FrozenTrial], attempts: Attempts) -> int:
    launched = {a.trial for a in attempts.of(Purpose.SEARCH)}
    return sum(trial.number in launched for trial in trials)
