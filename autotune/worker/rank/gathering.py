"""Exchange of numbers between all ranks."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

Figures = TypeVar("Figures", bound=tuple[Any, ...])


Gather = Callable[[Any], list[Any]]
"""This rank's figures -> those of every rank, on every rank.

All of them must choose the same next block. Figures are a NamedTuple of numbers and of such
NamedTuples, of one type on every rank.
"""


class RankFigures(NamedTuple):
    """Figures of one rank for a block."""

    seconds: float
    wait_seconds: float
    """Time spent waiting for the data loader."""
    loss: float
    """Last loss that was read."""
    peak_bytes: float
    """Peak since the trial began."""


def among_ranks(world_size: int) -> Gather:
    """Gather by a collective of the process group that the ranks train with."""

    def gather(mine: Figures) -> list[Figures]:
        sent = torch.tensor(list(_numbers(mine)), dtype=torch.float64)
        received = [torch.empty_like(sent) for _ in range(world_size)]
        dist.all_gather(received, sent)
        return [_filled(mine, iter(tensor.tolist())) for tensor in received]

    return gather


def over_store(store: Store, rank: int, world_size: int) -> Gather:
    """Gather through a store, independently of the process groups of the training.

    Args:
        store: in which only this function uses the keys.
        rank: number of this rank.
        world_size: number of ranks that take part.
    """
    rounds = itertools.count()

    def gather(mine: Figures) -> list[Figures]:
        number = next(rounds)
        store.set(f"{number}/{rank}", json.dumps(list(_numbers(mine))))
        gathered = (json.loads(store.get(f"{number}/{other}")) for other in range(world_size))
        return [_filled(mine, iter(numbers)) for numbers in gathered]

    return gather


def _numbers(figures: Iterable[Any]) -> Iterator[float]:
    for figure in figures:
        if isinstance(figure, tuple):
            yield from _numbers(figure)
        else:
            yield figure


def _filled(form: Any, numbers: Iterator[float]) -> Any:
    return form._make(
        _filled(part, numbers) if isinstance(part, tuple) else next(numbers) for part in form
    )
