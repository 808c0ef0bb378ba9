"""Samples of the batches that a DataLoader yields, by the indices that it has asked its data set for.

The loader's own process draws the indices of every batch, also where other processes fetch the data, and
yields the batches in the same order.
"""

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader

_LENGTHS = "_lengths_seen_by_autotune"
"""Attribute of a loader's iterator: samples of the batches that it has not yielded yet."""


def watch() -> None:
    """Look at the indices that every loader draws from now on."""
    iterator = dataloader._BaseDataLoaderIter
    draw: Callable[..., Any] = iterator._next_index

    @functools.wraps(draw)
    def watched(loader: Any) -> Any:
        index = draw(loader)
        known = loader.__dict__.get(_LENGTHS)
        if known is None:
            # How far the indices run ahead of an iterable data set, nothing tells.
            most = 1 if is_iterable(loader) else None
            known = loader.__dict__[_LENGTHS] = deque(maxlen=most)
        known.append(_length(loader, index))
        return index

    iterator._next_index = watched  # type: ignore[method-assign]


def take(loader: Any) -> int | None:
    """Samples of the batch that an iterator has just yielded; None if it does not know. Of an iterable
    data set the last batches may have less.

    Args:
        loader: the iterator.
    """
    known = loader.__dict__.get(_LENGTHS)
    if not known:
        return None
    length: int | None = known[0] if known.maxlen else known.popleft()
    return length


def forget(loader: Any) -> None:
    """Drop what an iterator has drawn, as it begins anew."""
    loader.__dict__.pop(_LENGTHS, None)


def is_iterable(loader: Any) -> bool:
    """Whether an iterator reads an IterableDataset."""
    return bool(loader._dataset_kind == dataloader._DatasetKind.Iterable)


def _length(loader: Any, index: Any) -> int | None:
    """Samples that an index stands for. Without batch_size it is that of an entry of the data set, which
    may be a batch, unless the sampler yields lists."""
    if isinstance(index, list):
        return len(index)
    if not loader._auto_collation:
        return None
    try:
        return len(index)
    except TypeError:
        return None
