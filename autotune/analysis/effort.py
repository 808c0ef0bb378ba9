"""Cost of a study, time that it would still take, and benefit of its recommendation. Pure."""

from dataclasses import dataclass
from typing import Self

from autotune.analysis.confirmation import Confirmation
from autotune.analysis.outcomes import Failure
from autotune.analysis.proof import Proof
from autotune.analysis.shortfall import WallTime, shortfall

_HOURS_OF_A_DAY = 24.0
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Effort:
    """Cost of a study.

    Attributes:
        spent: seconds of all of its runs together, each on all ranks.
        missing: seconds of wall time that would lead further; None: none would, or it is not known.
        step: seconds of a step of the configuration that it recommends.
        hindrance: failure or reason because of which no time would help; None if none is known.
    """

    spent: float = 0.0
    missing: float | None = None
    step: float = 0.0
    hindrance: Failure | None = None

    @classmethod
    def of(
        cls, confirmation: Confirmation | None, proof: Proof, wall_time: WallTime | None
    ) -> Self:
        """Return what the records say.

        Args:
            confirmation: as far as it went; None if there was nothing to confirm.
            proof: what the finals cost.
            wall_time: of the study; None: it has no limit.
        """
        spent = sum(attempt.result.wall_seconds for attempt in proof.attempts)
        missing, hindrance = shortfall(confirmation, proof, wall_time)
        step = 0.0
        if confirmation is not None and confirmation.rounds and confirmation.members():
            step = proof.costs.step(confirmation.candidates[confirmation.choice()].knobs)
        return cls(spent, missing, step, hindrance)


@dataclass(frozen=True)
class Price:
    """Cost and benefit of a recommendation.

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
        """Return the price of a configuration with this speed-up; None if its steps were not timed."""
        if not effort.step or not effort.spent or speedup <= 1:
            return None
        return cls(
            effort.spent * world_size / _SECONDS_PER_HOUR,
            _HOURS_OF_A_DAY * (1 - 1 / speedup),
            max(1, round(effort.spent / (effort.step * (speedup - 1)))),
        )
