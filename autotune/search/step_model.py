"""How the time of a data-parallel training step is made up, learnt from what was measured.

The time per sample is a sum of parts, each with a shape that is known and a size that is not:

    t = compute + loader + launching / m + (communication + optimizer) / (m a) + pressure * m
        + synchronisation / (m a l)

with micro-batch m, accumulation a and logging interval l; copies of batches count as loading them.
Checkpointing every k-th block computes 1 / 3k of its step once more. Each other knob changes the sizes
of the parts that it acts on (search_spaces.Knob.parts); how much, is learnt: sizes are Gaussian
processes over those knobs, so that what was seen under one precision is a first guess under another. A
small residual over all knobs takes up what the sum cannot say. A knob that means nothing acts on every
part.

Numbers without another source were chosen on the recorded tables gpt, mlp, images and translation
(benchmarks/search.py, BUILT_ON); docs/results/README.md has how the sampler does on others.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from optuna.trial import FrozenTrial, TrialState
from scipy import linalg, special

from autotune.search.grid import Grid, Matrix, Rows, Vector
from autotune.search.splits import ACCUMULATION, MICRO_BATCH
from search_spaces import CATALOGUE
from search_spaces.knob import PRESSURE

LOG_INTERVAL, CHECKPOINTING = "log_interval", "activation_checkpointing"
_FORWARD_SHARE = 1 / 3
"""Of the arithmetic of a step: the backward pass has two matrix products for each one of the forward
(Kaplan et al. 2020, Scaling Laws for Neural Language Models, section 2.1)."""
_PHYSICAL = (MICRO_BATCH, ACCUMULATION, LOG_INTERVAL)
_MOST_OBSERVATIONS = 150
_LEADING = 300
"""Candidates that are looked at more closely at first."""
_UNKNOWN_NOISE = 0.03
"""Relative standard deviation. Measured: 16 new processes of 1.5 s of one configuration differed by 3 to
4 % on two cores."""
_PRUNED_NOISE = 0.05
"""At least, of a trial that was ended early, after few blocks."""
_ROOT_2PI = math.sqrt(2 * math.pi)
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
        timed = [
            (1 / value if rate else value, t)
            for t in trials
            if grid.covers(t.params) and (value := measured(t)) is not None
        ]
        if len(timed) > _MOST_OBSERVATIONS:
            half = _MOST_OBSERVATIONS // 2
            older, newer = timed[:-half], timed[-half:]
            timed = sorted(older, key=lambda one: one[0])[:half] + newer
        running = [
            grid.encode(t.params)
            for t in trials
            if t.state == TrialState.RUNNING and grid.covers(t.params)
        ]
        width = len(grid.names)
        times = np.array([time for time, _ in timed])
        unit = float(times.min()) if len(times) else 1.0
        relative = np.array([_relative_noise(trial) for _, trial in timed])
        rows = [grid.encode(trial.params) for _, trial in timed]
        return cls(
            rows=np.array(rows, dtype=np.int64).reshape(-1, width),
            times=times / unit,
            noise=relative * times / unit,
            running=np.array(running, dtype=np.int64).reshape(-1, width),
            unit=unit,
        )


_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_NORMAL_NODES = (_NODES, _WEIGHTS / _WEIGHTS.sum())
"""A normal distribution in seven points."""


class _Hyper(NamedTuple):
    """What the evidence chooses: correlation of sizes, residual, factor of the noise."""

    shared: float
    residual: float
    noise: float


@dataclass(frozen=True)
class _Alike:
    """Correlations between rows and those that were seen: of the size of each part, and of all else."""

    parts: Mapping[str, Matrix]
    all: Matrix


class StepModel:
    """Gaussian process over the time per sample, in units of the fastest one seen."""

    _PRIOR: Mapping[str, tuple[float, float]] = {
        "compute": (0.5, 1.0),
        "loader": (0.0, 1.0),
        "launching": (1.0, 4.0),
        "communication": (1.0, 3.0),
        "optimizer": (0.3, 3.0),
        PRESSURE: (0.05, 0.15),
        "synchronisation": (0.1, 1.0),
    }
    """Mean and standard deviation of the parts where their shape is 1, the smallest micro-batch without
    accumulation (pressure: the largest), in units of the fastest time per sample: no part is below 0. A
    sum of these shapes, fitted to 336 recorded configurations of a Transformer, had a median error of
    4 %."""
    _SHARED = (0.97, 0.9, 0.75)
    """Correlation of a part's size between two values of a knob that acts on it."""
    _RESIDUAL = (0.02, 0.08)
    """Of what the sum cannot say."""
    _NOISE = (1.0, 3.0)
    """How much more than it is said to be."""

    _BOLD, _SOBER = 0.4, 40.0
    """Share of its spread that `acquisition` counts with at first; trials in which it grows by 1."""

    def __init__(self, grid: Grid, seen: Observations) -> None:
        self._grid = grid
        self._acting = {part: _acting_on(part, grid) for part in self._PRIOR}
        self._highest_micro_batch = _span(grid, MICRO_BATCH)
        self._see(seen.rows, seen.times, seen.noise)
        self._fit()
        self.incumbent = float(np.min(self.expected(seen.rows)))
        if len(seen.running):
            # What runs is taken to turn out as expected, so that nothing is suggested twice.
            guess = self.expected(seen.running)
            self._see(
                np.concatenate([seen.rows, seen.running]),
                np.concatenate([seen.times, guess]),
                np.concatenate([seen.noise, _UNKNOWN_NOISE * guess]),
            )
            self._solve(self._alike(self._rows), self._hyper)

    def expected(self, rows: Rows) -> Vector:
        """Mean time per sample."""
        shapes = self._shapes(rows)
        cross = self._covariance(self._alike(rows), shapes)
        times: Vector = self._mean(shapes) + cross @ self._weights
        return times

    def predict(self, rows: Rows) -> tuple[Vector, Vector]:
        """Mean and standard deviation of the time per sample."""
        return self._sum(self._alike(rows), self._shapes(rows))

    def acquisition(self, rows: Rows) -> Vector:
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
        improvement: Vector = spread * (
            score * special.ndtr(score) + np.exp(-(score**2) / 2) / _ROOT_2PI
        )
        order = np.argsort(-improvement, kind="stable")
        leading, others = order[:_LEADING], order[_LEADING:]
        improvement[leading] = np.minimum(
            improvement[leading], self._above_its_floor(rows[leading], boldness)
        )
        if len(others) and improvement[others].max() > improvement[leading].max():
            improvement[others] = np.minimum(
                improvement[others], self._above_its_floor(rows[others], boldness)
            )
        return improvement

    def _above_its_floor(self, rows: Rows, boldness: float) -> Vector:
        """The same, where no part is below 0: nothing is faster than with the largest micro-batch, most
        accumulation and rarest reading, but for the pressure. What lies above that floor is taken to be
        gamma distributed."""
        shapes, floor_shapes = self._shapes(rows), self._floor_shapes(rows)
        above = {part: shapes[part] - floor_shapes[part] for part in shapes}
        alike = self._alike(rows)
        floor, floor_spread = self._sum(alike, floor_shapes)
        rest, rest_spread = self._sum(replace(alike, all=0 * alike.all), above)
        rest, rest_spread = np.maximum(rest, 1e-6), np.maximum(boldness * rest_spread, 1e-6)
        peakedness = np.minimum((rest / rest_spread) ** 2, 1e4)
        scale = rest / peakedness
        total = np.zeros(len(rows))
        for node, weight in zip(*_NORMAL_NODES, strict=True):
            room = np.maximum(self.incumbent - floor - boldness * node * floor_spread, 0.0)
            below = special.gammainc(peakedness, room / scale)
            deeper = special.gammainc(peakedness + 1, room / scale)
            total += weight * (room * below - rest * deeper)
        return total

    def _floor_shapes(self, rows: Rows) -> dict[str, Vector]:
        best = rows.copy()
        for name in _PHYSICAL:
            if name in self._grid.names and self._grid.has_sizes(name):
                best[:, self._grid.names.index(name)] = self._grid.highest(name)
        return {**self._shapes(best), PRESSURE: np.zeros(len(rows))}

    def _see(self, rows: Rows, times: Vector, noise: Vector) -> None:
        self._rows, self._times, self._noise = rows, times, noise
        self._own_shapes = self._shapes(rows)
        self._rest = times - self._mean(self._own_shapes)

    def _fit(self) -> None:
        evidence = {}
        for shared in self._SHARED:
            alike = self._alike(self._rows, shared)
            for residual, noise in itertools.product(self._RESIDUAL, self._NOISE):
                hyper = _Hyper(shared, residual, noise)
                self._solve(alike, hyper)
                evidence[hyper] = self._evidence()
        best = max(evidence, key=evidence.__getitem__)
        self._solve(self._alike(self._rows, best.shared), best)

    def _evidence(self) -> float:
        determinant = 2 * np.log(np.diag(self._root)).sum()
        return float(-(self._rest @ self._weights + determinant) / 2)

    def _solve(self, alike: "_Alike", hyper: "_Hyper") -> None:
        self._hyper = hyper
        noise = (hyper.noise * self._noise) ** 2
        kernel = self._covariance(alike, self._own_shapes) + np.diag(noise + 1e-8)
        self._root = linalg.cholesky(kernel, lower=True)
        self._weights = linalg.cho_solve((self._root, True), self._rest)

    def _mean(self, shapes: Mapping[str, Vector]) -> Vector:
        nothing = np.zeros_like(shapes["compute"])
        mean_time: Vector = sum((mean * shapes[p] for p, (mean, _) in self._PRIOR.items()), nothing)
        return mean_time

    def _sum(self, alike: "_Alike", shapes: Mapping[str, Vector]) -> tuple[Vector, Vector]:
        """Mean and standard deviation of a sum of parts in these proportions."""
        cross = self._covariance(alike, shapes)
        mean = self._mean(shapes) + cross @ self._weights
        solved = linalg.solve_triangular(self._root, cross.T, lower=True)
        prior = sum((shapes[part] * size) ** 2 for part, (_, size) in self._PRIOR.items())
        own = self._hyper.residual**2 * bool(alike.all.any())
        variance = prior + own - (solved**2).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, 1e-12))

    def _covariance(self, alike: "_Alike", shapes: Mapping[str, Vector]) -> Matrix:
        covariance: Matrix = self._hyper.residual**2 * alike.all
        for part, (_, size) in self._PRIOR.items():
            here, there = size * shapes[part], size * self._own_shapes[part]
            covariance = covariance + alike.parts[part] * np.outer(here, there)
        return covariance

    def _alike(self, rows: Rows, shared: float | None = None) -> "_Alike":
        """The correlations, at first with a given one of sizes."""
        rate = math.log(self._hyper.shared if shared is None else shared)
        # Parts on which the same knobs act share a matrix; so do rows that differ in no such knob.
        several = {}
        for names in set(self._acting.values()):
            first, back = self._grid.distinct(rows, names)
            apart = self._grid.distance(rows[first], self._rows, names)
            several[names] = np.exp(rate * apart)[back]
        parts = {part: several[names] for part, names in self._acting.items()}
        apart = self._grid.distance(rows, self._rows, self._grid.names)
        return _Alike(parts, np.exp(-2 * apart))

    def _shapes(self, rows: Rows) -> dict[str, Vector]:
        """How large each part is, against where it is largest."""
        micro_batch = self._relative(rows, MICRO_BATCH)
        per_step = 1 / (micro_batch * self._relative(rows, ACCUMULATION))
        ones = np.ones(len(rows))
        return {
            "compute": 1 + _FORWARD_SHARE * self._recomputed(rows),
            "loader": ones if self._acting["loader"] else 0 * ones,
            "launching": 1 / micro_batch,
            "communication": per_step,
            "optimizer": per_step,
            PRESSURE: micro_batch / self._highest_micro_batch,
            "synchronisation": per_step / self._relative(rows, LOG_INTERVAL),
        }

    def _recomputed(self, rows: Rows) -> Vector:
        """The share of blocks whose forward pass happens twice."""
        if not self._grid.has_numbers(CHECKPOINTING):
            return np.zeros(len(rows))
        every = self._grid.numbers(rows, CHECKPOINTING)
        share: Vector = np.where(every > 0, 1 / np.maximum(every, 1), 0.0)
        return share

    def _relative(self, rows: Rows, name: str) -> Vector:
        """A number against the smallest that it can be; 1 where it does not vary."""
        if not self._grid.has_sizes(name):
            return np.ones(len(rows))
        return self._grid.numbers(rows, name) / self._grid.extremes(name)[0]


def _span(grid: Grid, name: str) -> float:
    """Largest over smallest value of a parameter of numbers above 0; 1 if it is none."""
    if not grid.has_sizes(name):
        return 1.0
    low, high = grid.extremes(name)
    return high / low


def _acting_on(part: str, grid: Grid) -> frozenset[str]:
    """The knobs that change the size of a part; one that nothing is known of may change any."""
    return frozenset(
        name
        for name in grid.names
        if name not in _PHYSICAL and (name not in CATALOGUE or part in CATALOGUE[name].parts)
    )


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
