"""Time of a data-parallel training step, as a function of numbers to be learnt.

The time per sample is a sum of parts, each with a known shape and an unknown size:

t = (compute + loader + launching / m + (communication + optimizer) / (m a) + pressure * m +
synchronisation / (m a l)) * common

with micro-batch m, accumulation a and logging interval l; copies of batches count as loading.
Checkpointing every k-th block computes 1 / 3k of its step once more. Sizes are above 0, so their
logarithms are learnt: for each part the base, and the effects of the knobs that act on it
(search_spaces.Knob.parts). Where a step was profiled, its composition is an observation of the
bases. Besides its declared parts, each knob has some effect on the whole (`common`): processes that
load batches take cores from the computation. A knob of which nothing is known acts on every part,
and mostly on the whole.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from autotune.search.grid import Grid, Matrix, Params, Rows, Vector
from autotune.search.policy import SEARCH
from search_spaces import CATALOGUE
from search_spaces.batch import ACCUMULATION, MICRO_BATCH
from search_spaces.knob import PRESSURE

LOG_INTERVAL, CHECKPOINTING = "log_interval", "activation_checkpointing"
_PHYSICAL = (MICRO_BATCH, ACCUMULATION, LOG_INTERVAL)
_BASES: Mapping[str, tuple[float, float]] = {
    "compute": SEARCH.compute_prior,
    "loader": SEARCH.loader_prior,
    "launching": SEARCH.launching_prior,
    "communication": SEARCH.communication_prior,
    "optimizer": SEARCH.optimizer_prior,
    PRESSURE: SEARCH.pressure_prior,
    "synchronisation": SEARCH.synchronisation_prior,
}
"""Median of each part where its shape is 1, and standard deviation of its logarithm.

The shape is 1 at the smallest micro-batch without accumulation (pressure: at the largest); the unit
is the fastest time per sample."""
_MEASURED: Mapping[str, tuple[str, ...]] = {
    "loader": ("loader", "copies"),
    "communication": ("communication",),
    "optimizer": ("optimizer",),
    "synchronisation": ("synchronisation",),
}
"""Names in a profile of the parts that it measures.

