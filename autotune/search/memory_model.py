"""Probability that a configuration runs out of memory, learnt from those that did and did not.

Memory grows with the micro-batch, whatever else is chosen, so there is a largest one that fits. Its
logarithm is the sum of a base and of one shift per value of every knob that changes memory. Base
and shifts are drawn from the posterior by random walks. Accumulation has one small shift for all
its values but 1: gradients that wait for the next micro-batch are there during its forward pass,
however many of those there are.

Where the share of its memory that a rank took at its peak is known, it tells more than a fit alone.
What does not grow with the micro-batch can only leave more room, so memory / peak times the
micro-batch fits as well; and two peaks of one class with different micro-batches lie on a line that
meets the limit.

The risks and widths below were chosen on the recorded table translation, the only one in which
configurations run out of memory; over 20 seeds the sampler launched 0.55 of those a search, TPE 7.2
(docs/results/README.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from autotune.search.grid import Grid, Matrix, Rows, Vector
from autotune.search.splits import ACCUMULATION, MICRO_BATCH
from search_spaces import CATALOGUE

# The smallest numbers that find the edge reliably: each costs time in every suggestion
# (benchmarks/suggestion_cost.py).
_DRAWS = 2500
_WALKERS = 200
_SWEEPS = 24
_JUDGES = 100
"""Number of walkers that are evaluated for every candidate."""
_TELLING = 50
"""Number of rows of each kind that are considered: those closest to the limit."""
_PER_OCTAVE = 0.06
"""Risk of twice the largest micro-batch that has fitted."""
_SHIFT = 0.35
"""Standard deviation of a shift, in octaves of micro-batch."""
_WAITING = 0.15
"""Standard deviation of the shift of waiting gradients, in octaves.

They are few beside activations wherever the micro-batch is what does not fit."""
_BLUR = 0.06
"""Width of the edge in octaves: scale of a logistic distribution."""
_SUREST = 20.0
"""Largest evidence of one row against a draw, in nats."""
_HEADROOM = 0.95
"""Usable share of a rank's memory: allocators lose some to fragments."""
_UNSURE, _UNSURE_PER_OCTAVE = 0.3, 0.15
"""Uncertainty of the limit that two peaks give, in octaves, and its growth with the distance."""
_BELOW, _BEYOND = 1.0, 8.0
"""Octaves around those of the search space in which the largest micro-batch that fits lies."""


