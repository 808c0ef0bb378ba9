"""Probability that a configuration fails: for want of memory, or as earlier ones did for other causes.

Memory grows with the micro-batch, whatever else is chosen, so there is a largest one that fits: the
edge. It lies above each micro-batch that fitted and below each that failed. Configurations with
another value of a knob that changes memory tell as well, with a margin for every such knob: a
standard error, as the knob may move the edge further. Where bounds contradict each other, those of
the nearest configurations count most.
Accumulation counts as one value or another: gradients that wait for the next micro-batch are there
during its forward pass, however many of those there are.

Where the share of its memory that a rank took at its peak is known, it tells more than a fit alone.
What does not grow with the micro-batch can only leave more room, so memory / peak times the
micro-batch fits as well; and two peaks of one class with different micro-batches lie on a line that
meets the limit.

Another cause is a value of one knob, or of two together. It explains a failure if the failed
configuration has it, and no configuration that worked has. Chance is an explanation, too. The odds
are a choice, not a measurement: one value alone is the simpler explanation, and a configuration that
worked rules causes out whatever the odds. tests/unit/test_fault_model.py shows what they amount to.
Where several failures have the same message, and one value alone in common that never worked, that
value is the cause for certain.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from autotune.search.grid import Grid, Matrix, Rows, Vector
from autotune.search.policy import SEARCH
from search_spaces import CATALOGUE
from search_spaces.batch import ACCUMULATION, MICRO_BATCH

_LOGISTIC_SCALE = math.sqrt(3) / math.pi
"""Scale of a logistic distribution whose standard deviation is 1."""
_OF_DEVICE = ("CUDA out of memory", "a CUDA device was out of memory")
"""Words of torch's allocator, and of a rank whose script has caught them."""


def is_of_device(cause: str) -> bool:
    """Return whether a failure for want of memory was one of a CUDA device for certain."""
    return any(words in cause for words in _OF_DEVICE)


def changes_memory(name: str, *, on_device: bool) -> bool:
    """Return whether a knob may change how much memory a rank takes, as any of a study's own may.

    Args:
        on_device: whether that of a CUDA device is meant alone.
    """
    knob = CATALOGUE.get(name)
    return knob is None or (knob.memory and not (on_device and knob.of_host))


class _Told(NamedTuple):
    """Rows that ran, or that did not.

    Attributes:
        octaves: micro-batch up to which each fits, or from which on it fails, in octaves.
    """

    rows: Rows
    octaves: Vector


