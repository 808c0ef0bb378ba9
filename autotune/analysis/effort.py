"""What a study has cost, what it would still take, and when it has paid. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from autotune.analysis.confirmation import Confirmation
from autotune.analysis.costs import Costs
from autotune.analysis.shortfall import seconds_missing
from autotune.analysis.wording import duration
from storage import Attempts

_HOURS_OF_A_DAY = 24.0
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Effort:
    """Of one study.

    Attributes:
        spent: seconds of all of its runs together, each on all ranks.
        missing: seconds of what would lead further.
        step: seconds of a step of the configuration that it recommends.
    """

    spent: float = 0.0
    missing: float = 0.0
    step: float = 0.0

    @classmethod
    def of(
        cls,
        confirmation: Confirmation | None,
        attempts: Attempts,
        costs: Costs,
        baseline: Mapping[str, Any],
    ) -> Self:
        """As it is recorded."""
        spent = sum(attempt.result.wall_seconds for attempt in attempts)
        missing = seconds_missing(confirmation, attempts, costs, baseline)
        if confirmation is None or not confirmation.rounds or not confirmation.members():
            return cls(spent, missing)
        chosen = confirmation.candidates[confirmation.choice()].knobs
        return cls(spent, missing, costs.step(chosen))


@dataclass(frozen=True)
class Price:
    """What a recommendation has cost, and what it brings.

    Attributes:
        device_hours: of all runs of the study.
        hours_saved_per_day: of training, as it was before.
        steps_to_pay: optimizer steps of the recommended configuration until the study has paid.
    """

    device_hours: float
    hours_saved_per_day: float
    steps_to_pay: int

    @classmethod
    def of(cls, effort: Effort, speedup: float, world_size: int) -> Self | None:
        """Of a configuration that is so many times faster; None where its steps were not timed."""
        if not effort.step or not effort.spent or speedup <= 1:
            return None
        return cls(
            effort.spent * world_size / _SECONDS_PER_HOUR,
            _HOURS_OF_A_DAY * (1 - 1 / speedup),
            max(1, round(effort.spent / (effort.step * (speedup - 1)))),
        )

    @property
    def sentence(self) -> str:
        """For the user."""
        saved = duration(self.hours_saved_per_day * _SECONDS_PER_HOUR)
        return (
            f" The study cost {self.device_hours:.2g} device hours; it saves {saved} of every day of "
            f"training, and has paid after {self.steps_to_pay:,} steps."
        )
