"""Daemons that die at a commit: in this process, and yet so that the dead write nothing any more."""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from optuna.storages._cached_storage import _CachedStorage

from autotune.errors import StaleLease
from storage import TrialLedger
from storage.attempt_records import AttemptRecords
from storage.claims import Claims
from storage.leases import Leases
from storage.repository import Environments, Messages, NoiseRecords, Recommendations

OWNERS: dict[str, type] = {
    owner.__name__: owner
    for owner in (
        AttemptRecords,
        Environments,
        Leases,
        Messages,
        NoiseRecords,
        Recommendations,
        Claims,
        TrialLedger,
    )
} | {"Optuna": _CachedStorage}
HEARTBEATS = ("Leases.renew", "Claims.add_elapsed")
"""Called by a thread of its own, which takes the loss of the lease for its end."""


def writers() -> list[str]:
    """All methods by which a daemon writes: those that take its lease, or give it one, those of the
    ledger that prove it, and Optuna's."""

    def writes(owner: str, name: str, method: Callable[..., Any]) -> bool:
        if owner == "Optuna":
            return name.startswith(("create_", "set_", "delete_"))
        if owner == "TrialLedger":
            return hasattr(method, "__wrapped__")
        return not {"lease", "holder"}.isdisjoint(inspect.signature(method).parameters)

    return [
        f"{owner}.{name}"
        for owner, found in OWNERS.items()
        for name, method in inspect.getmembers(found, inspect.isfunction)
        if not name.startswith("_") and writes(owner, name, method)
    ]


class Died(BaseException):
    """What SIGKILL would have done: nobody handles it."""


@dataclass(frozen=True)
class Commit:
    """A method that commits, and how often a study of the tests here calls it."""

    method: str
    calls: int

    @property
    def points(self) -> list[tuple[str, str, int]]:
        """When a daemon can die there: before or after each of the first three calls."""
        calls = range(1, min(self.calls, 3) + 1)
        return [(self.method, when, call) for call in calls for when in ("before", "after")]


class Mortal:
    """Counts the calls of methods; kills at one of them, from which on all of them are dead."""

    def __init__(self, point: tuple[str, str, int] | None = None) -> None:
        self.calls: dict[str, int] = {}
        self.dead = False
        self._point = point
        self._lock = threading.Lock()

    def wrapped(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method as a mortal calls it."""

        @functools.wraps(method)
        def mortal(*arguments: Any, **options: Any) -> Any:
            self._check(name)
            with self._lock:
                self.calls[name] = self.calls.get(name, 0) + 1
                now = (name, self.calls[name])
            self._die_at(now, "before")
            found = method(*arguments, **options)
            self._check(name)
            self._die_at(now, "after")
            return found

        return mortal

    def _die_at(self, now: tuple[str, int], when: str) -> None:
        if self._point == (now[0], when, now[1]):
            self.dead = True
            raise Died

    def _check(self, name: str) -> None:
        if self.dead:
            raise StaleLease("dead") if name in HEARTBEATS else Died


@contextlib.contextmanager
def mortal(names: list[str], point: tuple[str, str, int] | None = None) -> Iterator[Mortal]:
    """Inside, whoever calls these methods may die at the point: (method, before or after, call)."""
    found = Mortal(point)
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            owner, _, method = name.partition(".")
            wrapped = found.wrapped(name, getattr(OWNERS[owner], method))
            patch.setattr(OWNERS[owner], method, wrapped)
        yield found
