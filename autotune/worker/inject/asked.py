"""Indices that DataLoaders ask their data sets for, batch by batch.

The loader's own process draws the indices of every batch, also where other processes fetch the data, and
yields the batches in the same order.
"""

from collections import deque
from typing import Any

from torch.utils.data import dataloader

from autotune.worker.patches import wrapping

_ASKED = "_asked_seen_by_autotune"
"""Attribute of a loader's iterator: indices of the batches that it has not yielded yet."""


def watch() -> None:
    """Observe the indices that every loader draws from now on."""
    iterator = dataloader._BaseDataLoaderIter

    @wrapping(iterator, "_next_index")
    def watched(draw: Any, loader: Any) -> Any:
        index = draw(loader)
        asked = loader.__dict__.get(_ASKED)
        if asked is None:
            # Nothing tells how far the indices run ahead of an iterable data set.
            most = 1 if is_iterable(loader) else None
            asked = loader.__dict__[_ASKED] = deque(maxlen=most)
        asked.append(index)
        return index


def take(loader: Any) -> Any:
    """Return the index of the batch that an iterator has just yielded; None if it is not known.

    The last batches of an iterable data set may have fewer samples than their index asks for.
    """
    asked = loader.__dict__.get(_ASKED)
    if not asked:
        return None
    return asked[0] if asked.maxlen else asked.popleft()


def forget(loader: Any) -> None:
    """Drop the indices of an iterator that begins anew."""
    loader.__dict__.pop(_ASKED, None)


def is_iterable(loader: Any) -> bool:
    """Return whether an iterator reads an IterableDataset."""
    return bool(loader._dataset_kind == dataloader._DatasetKind.Iterable)


def samples(loader: Any, index: Any) -> int | None:
    """Return the samples that an index stands for; None if it does not tell.

    Without batch_size an index is that of an entry of the data set, which may be a batch, unless
    the sampler yields lists.
    """
    if isinstance(index, list):
        return len(index)
    if not loader._auto_collation:
        return None
    try:
        return len(index)
    except TypeError:
        return None
