"""Count sketches: numbers of every tensor by which two processes estimate their difference.

A count sketch (Charikar, Chen and Farach-Colton 2002) adds every element, with a sign, to one of a
few buckets; bucket and sign are drawn alike in every process. It is linear, and keeps the square of
a norm on average: the sketch of a difference is the difference of sketches, and its norm that of
the difference, with a relative standard deviation of sqrt(1 / (2 x buckets)).
"""

import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

BUCKETS = 32
"""Buckets per tensor: they give a norm to within 12 %."""
_MOST_TENSORS = 64
"""Largest number of sketches; beyond it neighbouring tensors share one.

A message stays below 30 kB.
"""
_CHUNK = 1 << 22
"""Elements that are hashed at a time."""


class Sketched(NamedTuple):
    """Sketch of a tensor, or of several neighbours of a large model."""

    name: str
    size: int
    """Number of elements."""
    norm: float
    buckets: list[float]

    def as_row(self) -> list[Any]:
        """Return the sketch as a row for a message."""
        return [self.name, self.size, _short(self.norm), *map(_short, self.buckets)]

    def scaled(self, factor: float) -> "Sketched":
        """Return the sketch of a multiple of the tensor."""
        buckets = [factor * one for one in self.buckets]
        return self._replace(norm=factor * self.norm, buckets=buckets)


def _short(number: float) -> float:
    return float(f"{number:.7g}")


class Sketcher:
    """Sum of sketches of tensors that belong to a model's parameters."""

    def __init__(self, names: Iterable[tuple[str, int]]) -> None:
        """Begin with zeros.

        Args:
            names: of all parameters in order, each with its number of elements.
        """
        self._names = list(names)
        self._groups = _groups(len(self._names))
        self._group_of = {
            place: number for number, group in enumerate(self._groups) for place in group
        }
        self._buckets = torch.zeros(len(self._groups), BUCKETS, dtype=torch.float64)
        self._squares = [0.0] * len(self._groups)

    def add(self, place: int, tensor: Tensor) -> None:
        """Add a tensor at the place of a parameter; places without one remain zero."""
        buckets, square = _sketch(tensor, seed=place)
        self._buckets[self._group_of[place]] += buckets
        self._squares[self._group_of[place]] += square

    def of(self, tensors: Iterable[Tensor]) -> list[Sketched]:
        """Return the sketches of a tensor for each parameter, in order."""
        for place, tensor in enumerate(tensors):
            self.add(place, tensor)
        return self.done()

    def done(self) -> list[Sketched]:
        """Return all sketches, and begin with zeros again."""
        found = [self._sketched(number) for number in range(len(self._groups))]
        self._buckets.zero_()
        self._squares = [0.0] * len(self._groups)
        return found

    def _sketched(self, number: int) -> Sketched:
        named = [self._names[place] for place in self._groups[number]]
        name = named[0][0] if len(named) == 1 else f"{named[0][0]} to {named[-1][0]}"
        size = sum(elements for _, elements in named)
        return Sketched(
            name, size, math.sqrt(self._squares[number]), self._buckets[number].tolist()
        )


def _groups(count: int) -> list[range]:
    several = min(count, _MOST_TENSORS)
    ends = [round(number * count / several) for number in range(several + 1)] if several else [0]
    return [range(start, end) for start, end in itertools.pairwise(ends)]


def _sketch(tensor: Tensor, seed: int) -> tuple[Tensor, float]:
    """Return buckets and the square of the norm."""
    flat = (tensor.to_dense() if tensor.is_sparse else tensor).detach().flatten()
    generator = torch.Generator(flat.device).manual_seed(seed)
    buckets = torch.zeros(BUCKETS, dtype=torch.float64, device=flat.device)
    square = torch.zeros((), dtype=torch.float64, device=flat.device)
    for part in flat.split(_CHUNK):
        drawn = torch.randint(
            0, 2 * BUCKETS, part.shape, generator=generator, device=flat.device, dtype=torch.int32
        )
        values = part.double()
        square += values.square().sum()
        buckets.index_add_(0, drawn >> 1, torch.where(drawn % 2 == 0, values, -values))
    return buckets.cpu(), float(square)
