"""Comparison of the ranks' replicas of a model by two numbers of each."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor


class ReplicaSums(NamedTuple):
    """Two sums that are equal for equal replicas of a model."""

    weights: float
    """Sum of all parameters."""
    size: float
    """Sum of their magnitudes."""


def sums_of(parameters: Iterable[Tensor]) -> ReplicaSums:
    """Return the sums of one replica; sharded parameters are gathered."""
    weights = size = 0.0
    for parameter in parameters:
        values = whole(parameter.detach()).double()
        weights += float(values.sum())
        size += float(values.abs().sum())
    return ReplicaSums(weights, size)


def spread(replicas: Sequence[ReplicaSums]) -> float:
    """Return how far the replicas lie apart, relative to their size."""
    totals = [one.weights for one in replicas]
    return (max(totals) - min(totals)) / max(*(one.size for one in replicas), 1e-30)


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor, gathered if it is sharded over the ranks."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found
