"""How the time of a data-parallel training step is made up, learnt from what was measured.

The time per sample is a sum of parts, each with a shape that is known and a size that is not:

    t = compute + loader + launch / m + (exchange + update) / (m a) + pressure * m + reading / (m a l)

with micro-batch m, accumulation a and logging interval l; checkpointing every k-th block computes 1 / 3k
of its step once more. Each other knob changes the sizes of the parts
that it acts on (search_spaces.Knob.parts); how much, is learnt: sizes are Gaussian processes over those
knobs, so that what was seen under one precision is a first guess under another. A small residual
over all knobs takes up what the sum cannot say. A knob that means nothing acts on every part.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from optuna.trial import FrozenTrial, TrialState
from scipy import linalg, stats

from autotune.search.grid import Grid, Matrix, Rows, Vector
from search_spaces import CATALOGUE
from search_spaces.knob import PARTS

MICRO_BATCH, ACCUMULATION, LOG_INTERVAL = "micro_batch", "accumulation_steps", "log_interval"
CHECKPOINTING = "activation_checkpointing"
_FORWARD_SHARE = 1 / 3
"""Of the arithmetic of a step: the backward pass has two matrix products for each one of the forward."""
_PHYSICAL = (MICRO_BATCH, ACCUMULATION, LOG_INTERVAL)
_MOST_OBSERVATIONS = 250
_UNKNOWN_NOISE = 0.03
_PRUNED_NOISE = 0.05
_NORMAL_95 = 1.96


@dataclass(frozen=True)
class Observations:
    """What has been measured, as times per sample in units of the fastest.

    Attributes:
        rows: of the grid.
        times: one each.
        noise: standard deviation of each.
        running: rows that are being measured.
        unit: the fastest time.
    """

    rows: Rows
    times: Vector
    noise: Vector
    running: Rows
    unit: float

    @classmethod
    def of(cls, trials: Sequence[FrozenTrial], grid: Grid, *, rate: bool) -> "Observations":
        """From the trials of a study: the fastest and the newest of very many.

        Args:
            rate: their values are rates; else times per sample.
        """
        found = [
            (1 / value if rate else value, t)
            for t in trials
            if grid.covers(t.params) and (value := measured(t)) is not None
        ]
        if len(found) > _MOST_OBSERVATIONS:
            half = _MOST_OBSERVATIONS // 2
            older, newer = found[:-half], found[-half:]
            found = sorted(older, key=lambda one: one[0])[:half] + newer
        running = [
            grid.encode(t.params)
            for t in trials
            if t.state == TrialState.RUNNING and grid.covers(t.params)
        ]
        width = len(grid.names)
        times = np.array([time for time, _ in found])
        unit = float(times.min()) if len(times) else 1.0
        relative = np.array([_relative_noise(trial) for _, trial in found])
        rows = [grid.encode(trial.params) for _, trial in found]
        return cls(
            rows=np.array(rows, dtype=np.int64).reshape(-1, width),
            times=times / unit,
            noise=relative * times / unit,
            running=np.array(running, dtype=np.int64).reshape(-1, width),
            unit=unit,
        )


Hyper = tuple[float, float, float]
"""Correlation of sizes, residual, factor of the noise."""


class StepModel:
    """Gaussian process over the time per sample, in units of the fastest one seen."""

    _PRIOR: Mapping[str, tuple[float, float]] = {
        "compute": (0.5, 1.0),
        "loader": (0.0, 1.0),
        "launch": (1.0, 4.0),
        "exchange": (1.0, 3.0),
        "update": (0.3, 3.0),
        "pressure": (0.05, 0.15),
        "reading": (0.1, 1.0),
    }
    """Mean and standard deviation of the parts where their shape is 1: no part is below 0."""
    _SHARED = (0.97, 0.9, 0.75)
    """Correlation of a part's size between two values of a knob that acts on it."""
    _RESIDUAL = (0.02, 0.08)
    """Of what the sum cannot say."""
    _NOISE = (1.0, 3.0)
    """How much more than it is said to be."""

    _BOLD, _SOBER = 0.4, 40.0
    """Share of its spread that attraction counts with at first; trials in which it grows by 1."""

    def __init__(self, grid: Grid, seen: Observations) -> None:
        self._grid = grid
        self._acting = {part: _acting_on(part, grid) for part in PARTS}
        self._highest_micro_batch = _span(grid, MICRO_BATCH)
        self._rows, self._times, self._noise = seen.rows, seen.times, seen.noise
        self._fit()
        self.incumbent = float(np.min(self.expected(seen.rows)))
        if len(seen.running):
            # What runs is taken to turn out as expected, so that nothing is suggested twice.
            guess = self.expected(seen.running)
            self._rows = np.concatenate([self._rows, seen.running])
            self._times = np.concatenate([self._times, guess])
            self._noise = np.concatenate([self._noise, _UNKNOWN_NOISE * guess])
            self._solve(self._hyper)

    def expected(self, rows: Rows) -> Vector:
        """Mean time per sample."""
        found: Vector = (
            self._mean(rows) + self._kernel(rows, self._rows, self._hyper) @ self._weights
        )
        return found

    def _mean(self, rows: Rows) -> Vector:
        shapes = self._shapes(rows)
        found: Vector = sum((self._PRIOR[p][0] * shapes[p] for p in PARTS), np.zeros(len(rows)))
        return found

    def attraction(self, rows: Rows) -> Vector:
        """What to try next by: improvement, but at first as if the model were surer than it is, as most
        of what it does not know makes no difference to who is fastest."""
        return self._improvement(rows, min(1.0, self._BOLD + len(self._times) / self._SOBER))

    def improvement(self, rows: Rows) -> Vector:
        """Expected improvement over the fastest expected so far."""
        return self._improvement(rows, 1.0)

    def _improvement(self, rows: Rows, boldness: float) -> Vector:
        mean, spread = self.predict(rows)
        spread = boldness * spread
        score = (self.incumbent - mean) / spread
        found: Vector = spread * (score * stats.norm.cdf(score) + stats.norm.pdf(score))
        return found

    def predict(self, rows: Rows) -> tuple[Vector, Vector]:
        """Mean and standard deviation of the time per sample."""
        cross = self._kernel(rows, self._rows, self._hyper)
        mean = self._mean(rows) + cross @ self._weights
        solved = linalg.solve_triangular(self._root, cross.T, lower=True)
        shapes = self._shapes(rows)
        prior = sum((shapes[part] * self._PRIOR[part][1]) ** 2 for part in PARTS)
        variance = prior + self._hyper[1] ** 2 - (solved**2).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, 1e-12))

    def _fit(self) -> None:
        hypers = itertools.product(self._SHARED, self._RESIDUAL, self._NOISE)
        self._solve(max(hypers, key=self._evidence))

    def _evidence(self, hyper: Hyper) -> float:
        self._solve(hyper)
        determinant = 2 * np.log(np.diag(self._root)).sum()
        rest = self._times - self._mean(self._rows)
        return float(-(rest @ self._weights + determinant) / 2)

    def _solve(self, hyper: Hyper) -> None:
        self._hyper = hyper
        noise = hyper[2] * self._noise
        kernel = self._kernel(self._rows, self._rows, hyper) + np.diag(noise**2 + 1e-8)
        self._root = linalg.cholesky(kernel, lower=True)
        self._weights = linalg.cho_solve((self._root, True), self._times - self._mean(self._rows))

    def _kernel(self, rows: Rows, others: Rows, hyper: Hyper) -> Matrix:
        shared, residual, _ = hyper
        here, there = self._shapes(rows), self._shapes(others)
        found: Matrix = np.zeros((len(rows), len(others)))
        for part in PARTS:
            apart = self._grid.distance(rows, others, self._acting[part])
            size = self._PRIOR[part][1]
            found += np.outer(size * here[part], size * there[part]) * shared**apart
        everything = self._grid.distance(rows, others, self._grid.names)
        found += residual**2 * np.exp(-2 * everything)
        return found

    def _shapes(self, rows: Rows) -> dict[str, Vector]:
        """How large each part is, against where it is largest."""
        micro_batch = self._relative(rows, MICRO_BATCH)
        per_step = 1 / (micro_batch * self._relative(rows, ACCUMULATION))
        ones = np.ones(len(rows))
        return {
            "compute": 1 + _FORWARD_SHARE * self._recomputed(rows),
            "loader": ones if self._acting["loader"] else 0 * ones,
            "launch": 1 / micro_batch,
            "exchange": per_step,
            "update": per_step,
            "pressure": micro_batch / self._highest_micro_batch,
            "reading": per_step / self._relative(rows, LOG_INTERVAL),
        }

    def _recomputed(self, rows: Rows) -> Vector:
        """The share of blocks whose forward pass happens twice."""
        if not self._grid.has_numbers(CHECKPOINTING):
            return np.zeros(len(rows))
        every = self._grid.plain_numbers(rows, CHECKPOINTING)
        found: Vector = np.where(every > 0, 1 / np.maximum(every, 1), 0.0)
        return found

    def _relative(self, rows: Rows, name: str) -> Vector:
        """A number against the smallest that it can be; 1 where it does not vary."""
        if name not in self._grid.names:
            return np.ones(len(rows))
        values = self._grid.numbers(rows, name)
        return np.ones(len(rows)) if values is None else values / self._grid.extremes(name)[0]


