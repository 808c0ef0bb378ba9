"""What a study has cost, what it would still take, and when it has paid. Pure."""

from dataclasses import dataclass
from typing import Self

from autotune.analysis.confirmation import Confirmation
from autotune.analysis.proof import Proof
from autotune.analysis.shortfall import WallTime, shortfall
from autotune.analysis.wording import duration

_HOURS_OF_A_DAY = 24.0
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Effort:
    """Of one study.

    Attributes:
        spent: seconds of all of its runs together, each on all ranks.
        missing: seconds of wall time that would lead further; None: none would, or it is not known.
        step: seconds of a step of the configuration that it recommends.
        hindrance: why time does not help, in words; empty where nothing is known to stand in the way.
    """

    spent: float = 0.0
    missing: float | None = None
    step: float = 0.0
    hindrance: str = ""

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
