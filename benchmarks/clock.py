"""Time of trials over a recorded table on one slot, whose processes stay for what can live in them."""

import statistics
from collections.abc import Mapping
from typing import Any

from search_spaces import defaults
from search_spaces.constraints import why_not_taken_over

Values = Mapping[str, Any]
SWITCH = 0.1
"""Seconds until processes that are there run the next configuration, on two cores."""


class Clock:
    """Clock of one replay; the seconds of a row are those of its measurement.

    Attributes:
        spent: seconds so far.
    """

    def __init__(self, launch: float, known_as: Mapping[str, str]) -> None:
        """Take in the seconds of a launch, and what the knobs of the table are called in the replay."""
        self._launch = launch
        self._real = {shown: name for name, shown in known_as.items()}
        self._resident: Values | None = None
        self._measured: list[float] = []
        self.spent = 0.0

    def expected(self, values: Values) -> float:
        """Seconds of the next trial."""
        return self._begins(values) + statistics.median(self._measured or [0.0])

    def ran(self, values: Values, seconds: float, *, worked: bool) -> None:
        """Take in the end of a trial of these values, measured in so many seconds.

        A failed trial has taken its processes along.
        """
        self.spent += self._begins(values) + seconds
        self._measured.append(seconds)
        self._resident = self._whole(values) if worked else None

    def _begins(self, values: Values) -> float:
        live = self._resident is not None and not why_not_taken_over(
            self._resident, self._whole(values)
        )
        return SWITCH if live else self._launch

    def _whole(self, values: Values) -> Values:
        return {**defaults(), **{name: values[shown] for shown, name in self._real.items()}}