def _span(grid: Grid, name: str) -> float:
    """Largest over smallest value of a parameter of numbers above 0; 1 if it is none."""
    if (
        name not in grid.names
        or grid.numbers(np.zeros((1, len(grid.names)), np.int64), name) is None
    ):
        return 1.0
    low, high = grid.extremes(name)
    return high / low


def _acting_on(part: str, grid: Grid) -> set[str]:
    """The knobs that change the size of a part; one that nothing is known of may change any."""
    return {
        name
        for name in grid.names
        if name not in _PHYSICAL and (name not in CATALOGUE or part in CATALOGUE[name].parts)
    }


def measured(trial: FrozenTrial) -> float | None:
    """The objective of a trial, the last one reported if it was pruned; None if it has none."""
    value = None
    if trial.state == TrialState.COMPLETE:
        value = trial.value
    elif trial.state == TrialState.PRUNED and trial.intermediate_values:
        value = trial.intermediate_values[max(trial.intermediate_values)]
    return value if value is not None and math.isfinite(value) and value > 0 else None


def _relative_noise(trial: FrozenTrial) -> float:
    told = trial.user_attrs.get("half_width")
    noise = told / _NORMAL_95 if isinstance(told, int | float) and told > 0 else _UNKNOWN_NOISE
    return max(noise, _PRUNED_NOISE) if trial.state == TrialState.PRUNED else float(noise)