class MemoryModel:
    """Model of memory in one search space."""

    def __init__(
        self, grid: Grid, fitted: Rows, failed: Rows, shares: Vector | None = None
    ) -> None:
        """Learn from earlier trials.

        Args:
            grid: the search space.
            fitted: rows that ran.
            failed: rows that ran out of memory.
            shares: peak of each row that ran, as a share of a rank's memory; NaN: unknown.
        """
        self._grid = grid
        self._names = [
            name
            for name in grid.names
            if name not in CATALOGUE or CATALOGUE[name].memory
            if name not in (MICRO_BATCH, ACCUMULATION)
        ]
        # If accumulation follows from the micro-batch, it also decides whether gradients wait.
        self._accumulates = ACCUMULATION in grid.names and grid.has_sizes(ACCUMULATION)
        self._sized = grid.has_sizes(MICRO_BATCH)
        self._axes = [grid.names.index(name) for name in self._names]
        self._fitted, self._failed = fitted, failed
        self._walkers: Matrix | None = None
        if not self._sized:
            return
        self._fits_to, self._fails_from = self._octaves(fitted), self._octaves(failed)
        self._beyond = failed
        if shares is not None:
            self._learn_from_peaks(shares)
        if len(self._beyond):
            self._told = self._most_telling()
            self._walkers = self._walk()[:_JUDGES]

    def risk(self, rows: Rows) -> Vector:
        """Return the probability of each row to run out of memory."""
        if not self._sized:
            return np.zeros(len(rows))
        if self._walkers is None:
            return self._untouched(rows)
        largest = _largest(self._walkers, self._shifted(rows))
        risk: Vector = special.expit((self._octaves(rows) - largest) / _BLUR).mean(axis=0)
        return np.where(self._at_least(rows, self._failed), 1.0, risk)

    def _at_least(self, rows: Rows, failed: Rows) -> NDArray[np.bool_]:
        """Return whether each row needs at least the memory of one that failed.

        It has at least that micro-batch, waiting gradients if the failed one had them, and all else
        alike.
        """
        same = (rows[:, None, self._axes] == failed[None, :, self._axes]).all(axis=2)
        larger = self._octaves(rows)[:, None] >= self._octaves(failed)[None, :]
        waiting = self._waiting(rows)[:, None] >= self._waiting(failed)[None, :]
        covered: NDArray[np.bool_] = (same & larger & waiting).any(axis=1)
        return covered

    def _waiting(self, rows: Rows) -> Vector:
        """Return 1 where gradients wait for the next micro-batch, else 0."""
        if not self._accumulates:
            return np.zeros(len(rows))
        return (self._grid.numbers(rows, ACCUMULATION) > 1).astype(float)

    def _shifted(self, rows: Rows) -> Matrix:
        """Return (rows, shifts): 1 where a shift applies to a row, else 0.

        The last shift is that of waiting gradients.
        """
        known = self._grid.indicators(rows, self._names)
        return np.column_stack([known, self._waiting(rows)])

    def _untouched(self, rows: Rows) -> Vector:
        """Return the risk while nothing has failed.

        It grows with the distance beyond what has fitted.
        """
        known = self._fits_to
        largest = float(known.max()) if len(known) else float(self._octaves(self._all()).min())
        beyond = np.maximum(0.0, self._octaves(rows) - largest)
        chance: Vector = 1 - (1 - _PER_OCTAVE) ** beyond
        return chance

    def _learn_from_peaks(self, shares: Vector) -> None:
        sizes = 2**self._fits_to
        room = np.where(np.isnan(shares), 1.0, _HEADROOM / shares)
        self._fits_to = self._fits_to + np.log2(np.maximum(1.0, room))
        classes: dict[tuple[int, ...], list[int]] = {}
        waiting = self._waiting(self._fitted)
        for number in np.flatnonzero(~np.isnan(shares)):
            alike = (*self._fitted[number, self._axes], waiting[number])
            classes.setdefault(alike, []).append(int(number))
        for own in classes.values():
            other = max(own, key=lambda i: sizes[i])
            smaller = [i for i in own if sizes[i] < sizes[other] and shares[i] < shares[other]]
            if not smaller:
                continue
            one = max(smaller, key=lambda i: sizes[i])
            slope = (shares[other] - shares[one]) / (sizes[other] - sizes[one])
            largest = np.log2(sizes[other] + max(0.0, _HEADROOM - shares[other]) / slope)
            unsure = _UNSURE + _UNSURE_PER_OCTAVE * (largest - np.log2(sizes[other]))
            self._fits_to[other] = max(self._fits_to[other], largest - unsure)
            self._beyond = np.concatenate([self._beyond, self._fitted[[other]]])
            self._fails_from = np.append(self._fails_from, largest + unsure)

    def _most_telling(self) -> "_Told":
        fits = np.argsort(-self._fits_to, kind="stable")[:_TELLING]
        fails = np.argsort(self._fails_from, kind="stable")[:_TELLING]
        return _Told(
            self._shifted(np.concatenate([self._fitted[fits], self._beyond[fails]])),
            np.concatenate([self._fits_to[fits], self._fails_from[fails]]),
            np.concatenate([np.ones(len(fits)), -np.ones(len(fails))]),
        )

    def _walk(self) -> Matrix:
        """Draw (base, shifts...) from the posterior: (walkers, 1 + shifts)."""
        random = np.random.default_rng(0)
        sizes = self._octaves(self._all())
        low, high = sizes.min() - _BELOW, sizes.max() + _BEYOND
        shifts = sum(self._grid.count(name) for name in self._names)
        width = 1 + shifts + 1
        spread = np.array([_SHIFT] * shifts + [_WAITING])
        drawn = random.normal(0, 1, (_DRAWS, width))
        drawn[:, 1:] *= spread
        drawn[:, 0] = random.uniform(low, high, _DRAWS)
        # Start near the posterior: with those of many draws from the prior that fit best.
        odds = self._told.evidence(drawn)
        weights = np.exp(odds - odds.max())
        walkers = drawn[random.choice(_DRAWS, _WALKERS, p=weights / weights.sum())]
        likelihood = self._likelihood(walkers, low, high, spread)
        reach = np.append(1.0, spread / _SHIFT)
        for sweep in range(_SWEEPS):
            step = 0.6 if sweep % 2 else 0.15
            moved = walkers + reach * random.normal(0, step, walkers.shape) * (
                random.random(walkers.shape) < max(0.3, 2 / width)
            )
            proposed = self._likelihood(moved, low, high, spread)
            taken = np.log(random.random(_WALKERS)) < proposed - likelihood
            walkers[taken], likelihood[taken] = moved[taken], proposed[taken]
        return walkers

    def _likelihood(self, walkers: Matrix, low: float, high: float, spread: Vector) -> Vector:
        base = walkers[:, 0]
        prior = -((walkers[:, 1:] / spread) ** 2).sum(axis=1) / 2
        prior = np.where((base < low) | (base > high), -np.inf, prior)
        posterior: Vector = prior + self._told.evidence(walkers)
        return posterior

    def _octaves(self, rows: Rows) -> Vector:
        octaves: Vector = np.log2(self._grid.numbers(rows, MICRO_BATCH))
        return octaves

    def _all(self) -> Rows:
        """Return one row per micro-batch."""
        rows = np.zeros((self._grid.count(MICRO_BATCH), len(self._grid.names)), dtype=np.int64)
        rows[:, self._grid.names.index(MICRO_BATCH)] = np.arange(len(rows))
        return rows


@dataclass(frozen=True)
class _Told:
    """Evidence of the rows.

    Attributes:
        indicators: (rows, shifts): 1 where a shift applies to a row.
        octaves: micro-batch of each row that fitted or failed, in octaves.
        sides: 1 for a row that fitted, -1 for one that failed.
    """

    indicators: Matrix
    octaves: Vector
    sides: Vector

    def evidence(self, walkers: Matrix) -> Vector:
        """Return the logarithm of each walker's likelihood."""
        beyond = (self.octaves - _largest(walkers, self.indicators)) / _BLUR
        against = np.clip(self.sides * beyond, -_SUREST, _SUREST)
        evidence: Vector = -np.log1p(np.exp(against)).sum(axis=1)
        return evidence


def _largest(walkers: Matrix, indicators: Matrix) -> Matrix:
    """Return (walkers, rows): octaves of the largest micro-batch that fits."""
    largest: Matrix = walkers[:, :1] + walkers[:, 1:] @ indicators.T
    return largest


def rows_of(grid: Grid, configurations: Sequence[dict[str, object]]) -> Rows:
    """Return configurations as rows of the grid."""
    rows = [grid.encode(params) for params in configurations]
    return np.array(rows, dtype=np.int64).reshape(-1, len(grid.names))
