"""Knobs of a script's DataLoaders: on those of the training, as far as they can be told apart."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader

from autotune.worker.effects.feeding import LOADER_ARGUMENTS, OF_WORKERS
from autotune.worker.inject.constructed import construct_by
from autotune.worker.patches import wrapping
from autotune.worker.protocol import Knobs

_WITHOUT_WORKERS = {"persistent_workers": False, "prefetch_factor": None, "timeout": 0}
"""Values that a DataLoader must have if it has no workers."""
_PREFETCH_FACTOR = 2
"""Value that a DataLoader with workers has where none is given."""


class LoaderChanges:
    """Application of some knobs to the loaders that a script constructs.

    A loader is changed if it has what the baseline says. While gradients are disabled, as where a
    model is evaluated, it is read as the script has built it.

    Attributes:
        acted: whether a loader was changed.
    """

    def __init__(self, knobs: Knobs, names: Iterable[str], today: Mapping[str, Any]) -> None:
        """Prepare the changes.

        Args:
            knobs: a value for every knob.
            names: of those to apply.
            today: their values in the baseline; those of missing ones may be any.
        """
        names = list(names)
        self._wanted = {LOADER_ARGUMENTS[name]: knobs[name] for name in names}
        self._today = {LOADER_ARGUMENTS[name]: today[name] for name in names if name in today}
        self._own: WeakKeyDictionary[DataLoader[Any], dict[str, Any]] = WeakKeyDictionary()
        self.acted = False

    def watch(self) -> None:
        """Change loaders that are constructed from now on."""
        construct_by(DataLoader, self._build)
        wrapping(DataLoader, "__iter__")(self._read)

    def _build(self, build: Callable[..., None], bound: Any) -> None:
        build(*bound.args, **bound.kwargs)
        loader: DataLoader[Any] = bound.arguments["self"]
        if self._is_todays(loader):
            values = {name: getattr(loader, name) for name in _WITHOUT_WORKERS} | self._wanted
            self._own[loader] = {name: getattr(loader, name) for name in values}
            vars(loader).update(_allowed(loader, values))
            self.acted = True

    def _is_todays(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader has the baseline's values, of those that mean anything to it."""
        return all(
            getattr(loader, name) == value
            for name, value in self._today.items()
            if (loader.num_workers or name not in OF_WORKERS)
            and (torch.accelerator.is_available() or name != "pin_memory")
        )

    def _read(self, read: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        own = None if torch.is_grad_enabled() else self._own.get(loader)
        if own is None:
            return read(loader)
        changed = {name: getattr(loader, name) for name in own}
        vars(loader).update(own)
        try:
            return read(loader)
        finally:
            vars(loader).update(changed)


def _allowed(loader: DataLoader[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a loader so that its iterators take them together."""
    if not values.get("num_workers", loader.num_workers):
        return {**values, **_WITHOUT_WORKERS}
    return {**values, "prefetch_factor": values["prefetch_factor"] or _PREFETCH_FACTOR}
