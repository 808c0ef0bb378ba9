"""An Optuna sampler that knows how the time of a data-parallel training step is made up.

The time per sample is a sum of parts, each with a shape that is known and a size that is not:

    t = compute + launch / m + (communication + update) / (m a) + pressure * m + reading / (m a l)

with micro-batch m, accumulation a and logging interval l. Precision, buckets and all other knobs change
the sizes; how much, and together with which others, is learnt: the sizes are Gaussian processes over
those knobs, so that what was seen under one precision is a first guess under another. A small
residual over all knobs takes up what the sum cannot say. What is suggested next is the configuration
with the largest expected improvement; the noise of every measurement is taken into account.

Any parameter whose name means nothing to it is searched as one of the "other knobs".
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from scipy import linalg, stats

Params = Mapping[str, Any]
Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Allowed = Callable[[list[FrozenTrial]], Callable[[Params], bool]]
"""From the trials so far: whether a configuration may be suggested."""

_STARTUP = 6
_MOST_CANDIDATES = 4000
_MOST_OBSERVATIONS = 250
_MOST_VALUES = 17
_UNKNOWN_NOISE = 0.03
_PRUNED_NOISE = 0.05
_NORMAL_95 = 1.96
MICRO_BATCH, ACCUMULATION, LOG_INTERVAL = "micro_batch", "accumulation_steps", "log_interval"


@dataclass(frozen=True)
class Prediction:
    """What the model expects.

    Attributes:
        params: of the configuration that it takes for the best.
        value: expected objective there.
        gain: expected relative improvement of the best by one more trial.
    """

    params: dict[str, Any]
    value: float
    gain: float


class PerformanceModelSampler(BaseSampler):
    """For a study that maximises a rate (samples/s) or minimises a time per sample.

    Trials may carry the user attribute `half_width`, the relative 95 % half-width of their value. One
    that was pruned counts with its last intermediate value.
    """

    def __init__(
        self,
        seed: int | None = None,
        search_space: Mapping[str, BaseDistribution] | None = None,
        allowed: Allowed | None = None,
    ) -> None:
        """Prepare for one study.

        Args:
            seed: of the first suggestions and of what is drawn from very large spaces.
            search_space: what all trials will have; without it, what all trials had, so that the first
                trial is drawn at random.
            allowed: without it every combination of values may be suggested.
        """
        self._search_space = dict(search_space) if search_space else None
        self._random = np.random.default_rng(seed)
        self._independent = RandomSampler(seed=seed)
        self._intersection = IntersectionSearchSpace()
        self._allowed = allowed

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All parameters that every trial has."""
        return self._search_space or self._intersection.calculate(study)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The configuration with the largest expected improvement among those not tried."""
        if not search_space:
            return {}
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        grid = Grid(search_space)
        candidates = grid.candidates(self._random, _best_params(study, trials, grid))
        seen = Observations.of(study, trials, grid)
        if len(seen.times) < _STARTUP:
            order = _spread_out(grid, candidates, seen, self._random)
        else:
            order = np.argsort(-Model(grid, seen).improvement(candidates))
        return self._first_allowed(order, candidates, grid, trials)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A random value, for a parameter that is not in every trial."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def explain(self, study: Study) -> Prediction | None:
        """What the model expects by now; None before it has seen enough."""
        search_space = self._search_space or self._intersection.calculate(study)
        trials = study.get_trials(deepcopy=False)
        grid = Grid(search_space)
        seen = Observations.of(study, trials, grid)
        if not search_space or len(seen.times) < _STARTUP:
            return None
        candidates = grid.candidates(self._random, _best_params(study, trials, grid))
        model = Model(grid, seen)
        best = int(np.argmin(model.expected(candidates)))
        time = float(model.expected(candidates[best : best + 1])[0]) * seen.unit
        rate = study.direction == StudyDirection.MAXIMIZE
        return Prediction(
            params=grid.decode(candidates[best]),
            value=1 / time if rate else time,
            gain=float(np.max(model.improvement(candidates)) / model.incumbent),
        )

    def _first_allowed(
        self, order: NDArray[np.int64], candidates: NDArray[np.int64], grid: "Grid", trials: Any
    ) -> dict[str, Any]:
        tried = {tuple(t.params[n] for n in grid.names) for t in trials if grid.covers(t.params)}
        allowed = self._allowed(trials) if self._allowed else lambda _: True
        for number in order:
            params = grid.decode(candidates[number])
            if tuple(params.values()) not in tried and allowed(params):
                return params
        return grid.decode(candidates[order[0]])  # all were tried: measure the most promising again


class Grid:
    """A search space as finitely many values per parameter, and distances between them."""

    def __init__(self, search_space: Mapping[str, BaseDistribution]) -> None:
        self._values = {name: _values(found) for name, found in sorted(search_space.items())}
        self.names = list(self._values)
        # Numbers are ordered: their distance is how far they lie apart on a logarithmic scale.
        self._places = {name: _places(values) for name, values in self._values.items()}
        self._distances = [
            _distances(values, self._places[n]) for n, values in self._values.items()
        ]
        physical = (MICRO_BATCH, ACCUMULATION, LOG_INTERVAL)
        self._physical = {
            name: np.array(self._values[name], dtype=float)
            for name in physical
            if self._places.get(name) is not None and min(self._values[name]) > 0
        }

    def covers(self, params: Params) -> bool:
        """Whether these parameters have a value for every dimension."""
        return all(name in params for name in self.names)

    def encode(self, params: Params) -> NDArray[np.int64]:
        """Index of each parameter's value; the nearest one of a number that is not on the grid."""
        return np.array([self._index(name, params[name]) for name in self.names], dtype=np.int64)

    def decode(self, row: NDArray[np.int64]) -> dict[str, Any]:
        """The parameters of a row of indices."""
        return {
            name: self._values[name][index] for name, index in zip(self.names, row, strict=True)
        }

    def candidates(self, random: np.random.Generator, best: Params | None) -> NDArray[np.int64]:
        """All rows, or as many random ones as can be looked at and the neighbours of the best."""
        sizes = [len(values) for values in self._values.values()]
        if math.prod(sizes) <= _MOST_CANDIDATES:
            return np.stack([axis.ravel() for axis in np.indices(sizes)], axis=1)
        drawn = np.stack([random.integers(0, size, _MOST_CANDIDATES) for size in sizes], axis=1)
        if best is None:
            return drawn
        here = self.encode(best)
        near = [_changed(here, axis, v) for axis, size in enumerate(sizes) for v in range(size)]
        return np.unique(np.concatenate([drawn, np.array(near)]), axis=0)

    def parts(self, rows: NDArray[np.int64]) -> Matrix:
        """The shapes of the parts of a step: one column each, between 0 and 1."""
        m, m_low, m_high = self._physical_column(rows, MICRO_BATCH)
        a, a_low, _ = self._physical_column(rows, ACCUMULATION)
        interval, shortest, _ = self._physical_column(rows, LOG_INTERVAL)
        launch, update = m_low / m, m_low * a_low / (m * a)
        return np.stack(
            [np.ones_like(m), launch, update, m / m_high, update * shortest / interval], axis=1
        )

    def distance(
        self, rows: NDArray[np.int64], others: NDArray[np.int64], *, physical: bool
    ) -> Matrix:
        """Summed over the parameters that have no place in `parts`, or over those that have."""
        total = np.zeros((len(rows), len(others)))
        for axis, name in enumerate(self.names):
            if (name in self._physical) is physical:
                total += self._distances[axis][np.ix_(rows[:, axis], others[:, axis])]
        return total

    def _physical_column(self, rows: NDArray[np.int64], name: str) -> tuple[Vector, float, float]:
        values = self._physical.get(name)
        if values is None:
            return np.ones(len(rows)), 1.0, 1.0
        return values[rows[:, self.names.index(name)]], float(values.min()), float(values.max())

    def _index(self, name: str, value: Any) -> int:
        values, places = self._values[name], self._places[name]
        if places is None:
            return next(i for i, v in enumerate(values) if v == value and type(v) is type(value))
        return int(np.argmin(np.abs(np.array(values, dtype=float) - float(value))))


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

    rows: NDArray[np.int64]
    times: Vector
    noise: Vector
    running: NDArray[np.int64]
    unit: float

    @classmethod
    def of(cls, study: Study, trials: Sequence[FrozenTrial], grid: Grid) -> "Observations":
        """From the trials of a study: the fastest and the newest of very many."""
        rate = study.direction == StudyDirection.MAXIMIZE
        found = [
            (1 / value if rate else value, t)
            for t in trials
            if grid.covers(t.params) and (value := _value(t)) is not None
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


class Model:
    """Gaussian process over the time per sample."""

    _SIZES = np.array([1.0, 4.0, 4.0, 1.0, 1.0])
    """Prior standard deviations of the parts, in units of the fastest time per sample."""
    _SHARED = (0.99, 0.95, 0.85, 0.6)
    """Correlation of a part's size between two values of another knob."""
    _RESIDUAL = (0.02, 0.08)

    def __init__(self, grid: Grid, seen: Observations) -> None:
        self._grid = grid
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

    def expected(self, rows: NDArray[np.int64]) -> Vector:
        """Mean time per sample."""
        found: Vector = self._kernel(rows, self._rows, self._hyper) @ self._weights
        return found

    def improvement(self, rows: NDArray[np.int64]) -> Vector:
        """Expected improvement over the fastest expected so far."""
        cross = self._kernel(rows, self._rows, self._hyper)
        mean = cross @ self._weights
        solved = linalg.solve_triangular(self._root, cross.T, lower=True)
        prior = (self._grid.parts(rows) * self._SIZES) ** 2
        variance = prior.sum(axis=1) + self._hyper[1] ** 2 - (solved**2).sum(axis=0)
        spread = np.sqrt(np.maximum(variance, 1e-12))
        score = (self.incumbent - mean) / spread
        found: Vector = spread * (score * stats.norm.cdf(score) + stats.norm.pdf(score))
        return found

    def _fit(self) -> None:
        hypers = [(shared, residual) for shared in self._SHARED for residual in self._RESIDUAL]
        self._solve(max(hypers, key=self._evidence))

    def _evidence(self, hyper: tuple[float, float]) -> float:
        self._solve(hyper)
        determinant = 2 * np.log(np.diag(self._root)).sum()
        return float(-(self._times @ self._weights + determinant) / 2)

    def _solve(self, hyper: tuple[float, float]) -> None:
        self._hyper = hyper
        kernel = self._kernel(self._rows, self._rows, hyper) + np.diag(self._noise**2 + 1e-8)
        self._root = linalg.cholesky(kernel, lower=True)
        self._weights = linalg.cho_solve((self._root, True), self._times)

    def _kernel(
        self, rows: NDArray[np.int64], others: NDArray[np.int64], hyper: tuple[float, float]
    ) -> Matrix:
        shared, residual = hyper
        apart = self._grid.distance(rows, others, physical=False)
        parts = (self._grid.parts(rows) * self._SIZES) @ (self._grid.parts(others) * self._SIZES).T
        everything = apart + self._grid.distance(rows, others, physical=True)
        found: Matrix = parts * shared**apart + residual**2 * np.exp(-2 * everything)
        return found


def _spread_out(
    grid: Grid,
    candidates: NDArray[np.int64],
    seen: Observations,
    random: np.random.Generator,
) -> NDArray[np.int64]:
    """Candidates in the order of their distance from whatever has been seen, the farthest first."""
    known = np.concatenate([seen.rows, seen.running])
    shuffled = random.permutation(len(candidates))
    if not len(known):
        return shuffled
    apart = grid.distance(candidates, known, physical=False)
    apart += grid.distance(candidates, known, physical=True)
    nearest = apart.min(axis=1)[shuffled]
    return shuffled[np.argsort(-nearest, kind="stable")]


def _best_params(study: Study, trials: Sequence[FrozenTrial], grid: Grid) -> Params | None:
    sign = 1 if study.direction == StudyDirection.MAXIMIZE else -1
    known = [t for t in trials if _value(t) is not None and grid.covers(t.params)]
    best = max(known, key=lambda t: sign * (_value(t) or 0.0), default=None)
    return best.params if best else None


def _value(trial: FrozenTrial) -> float | None:
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


def _values(distribution: BaseDistribution) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    low, high, step = distribution.low, distribution.high, distribution.step
    if step and (high - low) / step < _MOST_VALUES:
        found = low + step * np.arange(round((high - low) / step) + 1)
    elif low > 0:
        found = np.geomspace(low, high, _MOST_VALUES)
    else:
        found = np.linspace(low, high, _MOST_VALUES)
    if isinstance(distribution, IntDistribution):
        step = distribution.step
        return sorted({int(low + step * round((value - low) / step)) for value in found})
    return [float(value) for value in found]


def _places(values: Sequence[Any]) -> Vector | None:
    """Where numbers stand from 0 to 1, on a logarithmic scale if they can; None for anything else."""
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        return None
    numbers = np.array(values, dtype=float)
    if numbers.min() > 0:
        numbers = np.log(numbers)
    span = numbers.max() - numbers.min()
    return (numbers - numbers.min()) / span if span else np.zeros(len(values))


def _distances(values: Sequence[Any], places: Vector | None) -> Matrix:
    if places is None:
        return 1.0 - np.eye(len(values))
    found: Matrix = 2 * np.abs(places[:, None] - places[None, :])
    return found


def _changed(row: NDArray[np.int64], axis: int, index: int) -> NDArray[np.int64]:
    found = row.copy()
    found[axis] = index
    return found
