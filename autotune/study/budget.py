"""Budget of the search in trials and device hours; time is the schedule's. Pure."""

from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

from autotune.config import BudgetSpec
from autotune.search.policy import SEARCH
from storage import Attempts, AttemptState, Purpose

_FAILURES = (AttemptState.ERROR, AttemptState.CRASH)


class Budget:
    """Budget of one study."""

    def __init__(self, limits: BudgetSpec, world_size: int) -> None:
        """Take in the limits, for trials with this many ranks."""
        self._limits = limits
        self._world_size = world_size

    def why_enough(self, trials: Sequence[FrozenTrial], attempts: Attempts) -> str:
        """Return why the budget ends the search, in words; empty while it does not."""
        limits = self._limits
        begun = [trial for trial in trials if trial.state != TrialState.WAITING]
        if limits.trials is not None and _launched(begun, attempts) >= limits.trials:
            return f"the budget of {limits.trials} trials is spent"
        if limits.device_hours is not None and self._device_hours(attempts) >= limits.device_hours:
            return f"the budget of {limits.device_hours:g} device hours is spent"
        ends = [trial.user_attrs.get("end") for trial in begun if trial.state.is_finished()]
        if len(ends) >= SEARCH.broken_after and all(end in _FAILURES for end in ends):
            return "every trial ends in an error"
        return ""

    def _device_hours(self, attempts: Attempts) -> float:
        searching = attempts.of(Purpose.SEARCH, Purpose.PAIRED, Purpose.CALIBRATE, Purpose.FIT)
        spent = sum(a.result.wall_seconds for a in searching)
        return spent * self._world_size / 3600


def _launched(trials: Sequence[FrozenTrial], attempts: Attempts) -> int:
    launched = {a.trial for a in attempts.of(Purpose.SEARCH)}
    return sum(trial.number in launched for trial in trials)
