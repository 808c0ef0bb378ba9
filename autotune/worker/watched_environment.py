"""Reading of environment variables, noticed while libraries are imported.

Libraries enumerate the environment, as for the environment of a program that they start. That alone is
no reading of any variable. An enumeration therefore yields witnesses of the variables that matter: their
names and values are strings which notice that something was done with them, or that they were kept.
"""

import contextlib
import functools
import gc
import os
import weakref
from collections.abc import Callable, Iterator, Set
from typing import Any

_ABSENT = "0"
"""Value in an enumeration of a variable that is not set."""
_HITS = {
    "__eq__": True,
    "__ne__": False,
    "startswith": True,
    "endswith": True,
    "__contains__": True,
}
"""Methods of a string that tell something of it only if they return this."""
_HARMLESS = {
    *("__class__", "__new__", "__init__", "__init_subclass__", "__subclasshook__", "maketrans"),
    *("__getattribute__", "__setattr__", "__delattr__", "__dir__", "__sizeof__"),
    *("__hash__", "__len__"),
    "encode",  # for a program that is started
}


class _Witness(str):
    """Name or value of a variable, which tells of what is done with it."""

    noted: Callable[[], None]
    __hash__ = str.__hash__


def _noting(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    @functools.wraps(method)
    def noting(self: _Witness, *args: Any, **kwargs: Any) -> Any:
        found = method(self, *args, **kwargs)
        # Two enumerations may be put together, as two dictionaries.
        beside = name in ("__eq__", "__ne__") and isinstance(args[0], _Witness)
        if not beside and found == _HITS.get(name, found):
            self.noted()
        return found

    return noting


for _name in {*dir(str)} - _HARMLESS:
    if callable(getattr(str, _name)):
        setattr(_Witness, _name, _noting(_name))


@contextlib.contextmanager
def watched(names: Set[str]) -> Iterator[list[str]]:
    """Notice which of these variables are read or set in os.environ meanwhile.

    Yields:
        Their names, some repeatedly; complete when the context is left.
    """
    asked = list[str]()
    witnesses = list[tuple[str, weakref.ref[_Witness]]]()
    usual = type(os.environ)

    def witness(name: str, text: str) -> _Witness:
        found = _Witness(text)
        found.noted = functools.partial(asked.append, name)
        witnesses.append((name, weakref.ref(found)))
        return found

    class Watched(usual):  # type: ignore[misc, valid-type]
        def __getitem__(self, key: str) -> str:
            if isinstance(key, _Witness):
                name = str.__str__(key)
                there = name.encode(errors="surrogateescape") in self._data
                return witness(name, str(super().__getitem__(name)) if there else _ABSENT)
            asked.extend({key} & names)
            return str(super().__getitem__(key))

        def __setitem__(self, key: str, value: str) -> None:
            asked.extend({key} & names)
            super().__setitem__(key, value)

        def __delitem__(self, key: str) -> None:
            asked.extend({key} & names)
            super().__delitem__(key)

        def __iter__(self) -> Iterator[str]:
            yield from (witness(name, name) for name in names)
            # These come last, as a loop may keep the last name.
            yield from (name for name in usual.__iter__(self) if name not in names)

    os.environ.__class__ = Watched
    try:
        yield asked
    finally:
        os.environ.__class__ = usual
        if witnesses:
            gc.collect()
        asked += [name for name, reference in witnesses if reference() is not None]
