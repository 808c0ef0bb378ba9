"""A search space as finitely many values per parameter, with distances between them."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from autotune.search.policy import SEARCH

Params = Mapping[str, Any]
Rows = NDArray[np.int64]
"""(configurations, parameters): the index of each parameter's value."""
Follows = Mapping[str, tuple[str, Mapping[int, int]]]
"""For each number that follows from a parameter: the parameter's name, and the number for each
value."""
Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

_MOST_NUMBERED = 1 << 62


class Grid:
    """A search space as finitely many values per parameter, and distances between them."""

    def __init__(
        self, search_space: Mapping[str, BaseDistribution], follows: Follows | None = None
    ) -> None:
        """Take in the parameters.

        Args:
            search_space: distribution of each parameter.
            follows: numbers that are no parameters but follow from one.
        """
        self._values = {name: _values(domain) for name, domain in sorted(search_space.items())}
        self.names = list(self._values)
        self._follows = {
            name: (leader, [float(numbers[value]) for value in self._values[leader]])
            for name, (leader, numbers) in (follows or {}).items()
            if leader in self._values
        }
        # Numbers are ordered: their distance is that on a logarithmic scale.
        self._places = {name: _places(values) for name, values in self._values.items()}
        # True == 1 == 1.0 in Python: the type belongs to the value.
        self._known = {
            n: {(type(v), v): index for index, v in enumerate(values)}
            for n, values in self._values.items()
        }
        self._distances = [
            _distances(values, self._places[n]) for n, values in self._values.items()
        ]

    def count(self, name: str) -> int:
        """Return the number of values of a parameter."""
        return len(self._values[name])

    def covers(self, params: Params) -> bool:
        """Return whether these parameters have a value for every dimension."""
        return self._values.keys() <= params.keys()

    def encode(self, params: Params) -> NDArray[np.int64]:
        """Return the index of each parameter's value.

        For a number off the grid it is that of the nearest one.
        """
        return np.array([self._index(name, params[name]) for name in self.names], dtype=np.int64)

    def rows_of(self, several: Sequence[Params]) -> Rows:
        """Return a row for each of several parameters."""
        rows = [self.encode(params) for params in several]
        return np.array(rows, dtype=np.int64).reshape(-1, len(self.names))

    def nearest(self, wanted: Params) -> NDArray[np.int64]:
        """Return a row with the values closest to the wanted ones.

        It is the first row where nothing is wanted or no value is close.
        """
        row = np.zeros(len(self.names), dtype=np.int64)
        for axis, name in enumerate(self.names):
            values = self._values[name]
            if name in wanted and (self._places[name] is not None or wanted[name] in values):
                row[axis] = self._index(name, wanted[name])
        return row

    def decode(self, row: NDArray[np.int64]) -> dict[str, Any]:
        """Return the parameters of a row of indices."""
        return {
            name: self._values[name][index] for name, index in zip(self.names, row, strict=True)
        }

    @property
    def is_small(self) -> bool:
        """True if all rows can be ranked."""
        return math.prod(map(len, self._values.values())) <= SEARCH.most_candidates

    def candidates(self, random: np.random.Generator, known: Rows) -> Rows:
        """Return all rows, or as many as can be ranked: a random sample beside those that are known.

        Args:
            known: rows of which more may be expected than of a random one.
        """
        sizes = [len(values) for values in self._values.values()]
        if self.is_small:
            return np.stack([axis.ravel() for axis in np.indices(sizes)], axis=1)
        count = max(0, SEARCH.most_candidates - len(known))
        drawn = np.stack([random.integers(0, size, count) for size in sizes], axis=1)
        return np.unique(np.concatenate([drawn, known]), axis=0)

    def neighbours(self, params: Params) -> Rows:
        """Return the rows that differ from these parameters in one value at most."""
        here = self.encode(params)
        values = ((axis, v) for axis, n in enumerate(self.names) for v in range(self.count(n)))
        return np.array([_changed(here, axis, value) for axis, value in values])

    def has_numbers(self, name: str) -> bool:
        """Return whether a parameter has numbers, or follows from one that has."""
        return name in self._follows or self._places.get(name) is not None

    def has_sizes(self, name: str) -> bool:
        """Return whether the numbers of a parameter, if it has any, are above 0."""
        return self.has_numbers(name) and self.extremes(name)[0] > 0

    def numbers(self, rows: Rows, name: str) -> Vector:
        """Return the numbers of a parameter in these rows."""
        leader, values = self._numbered(name)
        numbers: Vector = np.array(values, dtype=float)[rows[:, self.names.index(leader)]]
        return numbers

    def extremes(self, name: str) -> tuple[float, float]:
        """Return the smallest and the largest number of a parameter."""
        _, values = self._numbered(name)
        return float(min(values)), float(max(values))

    def _numbered(self, name: str) -> tuple[str, Sequence[float]]:
        """Return the parameter that decides on a number, and the number for each of its values."""
        return self._follows.get(name) or (name, self._values[name])

    def distinct(
        self, rows: Rows, names: Collection[str]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first row of each combination of these parameters, and each row's combination."""
        axes = [axis for axis, name in enumerate(self.names) if name in names]
        sizes = [len(self._values[self.names[axis]]) for axis in axes]
        if math.prod(sizes) > _MOST_NUMBERED:
            everything = np.arange(len(rows))
            return everything, everything
        keys = rows[:, axes] @ np.cumprod([1, *sizes[:-1]])[: len(axes)]
        _, first, back = np.unique(keys, return_index=True, return_inverse=True)
        return first, back

    def indicators(self, rows: Rows, names: Collection[str]) -> Matrix:
        """Return (rows, values of these parameters): 1 where a row has the value, else 0."""
        columns = [
            np.eye(len(self._values[name]))[rows[:, axis]]
            for axis, name in enumerate(self.names)
            if name in names
        ]
        return np.concatenate([np.zeros((len(rows), 0)), *columns], axis=1)

    def distance(self, rows: Rows, others: Rows, names: Collection[str]) -> Matrix:
        """Return the distances of rows, summed over these parameters.

        It is 1 between any two values that are no numbers, and 2 between the smallest and the
        largest number.
        """
        from_values = [
            self._distances[axis][:, others[:, axis]]
            for axis, name in enumerate(self.names)
            if name in names
        ]
        there = np.concatenate([np.zeros((0, len(others))), *from_values])
        distances: Matrix = self.indicators(rows, names) @ there
        return distances

    def _index(self, name: str, value: Any) -> int:
        known = self._known[name].get((type(value), value))
        if known is not None:
            return known
        values = self._values[name]
        return int(np.argmin(np.abs(np.array(values, dtype=float) - float(value))))


def _values(distribution: BaseDistribution) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    low, high, step = distribution.low, distribution.high, distribution.step
    if step and (high - low) / step < SEARCH.most_values:
        numbers = low + step * np.arange(round((high - low) / step) + 1)
    elif low > 0:
        numbers = np.geomspace(low, high, SEARCH.most_values)
    else:
        numbers = np.linspace(low, high, SEARCH.most_values)
    if isinstance(distribution, IntDistribution):
        step = distribution.step
        return sorted({int(low + step * round((value - low) / step)) for value in numbers})
    return [float(value) for value in numbers]


def _places(values: Sequence[Any]) -> Vector | None:
    """Return the places of numbers from 0 to 1, logarithmic if possible; None for other values."""
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
    steps: Matrix = 2 * np.abs(places[:, None] - places[None, :])
    return steps


def _changed(row: NDArray[np.int64], axis: int, index: int) -> NDArray[np.int64]:
    changed = row.copy()
    changed[axis] = index
    return changed
