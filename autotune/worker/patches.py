"""Changes to functions of other modules: at once, or as soon as a module is imported."""

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Change = Callable[[Any], None]
Wrapper = Callable[..., Any]


def wrapping(owner: Any, name: str) -> Callable[[Wrapper], Wrapper]:
    """Decorate a function that is called in the place of another one from now on.

    It is given the original before the arguments of a call. Name and signature stay the original's.

    Args:
        owner: module or class that has the other function.
    """
    original: Wrapper = getattr(owner, name)

    def replace(wrapper: Wrapper) -> Wrapper:
        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        setattr(owner, name, wrapped)
        return wrapper

    return replace


class Arrivals(MetaPathFinder):
    """Finder that finds nothing itself, and changes modules that other finders have found."""

    def __init__(self, changes: dict[str, Change]) -> None:
        """Prepare changes: name of a module -> function that changes it."""
        self._changes = dict(changes)

    def begin(self) -> None:
        """Change modules that are imported already, and others as they are imported."""
        for name in [name for name in self._changes if name in sys.modules]:
            self._changes.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module through the other finders, if it is to be changed."""
        if name not in self._changes:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            found: ModuleSpec | None = find(name, path, target) if find and finder != self else None
            if found:
                if found.loader:
                    found.loader = _Changing(found.loader, self._changes.pop(name))
                return found
        return None


class _Changing(Loader):
    """Loader that changes a module after another loader has loaded it."""

    def __init__(self, loader: Any, change: Change) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
