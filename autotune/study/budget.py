"""Budget of the search in trials and device hours; time is the schedule's. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from autotune.config import BudgetSpec
from autotune.search.policy import SEARCH
from storage import Attempts, AttemptState, Purpose, SearchEndCause

_FAILURES = (AttemptState.ERROR, AttemptState.CRASH)


@dataclass(frozen=True)
class SearchEnd:
    """Reason why a search ends: the cause as data, and in words."""

    cause: SearchEndCause
    text: str


class Budget:
    """Budget of one study."""

    def __init__(self, limits: BudgetSpec, world_size: int) -> None:
        """Take in the limits, for trials with this many ranks."""
        self._limits = limits
        self._world_size = world_size

    def why_enough(self, trials: Sequence[FrozenTrial], attempts: Attempts) -> SearchEnd | None:
        """Return why the budget ends the search; None while it does not."""
        limits = self._limits
        begun = [trial for trial in trials if trial.state != TrialState.WAITING]
        if limits.trials is not None and _launched(begun, attempts) >= limits.trials:
            text = f"the budget of {limits.trials} trials is spent"
            return SearchEnd(SearchEndCause.TRIALS, text)
        if limits.device_hours is not None and self._device_hours(attempts) >= limits.device_hours:
            text = f"the budget of {limits.device_hours:g} device hours is spent"
            return SearchEnd(SearchEndCause.DEVICE_HOURS, text)
        ends = [trial.user_attrs.get("end") for trial in begun if trial.state.is_finished()]
        if len(ends) >= SEARCH.broken_after and all(end in _FAILURES for end in ends):
            return SearchEnd(SearchEndCause.ALL_FAIL, "every trial ends in an error")
        return None

    def _device_hours(self, attempts: Attempts) -> float:
        searching = attempts.of(Purpose.SEARCH, Purpose.PAIRED, Purpose.CALIBRATE, Purpose.FIT)
        spent = sum(a.result.wall_seconds for a in searching)
        return spent * self._world_size / 3600


def _launched(trials: Sequence[FrozenTrial], attempts: Attempts) -> int:
    launched = {a.trial for a in attempts.of(Purpose.SEARCH)}
    return sum(trial.number in launched for trial in trials)
