"""Numbers of every rank, on every rank."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

Figures = TypeVar("Figures", bound=tuple[Any, ...])


class RankFigures(NamedTuple):
    """What one rank tells of a block."""

    seconds: float
    wait_seconds: float
    """For the data loader."""
    loss: float
    """The last one that was read."""
    peak_bytes: float
    """Since the trial began."""


def gather(mine: Figures, world_size: int) -> list[Figures]:
    """Every rank's figures, on every rank: all of them must choose the same next block.

    Args:
        mine: a NamedTuple of numbers and of such NamedTuples; the same on every rank.
    """
    sent = torch.tensor(list(_numbers(mine)), dtype=torch.float64)
    received = [torch.empty_like(sent) for _ in range(world_size)]
    dist.all_gather(received, sent)
    return [_filled(mine, iter(tensor.tolist())) for tensor in received]


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
