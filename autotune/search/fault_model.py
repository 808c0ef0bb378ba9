"""How likely a configuration is to fail as others have, whose cause nobody has told.

A cause is a value of one knob, or of two together. It explains a failure if the configuration that
failed has it, and none that worked has. Chance is an explanation, too.

The odds below are a choice, not a measurement: one value alone is the simpler explanation, and what
worked rules causes out whatever they are. tests/unit/test_fault_model.py says what they amount to.
"""

import numpy as np
from numpy.typing import NDArray

from autotune.search.grid import Grid, Matrix, Rows, Vector

_ALONE, _TOGETHER, _CHANCE = 1.0, 0.5, 1.0
"""How likely each kind of cause is to begin with."""
_SHARED = 4.0
"""How much likelier a cause becomes by every further failure that it would explain."""
_MOST = 50
"""Failures that are looked at, the latest."""


class FaultModel:
    """For one search space."""

    def __init__(self, grid: Grid, worked: Rows, failed: Rows) -> None:
        """Learn from what was tried.

        Args:
            grid: the search space.
            worked: rows that ran.
            failed: rows that failed; for want of memory, where no model of that can tell.
        """
        width = len(grid.names)
        # (knob, knob): a value alone on the diagonal, two together above it.
        self._prior = _ALONE * np.eye(width) + _TOGETHER * np.triu(np.ones((width, width)), 1)
        self._worked = worked
        self._failed = failed[-_MOST:]

    def risk(self, rows: Rows) -> Vector:
        """Return the probability of each row to fail."""
        sound = np.ones(len(rows))
        for failure in self._failed:
            causes = self._causes(failure)
            has = (rows == failure).astype(float)
            mass = ((has @ causes) * has).sum(axis=1)
            sound *= 1 - mass / (_CHANCE + causes.sum())
        return 1 - sound

    def _causes(self, failure: NDArray[np.int64]) -> Matrix:
        """Return how likely each cause is; 0: something that worked has it, too."""
        harmless = _together(self._worked, failure) > 0
        further = _together(self._failed, failure) - 1
        weights: Matrix = np.where(harmless, 0.0, self._prior * _SHARED**further)
        return weights


def _together(rows: Rows, failure: NDArray[np.int64]) -> Matrix:
    """(knob, knob): how many rows have both values of the failure."""
    has = (rows == failure).astype(float)
    pairs: Matrix = has.T @ has
    return pairs