class MemoryModel:
    """Model of memory in one search space."""

    def __init__(
        self,
        grid: Grid,
        fitted: Rows,
        failed: Rows,
        shares: Vector | None = None,
        *,
        on_device: bool = False,
    ) -> None:
        """Learn from earlier trials.

        Args:
            grid: the search space.
            fitted: rows that ran.
            failed: rows that ran out of memory.
            shares: peak of each row that ran, as a share of a rank's memory; NaN: unknown.
            on_device: whether it is the memory of a CUDA device.
        """
        self._grid = grid
        self._names = [
            name
            for name in grid.names
            if changes_memory(name, on_device=on_device)
            if name not in (MICRO_BATCH, ACCUMULATION)
        ]
        # If accumulation follows from the micro-batch, it also decides whether gradients wait.
        self._accumulates = ACCUMULATION in grid.names and grid.has_sizes(ACCUMULATION)
        self._sized = grid.has_sizes(MICRO_BATCH)
        if not self._sized:
            return
        self._fits = _Told(fitted, self._octaves(fitted))
        self._failed = self._without_doubtful(_Told(failed, self._octaves(failed)))
        self._fails = self._failed
        self._ran = self._fits
        if shares is not None:
            self._learn_from_peaks(shares)

    def risk(self, rows: Rows) -> Vector:
        """Return the probability of each row to run out of memory."""
        if not self._sized:
            return np.zeros(len(rows))
        if not len(self._fails.rows):
            return self._untouched(rows)
        chances, kinds = self._edges(rows)
        beyond = self._octaves(rows)[:, None] - self._places()[None, :]
        risk: Vector = (chances[kinds] * special.ndtr(beyond / SEARCH.edge_resolution)).sum(axis=1)
        risk[self._at_most(rows, self._ran).any(axis=1)] = 0.0
        risk[self._octaves(rows) >= self._failed_from(rows)] = 1.0
        return risk

    def _edges(self, rows: Rows) -> tuple[Matrix, NDArray[np.int64]]:
        """Return how likely each kind of row has its edge at each place, and the kind of each row."""
        _, alike = self._grid.distinct(rows, self._names)
        _, first, kinds = np.unique(
            2 * alike + self._waiting(rows), return_index=True, return_inverse=True
        )
        several, places = rows[first], self._places()
        fitted, failed = self._fits, self._fails
        likely = _log_likelihood(
            self._margins(several, fitted.rows), places[None, :] - fitted.octaves[:, None]
        ) + _log_likelihood(
            self._margins(several, failed.rows, failed=True),
            failed.octaves[:, None] - places[None, :],
        )
        weights = np.exp(likely - likely.max(axis=1, keepdims=True))
        chances: Matrix = weights / weights.sum(axis=1, keepdims=True)
        return chances, kinds

    def _places(self) -> Vector:
        """Return places where an edge may lie, in octaves: those of the space, and somewhat beyond."""
        sizes = self._all_octaves()
        end = sizes.max() + SEARCH.edge_beyond + SEARCH.edge_resolution
        return np.arange(sizes.min() - SEARCH.edge_beyond, end, SEARCH.edge_resolution)

    def _margins(self, rows: Rows, told: Rows, *, failed: bool = False) -> Matrix:
        """Return (rows, told): margin of the bound that each told row gives for the edge of a row.

        Gradients that wait only ever take memory: a row without them fits where one with them did.
        """
        alike = self._values(rows) @ self._values(told).T
        differ = len(self._names) - alike
        more = self._waiting(rows)[:, None] - self._waiting(told)[None, :]
        waiting = more < 0 if failed else more > 0
        margins: Matrix = np.sqrt(
            SEARCH.margin_per_knob**2 * differ + SEARCH.margin_of_waiting**2 * waiting
        )
        return margins

    def _without_doubtful(self, failed: _Told) -> _Told:
        """Return what failed, except where a row ran that surely needs at least as much.

        There it was not the memory of a rank, or others took some of it.
        """
        doubtful = self._at_least(self._fits.rows, failed).any(axis=0)
        return _Told(failed.rows[~doubtful], failed.octaves[~doubtful])

    def _at_least(self, rows: Rows, failed: _Told) -> NDArray[np.bool_]:
        """Return (rows, failed): whether each row surely needs at least the memory of each failed."""
        larger = self._octaves(rows)[:, None] >= failed.octaves[None, :]
        sure = self._margins(rows, failed.rows, failed=True) == 0
        covered: NDArray[np.bool_] = larger & sure
        return covered

    def _at_most(self, rows: Rows, ran: _Told) -> NDArray[np.bool_]:
        """Return (rows, ran): whether each row surely needs at most the memory of each that ran."""
        smaller = self._octaves(rows)[:, None] <= ran.octaves[None, :]
        covered: NDArray[np.bool_] = smaller & (self._margins(rows, ran.rows) == 0)
        return covered

    def _failed_from(self, rows: Rows) -> Vector:
        """Return the micro-batch from which on each row surely fails, in octaves; infinite: unknown."""
        sure = self._margins(rows, self._failed.rows, failed=True) == 0
        found: Vector = np.where(sure, self._failed.octaves, math.inf).min(axis=1, initial=math.inf)
        return found

    def _waiting(self, rows: Rows) -> NDArray[np.int64]:
        """Return 1 where gradients wait for the next micro-batch, else 0."""
        if not self._accumulates:
            return np.zeros(len(rows), dtype=np.int64)
        return (self._grid.numbers(rows, ACCUMULATION) > 1).astype(np.int64)

    def _untouched(self, rows: Rows) -> Vector:
        """Return the risk while nothing has failed.

        It grows with the distance beyond what has fitted.
        """
        known = self._fits.octaves
        largest = float(known.max() if len(known) else self._all_octaves().min())
        beyond = np.maximum(0.0, self._octaves(rows) - largest)
        chance: Vector = 1 - (1 - SEARCH.risk_per_octave) ** beyond
        return chance

    def _learn_from_peaks(self, shares: Vector) -> None:
        fitted, octaves = self._fits
        sizes = 2**octaves
        room = np.where(np.isnan(shares), 1.0, SEARCH.memory_headroom / shares)
        fits_to = octaves + np.log2(np.maximum(1.0, room))
        classes: dict[tuple[float, ...], list[int]] = {}
        values, waiting = self._values(fitted), self._waiting(fitted)
        for number in np.flatnonzero(~np.isnan(shares)):
            alike = (*values[number], waiting[number])
            classes.setdefault(alike, []).append(int(number))
        ends: dict[int, float] = {}
        for own in classes.values():
            other = max(own, key=lambda i: sizes[i])
            smaller = [i for i in own if sizes[i] < sizes[other] and shares[i] < shares[other]]
            if not smaller:
                continue
            one = max(smaller, key=lambda i: sizes[i])
            slope = (shares[other] - shares[one]) / (sizes[other] - sizes[one])
            largest = np.log2(
                sizes[other] + max(0.0, SEARCH.memory_headroom - shares[other]) / slope
            )
            beyond = largest - np.log2(sizes[other])
            unsure = SEARCH.limit_unsure + SEARCH.limit_unsure_per_octave * beyond
            fits_to[other] = max(fits_to[other], largest - unsure)
            ends[other] = largest + unsure
        self._fits = _Told(fitted, np.minimum(fits_to, self._failed_from(fitted)))
        self._fails = _Told(
            np.concatenate([self._failed.rows, fitted[list(ends)]]),
            np.concatenate([self._failed.octaves, list(ends.values())]),
        )

    def _values(self, rows: Rows) -> Matrix:
        """Return (rows, values of the knobs that change memory): 1 where a row has the value."""
        return self._grid.indicators(rows, self._names)

    def _octaves(self, rows: Rows) -> Vector:
        octaves: Vector = np.log2(self._grid.numbers(rows, MICRO_BATCH))
        return octaves

    def _all_octaves(self) -> Vector:
        """Return the micro-batches of the search space, in octaves."""
        rows = np.zeros((self._grid.count(MICRO_BATCH), len(self._grid.names)), dtype=np.int64)
        rows[:, self._grid.names.index(MICRO_BATCH)] = np.arange(len(rows))
        return self._octaves(rows)


