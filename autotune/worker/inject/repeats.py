"""Batches that itertools.cycle gives again: it keeps them, and no loader draws them a second time."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, dataloader

from autotune.worker.inject.draws import Batch, Draws


def watch(draws: Draws) -> None:
    """Count what itertools.cycle repeats of a loader that is trained on as drawn again."""
    plain: Any = itertools.cycle

    class Cycle(plain):  # type: ignore[misc]
        repeats: _Repeats | None = None

        def __new__(cls, iterable: Any, /) -> Any:
            if not isinstance(iterable, DataLoader | dataloader._BaseDataLoaderIter):
                return plain.__new__(cls, iterable)
            repeats = _Repeats(draws, iter(iterable))  # at once, as its seed is drawn there
            made = plain.__new__(cls, repeats)
            made.repeats = repeats
            return made

        def __next__(self) -> Any:
            item = plain.__next__(self)
            if self.repeats is not None:
                self.repeats.gave()
            return item

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Cycle, name, getattr(plain, name))
    itertools.cycle = Cycle  # type: ignore[misc]


class _Repeats:
    """First pass over a loader, with the batches that were drawn for each of its items."""

    def __init__(self, draws: Draws, iterator: Iterator[Any]) -> None:
        self._draws = draws
        self._iterator = iterator
        self._of_items: list[list[Batch]] = []
        self._again: Iterator[list[Batch]] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        before = self._draws.waiting
        try:
            item = next(self._iterator)
        except StopIteration:
            self._iterator, self._again = iter(()), self._passes()
            raise
        self._of_items.append(self._draws.since(before))
        return item

    def gave(self) -> None:
        """Take in that an item was given."""
        if self._again is None:
            return
        batches, now = next(self._again), self._draws.quiet
        if torch.is_grad_enabled():
            for batch in batches:
                if batch.source.trained:
                    self._draws.drew(batch._replace(asked=now, drawn=now))

    def _passes(self) -> Iterator[list[Batch]]:
        """Yield the batches of each item over and over, each time with sources of their own."""
        while True:
            first = {batch.source for batches in self._of_items for batch in batches}
            sources = {one: dataclasses.replace(one, rows=0, shorter=False) for one in first}
            for batches in self._of_items:
                yield [batch._replace(source=sources[batch.source]) for batch in batches]
