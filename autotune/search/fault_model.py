"""Probability that a configuration fails as earlier ones did, for causes that are unknown.

A cause is a value of one knob, or of two together. It explains a failure if the failed
configuration has it, and no configuration that worked has. Chance is an explanation, too.

The odds below are a choice, not a measurement: one value alone is the simpler explanation, and a
configuration that worked rules causes out whatever the odds. tests/unit/test_fault_model.py shows
what they amount to.
"""

import numpy as np
from numpy.typing import NDArray

from autotune.search.grid import Grid, Matrix, Rows, Vector
from autotune.search.policy import SEARCH


class FaultModel:
    """Model of failures in one search space."""

    def __init__(self, grid: Grid, worked: Rows, failed: Rows) -> None:
        """Learn from earlier trials.

        Args:
            grid: the search space.
            worked: rows that ran.
            failed: rows that failed; those out of memory only where no memory model can use them.
        """
        width = len(grid.names)
        # (knob, knob): a value alone on the diagonal, two together above it.
        pairs = np.triu(np.ones((width, width)), 1)
        self._prior = SEARCH.cause_alone * np.eye(width) + SEARCH.cause_together * pairs
        self._worked = worked
        self._failed = failed[-SEARCH.most_failures :]

    def risk(self, rows: Rows) -> Vector:
        """Return the probability of each row to fail."""
        sound = np.ones(len(rows))
        for failure in self._failed:
            causes = self._causes(failure)
            has = (rows == failure).astype(float)
            mass = ((has @ causes) * has).sum(axis=1)
            sound *= 1 - mass / (SEARCH.cause_chance + causes.sum())
        return 1 - sound

    def _causes(self, failure: NDArray[np.int64]) -> Matrix:
        """Return the weight of each cause; 0: a configuration that worked has it, too."""
        harmless = _together(self._worked, failure) > 0
        further = _together(self._failed, failure) - 1
        weights: Matrix = np.where(harmless, 0.0, self._prior * SEARCH.cause_shared**further)
        return weights


def _together(rows: Rows, failure: NDArray[np.int64]) -> Matrix:
    """Return (knob, knob): the number of rows that have both values of the failure."""
    has = (rows == failure).astype(float)
    pairs: Matrix = has.T @ has
    return pairs
