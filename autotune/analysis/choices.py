"""Choice of the trials that are measured again, with what is expected of each. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from autotune.analysis.confirmation import shown
from autotune.analysis.contenders import expected_by_trial, most_promising_first
from storage import Attempts

_RUNNERS_UP = 3
"""Trials that are recorded besides the finalists, the most promising first."""


class ChoiceReason(StrEnum):
    """Reason why a trial is a finalist, or why it is not."""

    FINALIST = "finalist"
    """It is measured again."""
    REFUSED = "refused"
    """A check refuses it: numerics, data, memory."""
    PASSED_OVER = "passed_over"
    """It is slower beyond doubt, or there is no time for its check."""
    BEYOND = "beyond"
    """There is no room for it: `measurement.finalists`, or the time."""


@dataclass(frozen=True)
class FinalistChoice:
    """Decision whether a trial is measured again.

    Attributes:
        expected: speed-up over the baseline that the model of a step expected of it then; None if the
            model was not asked.
        detail: why a check refuses it; empty for any other reason.
    """

    trial: int
    expected: float | None
    reason: ChoiceReason
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the data for JSON."""
        return {**vars(self), "reason": self.reason.value}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Self:
        """Return the choice that `as_dict` wrote."""
        return cls(**{**body, "reason": ChoiceReason(body["reason"])})


def expected_gains(attempts: Attempts) -> dict[int, float]:
    """Return the speed-up that the model expects of the trials that it ranks, by number."""
    own, timed = attempts.baseline(), shown(attempts)
    if own is None or len(timed) < 2:
        return {}
    rates = expected_by_trial(timed)
    today = rates.get(own.trial, own.result.throughput)
    return {trial: rate / today for trial, rate in rates.items()} if today else {}


def choices(
    attempts: Attempts,
    finalists: Collection[int],
    refused: Mapping[int, str],
    passed_over: Collection[int],
) -> list[FinalistChoice]:
    """Return the finalists and the most promising others, each with its reason.

    Args:
        attempts: of a study.
        finalists: trials that are measured again, without the baseline.
        refused: trials that a check refuses, with what it found.
        passed_over: trials that are slower beyond doubt, or whose check takes too long.
    """
    own, expected = attempts.baseline(), expected_gains(attempts)
    every = [one for one in shown(attempts) if own is None or one.trial != own.trial]
    order = [one.trial for one in most_promising_first(every)]
    others = [trial for trial in order if trial not in finalists][:_RUNNERS_UP]

    def reason(trial: int) -> ChoiceReason:
        if trial in finalists:
            return ChoiceReason.FINALIST
        if trial in refused:
            return ChoiceReason.REFUSED
        return ChoiceReason.PASSED_OVER if trial in passed_over else ChoiceReason.BEYOND

    chosen = [trial for trial in order if trial in finalists or trial in others]
    return [
        FinalistChoice(trial, expected.get(trial), reason(trial), refused.get(trial, ""))
        for trial in chosen
    ]
