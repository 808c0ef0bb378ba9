"""Values of trials in Optuna: throughput over that of the first trial that was measured.

That trial is the baseline, unless it fails or another one ends before it on another slot. Samplers and
the stopping rule compare values with each other only, so that the unit changes nothing.
"""

import math

from autotune.analysis.wording import quantity
from storage import AttemptResult, Attempts, TrialLedger

_OVER = "throughput over "
"""First words of the objective's name where values are ratios; a study that an earlier version began
has rates, and goes on with them."""


class ObjectiveValues:
    """Unit of the values of one study, chosen when the first one is told."""

    def __init__(self, ledger: TrialLedger, unit: str) -> None:
        self._ledger = ledger
        self._unit = unit

    def of(self, told: AttemptResult, attempts: Attempts) -> float | None:
        """Return the value of a result; None if nothing was measured.

        Args:
            told: as if it had run where the baseline did.
            attempts: of the study, the one of the result among them.
        """
        if told.throughput is None:
            return None
        if not self._ledger.objective and not self._are_rates(attempts):
            self._name(attempts)
        if not self._ledger.objective.startswith(_OVER):
            return told.throughput
        return told.throughput / _reference(attempts)[1]

    def _are_rates(self, attempts: Attempts) -> bool:
        """Return whether values were told that are rates.

        The name of the objective does not tell it: optuna-dashboard loses it when it renames a study.
        """
        trial, rate = _reference(attempts)
        value = self._ledger.value(trial)
        return value is not None and math.isclose(value, rate)

    def text(self, value: float) -> str:
        """Return a value in words."""
        if not self._ledger.objective.startswith(_OVER):
            return f"{quantity(value)} {self._unit}"
        return f"{value:.2f}x {self._ledger.objective.removeprefix(_OVER)}"

    def _name(self, attempts: Attempts) -> None:
        trial, _ = _reference(attempts)
        own = attempts.baseline()
        yours = own is not None and own.trial == trial
        self._ledger.name_objective(_OVER + ("yours" if yours else f"trial {trial}"))


def _reference(attempts: Attempts) -> tuple[int, float]:
    """Return trial and rate of the result that was recorded first: the records alone decide."""
    measured = attempts.searched().measured()
    first = min(measured, key=lambda one: (one.ended or 0.0, one.id))
    assert first.result.throughput is not None
    return first.trial, first.result.throughput
