"""Loader workers that persist while the script changes the dataset that they hold."""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, dataloader

from autotune.worker.patches import wrapping

State = Mapping[str, Any]
_MOST_LEVELS = 5
_MOST_VALUES = 2000
_MOST_ENTRIES = 32
"""Entries compared of a list, tuple or mapping."""
_MOST_BYTES = 1 << 16
"""Bytes compared of an array."""
_SCALARS = (bool, int, float, complex, str, bytes)
_MOST_COMPARED = 3
"""Number of epochs compared: what a script changes, it changes in each."""
_STATE = "_state_seen_by_autotune"
"""Attribute of an iterator with workers: the state that they were given."""
_YIELDED = "_yielded_of_autotune"


class Epochs:
    """Observer of loaders with persistent workers.

    Attributes:
        compared: epochs at whose beginning workers of an earlier one were there.
        stale: names of values that the script had changed in their dataset by then; workers do not
            see the changes.
    """

    def __init__(self, most_batches: int = 0) -> None:
        """Prepare the observer.

        Args:
            most_batches: number after which every epoch ends; 0: the script decides.
        """
        self.compared = 0
        self.stale: tuple[str, ...] = ()
        self._most_batches = most_batches

    def watch(self) -> None:
        """Observe every epoch from now on."""

        @wrapping(DataLoader, "__iter__")
        def begun(begin: Any, loader: DataLoader[Any]) -> Any:
            stays = loader.persistent_workers and loader.num_workers
            if not stays or self.compared >= _MOST_COMPARED:
                return self._counted(begin(loader))
            now = state_of({"dataset": loader.dataset, "collate_fn": loader.collate_fn})
            kept = getattr(loader, "_iterator", None)
            iterator = begin(loader)
            if kept is None:
                setattr(iterator, _STATE, now)
            else:
                self.compared += 1
                self.stale = self.stale or changed(getattr(kept, _STATE, {}), now)
            return self._counted(iterator)

        if self._most_batches:
            self._end_early()

    def _counted(self, iterator: Any) -> Any:
        if self._most_batches and isinstance(iterator, dataloader._BaseDataLoaderIter):
            setattr(iterator, _YIELDED, 0)
        return iterator

    def _end_early(self) -> None:

        @wrapping(dataloader._BaseDataLoaderIter, "__next__")
        def fetched(fetch: Any, iterator: Any) -> Any:
            yielded = getattr(iterator, _YIELDED, 0)
            if yielded >= self._most_batches:
                raise StopIteration
            setattr(iterator, _YIELDED, yielded + 1)
            return fetch(iterator)


def changed(before: State, now: State) -> tuple[str, ...]:
    """Return names of values that are in both states and differ. Added ones are taken for caches."""
    return tuple(
        name for name, value in before.items() if name in now and not _same(value, now[name])
    )


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, or both are NaN."""
    return bool(one == other or (one != one and other != other))


def state_of(parts: Mapping[str, Any]) -> State:
    """Return scalars, arrays and short sequences that objects hold, by their path.

    Tensors in shared memory and objects that multiprocessing shares are left out: workers see their
    changes. What follows an object that cannot be looked at is left out as well.
    """
    found: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        for name, value in itertools.islice(_values(parts, "", 0, set()), _MOST_VALUES):
            found[name] = value
    return found


def _values(value: Any, name: str, level: int, above: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _SCALARS):
        yield name, value if len(repr(value)) <= _MOST_BYTES else hash(value)
    elif isinstance(value, Tensor):
        dense = value.layout is torch.strided and not value.is_nested
        if dense and not value.is_shared():
            yield name, (tuple(value.shape), value._version, value.data_ptr())
    elif all(callable(getattr(value, one, None)) for one in ("tobytes", "reshape")):
        flat = value.reshape(-1)[: _MOST_BYTES // max(1, value.itemsize)]
        yield name, (tuple(value.shape), hashlib.blake2b(flat.tobytes()).hexdigest())
    elif level < _MOST_LEVELS and id(value) not in above:
        for part, inner in _parts(value):
            yield from _values(
                inner, f"{name}.{part}" if name else part, level + 1, above | {id(value)}
            )


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(key), value[key]) for key in itertools.islice(value, _MOST_ENTRIES))
    elif isinstance(value, list | tuple):
        yield "length", len(value)
        yield from ((str(place), one) for place, one in enumerate(value[:_MOST_ENTRIES]))
    elif not isinstance(value, type | torch.nn.Module) and hasattr(value, "__dict__"):
        yield from vars(value).items()
