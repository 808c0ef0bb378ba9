"""Batches that workers of a DataLoader have prepared and the training has not taken yet.

They grow in a pause of the training, as while it compiles. Steps that live on them are faster than the
loader is.
"""

import math
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader

from autotune.worker.patches import wrapping

_iterators: weakref.WeakSet[Any] = weakref.WeakSet()
"""Iterators with workers, of this process."""


def watch() -> None:
    """Remember the iterators with workers of all DataLoaders from now on."""

    @wrapping(dataloader._MultiProcessingDataLoaderIter, "__init__")
    def begun(begin: Callable[..., None], iterator: Any, *args: Any, **kwargs: Any) -> None:
        begin(iterator, *args, **kwargs)
        _iterators.add(iterator)


def ready_batches() -> float:
    """Return the number of batches that are ready; NaN without workers, or where it is not known."""
    try:
        several = [_ready(iterator) for iterator in list(_iterators)]
    except (
        Exception
    ):  # another version of torch, or a thread of the script uses an iterator just now
        return math.nan
    return float(sum(several)) if several else math.nan


def _ready(iterator: Any) -> int:
    # Those that were pinned wait in a second queue; those that came out of order are kept aside.
    queues = {id(q): q for q in (iterator._worker_result_queue, iterator._data_queue)}
    aside = sum(len(task) > 1 for task in iterator._task_info.values())
    return aside + sum(int(waiting.qsize()) for waiting in queues.values())