def _log_likelihood(margins: Matrix, distances: Matrix) -> Matrix:
    """Return (kinds of rows, places): logarithm of how likely all bounds hold for an edge there.

    Args:
        margins: (kinds of rows, bounds): standard error of each bound.
        distances: (bounds, places): how far each place is on the right side of each bound, octaves.
    """
    found = np.zeros((len(margins), distances.shape[1]))
    for margin in np.unique(margins):
        scale = max(margin, SEARCH.edge_resolution) * _LOGISTIC_SCALE
        found += (margins == margin).astype(float) @ special.log_expit(distances / scale)
    return found


_FIGURE = re.compile(r"[0-9.]+")


class FaultModel:
    """Model of failures in one search space."""

    def __init__(
        self, grid: Grid, worked: Rows, failed: Rows, messages: Sequence[str] = ()
    ) -> None:
        """Learn from earlier trials.

        Args:
            grid: the search space.
            worked: rows that ran.
            failed: rows that failed; those out of memory only where no memory model can use them.
            messages: of each failure; empty where it has none.
        """
        width = len(grid.names)
        # (knob, knob): a value alone on the diagonal, two together above it.
        pairs = np.triu(np.ones((width, width)), 1)
        self._prior = SEARCH.cause_alone * np.eye(width) + SEARCH.cause_together * pairs
        self._worked = worked
        self._failed = failed[-SEARCH.most_failures :]
        self._certain = list(_certain(worked, failed, [_FIGURE.sub("0", one) for one in messages]))

    def risk(self, rows: Rows) -> Vector:
        """Return the probability of each row to fail."""
        sound = np.ones(len(rows))
        for failure in self._failed:
            causes = self._causes(failure)
            has = (rows == failure).astype(float)
            mass = ((has @ causes) * has).sum(axis=1)
            sound *= 1 - mass / (SEARCH.cause_chance + causes.sum())
        for knob, value in self._certain:
            sound[rows[:, knob] == value] = 0.0
        return 1 - sound

    def _causes(self, failure: NDArray[np.int64]) -> Matrix:
        """Return the weight of each cause; 0: a configuration that worked has it, too."""
        harmless = _together(self._worked, failure) > 0
        further = _together(self._failed, failure) - 1
        weights: Matrix = np.where(harmless, 0.0, self._prior * SEARCH.cause_shared**further)
        return weights


def _certain(worked: Rows, failed: Rows, messages: Sequence[str]) -> Iterator[tuple[int, np.int64]]:
    """Yield the values that alone explain failures with the same message, each with its knob."""
    for message in {one for one in messages if one and messages.count(one) > 1}:
        rows = failed[[one == message for one in messages]]
        shared = (rows == rows[0]).all(axis=0) & ~(worked == rows[0]).any(axis=0)
        if shared.sum() == 1:
            knob = int(np.argmax(shared))
            yield knob, rows[0][knob]


def _together(rows: Rows, failure: NDArray[np.int64]) -> Matrix:
    """Return (knob, knob): the number of rows that have both values of the failure."""
    has = (rows == failure).astype(float)
    pairs: Matrix = has.T @ has
    return pairs
