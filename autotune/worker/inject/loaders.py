"""Knobs of a script's DataLoaders: on those of the training, as far as they can be told apart."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from autotune.worker.effects.feeding import OF_WORKERS
from autotune.worker.inject.constructed import construct_by
from autotune.worker.patches import Arrivals, wrapping
from autotune.worker.protocol import Knobs

_WITHOUT_WORKERS = {
    "persistent_workers": False,
    "prefetch_factor": None,
    "timeout": 0,
    "_DataLoader__multiprocessing_context": None,
}
"""Values that a DataLoader must have if it has no workers."""
_KEPT = "_iterator"
"""Attribute of a DataLoader: its iterator, if its workers persist."""
_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
"""Module of a subclass that constructs and reads itself, without a call of DataLoader."""
_PREFETCH_FACTOR = 2
"""Value that a DataLoader with workers has where none is given."""


class LoaderChanges:
    """Application of some knobs to the loaders that a script constructs.

    A loader is changed if it has what the baseline says, or the wanted values, or shuffles: training
    shuffles, and the script may derive its values from the machine. While gradients are disabled, as
    where a model is evaluated, one that does not shuffle is read as the script has built it.

    Attributes:
        acted: whether a loader was read with the wanted values.
    """

    def __init__(self, knobs: Knobs, names: Iterable[str], baseline: Mapping[str, Any]) -> None:
        """Prepare the changes.

        Args:
            knobs: a value for every knob.
            names: of those to apply.
            baseline: their values in the baseline; those of missing ones may be any. Without workers in
                the baseline, the script may derive what it says of workers from their number.
        """
        names = list(names)
        self._wanted = {name: knobs[name] for name in names}
        derived = OF_WORKERS if baseline.get("num_workers") == 0 else ()
        self._baseline = {
            name: baseline[name] for name in names if name in baseline and name not in derived
        }
        self._own: WeakKeyDictionary[DataLoader[Any], dict[str, Any]] = WeakKeyDictionary()
        self.acted = False

    def watch(self) -> None:
        """Change loaders that are constructed from now on."""
        self._change(DataLoader)
        Arrivals({_STATEFUL: lambda module: self._change(module.StatefulDataLoader)}).begin()

    def _change(self, kind: type) -> None:
        construct_by(kind, self._build)
        wrapping(kind, "__iter__")(self._read)

    def _build(self, build: Callable[..., None], bound: Any) -> None:
        build(*bound.args, **bound.kwargs)
        loader: DataLoader[Any] = bound.arguments["self"]
        if _shuffles(loader) or _has(loader, self._baseline) or _has(loader, self._wanted):
            values = {name: getattr(loader, name) for name in _WITHOUT_WORKERS} | self._wanted
            own = {name: getattr(loader, name) for name in (*values, _KEPT)}
            if _has_state(loader):  # has one iterator, which others than its workers cannot reset
                del own[_KEPT]
                own["persistent_workers"] = False
            self._own[loader] = own
            vars(loader).update(_allowed(loader, values))

    def _read(self, read: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        own = self._own.get(loader)
        if own is None:
            return read(loader)
        if torch.is_grad_enabled() or _shuffles(loader):
            self.acted = True
            return read(loader)
        changed = {name: getattr(loader, name) for name in own}
        vars(loader).update(own)
        try:
            return read(loader)
        finally:
            if _KEPT in own:
                own[_KEPT] = getattr(loader, _KEPT)
            vars(loader).update(changed)


def _has_state(loader: DataLoader[Any]) -> bool:
    """Return whether a loader has a state, so that its one iterator is what tells and restores it."""
    return hasattr(loader, "state_dict")


def _has(loader: DataLoader[Any], values: Mapping[str, Any]) -> bool:
    """Return whether a loader has these values, of those that mean anything to it."""
    return all(
        getattr(loader, name) == value
        for name, value in values.items()
        if (loader.num_workers or name not in OF_WORKERS)
        and (torch.accelerator.is_available() or name != "pin_memory")
    )


def _shuffles(loader: DataLoader[Any]) -> bool:
    """Return whether a loader has an order of its own; that of an iterable data set is not known."""
    if isinstance(loader.dataset, IterableDataset):
        return False
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    return not isinstance(sampler, SequentialSampler) and getattr(sampler, "shuffle", True)


def _allowed(loader: DataLoader[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a loader so that its iterators take them together."""
    if not values.get("num_workers", loader.num_workers):
        return {**values, **_WITHOUT_WORKERS}
    return {**values, "prefetch_factor": values["prefetch_factor"] or _PREFETCH_FACTOR}