A profile does not tell how much of the forward and backward pass is the same for every micro-batch:
compute, launching and pressure share the rest."""


@dataclass(frozen=True)
class Profile:
    """Measured composition of a configuration's step.

    Attributes:
        params: parameters of the configuration.
        shares: shares of its time by part of a profile (search_spaces.knob.PARTS).
    """

    params: Params
    shares: Mapping[str, float]


@dataclass(frozen=True)
class Features:
    """Rows as the parts use them.

    Attributes:
        shapes: shape of each part, (rows,).
        effects: effects on each part, (distinct rows, its coefficients).
        back: for each part, the distinct row of every row.
        common: (rows, coefficients of the whole).
    """

    shapes: Mapping[str, Vector]
    effects: Mapping[str, Matrix]
    back: Mapping[str, Rows]
    common: Matrix


class Parts:
    """Parts of the time in one search space. All learnt numbers are one vector of coefficients.

    Attributes:
        knobs: knobs that have effects.
        unknown: for each knob, True if nothing is known of it.
        mean: prior mean of each coefficient.
        scale: prior standard deviation of each coefficient; for an effect in units of its knob's.
        knob: number of each coefficient's knob; -1: a base.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        acting = {part: _acting_on(part, grid) for part in _BASES}
        self._acting = {p: names for p, names in acting.items() if names or p != "loader"}
        self.knobs = [name for name in grid.names if name not in _PHYSICAL]
        self.unknown = np.array([name not in CATALOGUE for name in self.knobs], dtype=bool)
        self._roots = {name: self._root(name) for name in self.knobs}
        mean: list[float] = []
        scale: list[float] = []
        knob: list[int] = []
        self._slices: dict[str, slice] = {}
        for part, names in self._acting.items():
            base, spread = _BASES[part]
            begin = len(mean)
            mean.append(math.log(base))
            scale.append(spread)
            knob.append(-1)
            for name in names:
                count = grid.count(name)
                mean += [0.0] * count
                scale += [1.0 if name in CATALOGUE else SEARCH.unexpected_effect] * count
                knob += [self.knobs.index(name)] * count
            self._slices[part] = slice(begin, len(mean))
        begin = len(mean)
        for number, name in enumerate(self.knobs):
            count = grid.count(name)
            mean += [0.0] * count
            scale += [SEARCH.unexpected_effect if name in CATALOGUE else 1.0] * count
            knob += [number] * count
        self._common = slice(begin, len(mean))
        self.mean, self.scale, self.knob = np.array(mean), np.array(scale), np.array(knob)

    def measure(self, profile: Profile, time: float) -> None:
        """Replace orders of magnitude by a measurement, as far as it tells.

        From now on effects are relative to the profiled configuration, and bases are its parts.

        Args:
            time: time per sample of that configuration.
        """
        row = self._grid.encode(profile.params)
        shapes = self._shapes(row[None, :])
        for name, root in self._roots.items():
            self._roots[name] = root - root[row[self._grid.names.index(name)]]
        for part, names in _MEASURED.items():
            if part not in self._slices:
                continue
            base = self._slices[part].start
            share = max(SEARCH.profile_least, sum(profile.shares.get(name, 0.0) for name in names))
            told = math.log(share * time / float(shapes[part][0]))
            error = math.hypot(SEARCH.profile_error, SEARCH.profile_least / share)
            weight, before = error**-2, self.scale[base] ** -2
            self.mean[base] = (weight * told + before * self.mean[base]) / (weight + before)
            self.scale[base] = (weight + before) ** -0.5

    def features(self, rows: Rows) -> Features:
        """Return what `value` and `slopes` need of the rows."""
        own = {n: self._roots[n][rows[:, self._grid.names.index(n)]] for n in self.knobs}
        effects, back = {}, {}
        for part, names in self._acting.items():
            first, back[part] = self._grid.distinct(rows, names)
            columns = [own[name][first] for name in names]
            effects[part] = np.concatenate([np.ones((len(first), 1)), *columns], axis=1)
        common = np.concatenate([np.zeros((len(rows), 0)), *own.values()], axis=1)
        return Features(self._shapes(rows), effects, back, common)

    def value(self, features: Features, coefficients: Matrix) -> Matrix:
        """Return (rows, draws): log time per sample, for coefficients (coefficients, draws)."""
        total = sum(self._times(features, coefficients).values(), np.zeros(()))
        value: Matrix = np.log(total) + features.common @ coefficients[self._common]
        return value

    def slopes(self, features: Features, coefficients: Vector) -> tuple[Vector, Matrix]:
        """Return the log time for one vector of coefficients, and its derivatives.

        Their shapes are (rows,) and (rows, coefficients).
        """
        times = self._times(features, coefficients[:, None])
        total = sum(times.values(), np.zeros(()))
        own = [times[part] / total * features.effects[part][features.back[part]] for part in times]
        value = np.log(total)[:, 0] + features.common @ coefficients[self._common]
        return value, np.concatenate([*own, features.common], axis=1)

    def _times(self, features: Features, coefficients: Matrix) -> dict[str, Matrix]:
        return {
            part: features.shapes[part][:, None]
            * np.exp(features.effects[part] @ coefficients[own])[features.back[part]]
            for part, own in self._slices.items()
        }

    def _root(self, name: str) -> Matrix:
        """Return a root of the correlation between effects of a knob's values.

        Only effects of numbers are correlated.
        """
        rows = np.zeros((self._grid.count(name), len(self._grid.names)), dtype=np.int64)
        rows[:, self._grid.names.index(name)] = np.arange(len(rows))
        apart = self._grid.distance(rows, rows, [name])
        numbers = self._grid.has_numbers(name) and len(rows) > 1
        alike = np.exp(-apart) if numbers else np.eye(len(rows))
        root: Matrix = linalg.cholesky(alike + 1e-9 * np.eye(len(rows)), lower=True)
        return root

    def _shapes(self, rows: Rows) -> dict[str, Vector]:
        """Return the size of each part, relative to its largest."""
        micro_batch = self._relative(rows, MICRO_BATCH)
        per_step = 1 / (micro_batch * self._relative(rows, ACCUMULATION))
        return {
            "compute": 1 + SEARCH.forward_share * self._recomputed(rows),
            "loader": np.ones(len(rows)),
            "launching": 1 / micro_batch,
            "communication": per_step,
            "optimizer": per_step,
            PRESSURE: micro_batch / _span(self._grid, MICRO_BATCH),
            "synchronisation": per_step / self._relative(rows, LOG_INTERVAL),
        }

    def _recomputed(self, rows: Rows) -> Vector:
        """Return the share of blocks whose forward pass happens twice."""
        if not self._grid.has_numbers(CHECKPOINTING):
            return np.zeros(len(rows))
        every = self._grid.numbers(rows, CHECKPOINTING)
        share: Vector = np.where(every > 0, 1 / np.maximum(every, 1), 0.0)
        return share

    def _relative(self, rows: Rows, name: str) -> Vector:
        """Return a number relative to its smallest value; 1 where it does not vary."""
        if not self._grid.has_sizes(name):
            return np.ones(len(rows))
        return self._grid.numbers(rows, name) / self._grid.extremes(name)[0]


def _span(grid: Grid, name: str) -> float:
    """Return the ratio of the largest to the smallest value of a parameter above 0; 1 without one."""
    if not grid.has_sizes(name):
        return 1.0
    low, high = grid.extremes(name)
    return high / low


def _acting_on(part: str, grid: Grid) -> list[str]:
    """Return the knobs that change the size of a part.

    A knob of which nothing is known may change any part.
    """
    return [
        name
        for name in grid.names
        if name not in _PHYSICAL and (name not in CATALOGUE or part in CATALOGUE[name].parts)
    ]
