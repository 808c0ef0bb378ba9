"""Processor time of the threads of this process, as Linux accounts for it.

Source: Documentation/scheduler/sched-stats.rst of Linux, `/proc/<pid>/schedstat`.
"""

import contextlib
import functools
import threading
from collections.abc import Collection, Iterable
from pathlib import Path

_TASKS = Path("/proc/self/task")
_SPINNING = (b"libiomp", b"libomp")
"""Parts of the names of OpenMP libraries whose threads spin for 200 ms after each parallel region (their
KMP_BLOCKTIME)."""
_SPIN_SECONDS, _SHORT_SPIN_SECONDS = 0.25, 0.02
_OF_PINNING = "_pin_memory_loop"
"""Part of the name of the thread by which a loader pins what its workers have ready."""
_NANOSECONDS = 1e9


@functools.cache
def seconds_to_rest() -> float:
    """Return the seconds after which native threads that have nothing to do rest, as OpenMP's do."""
    with contextlib.suppress(OSError):
        mapped = Path("/proc/self/maps").read_bytes()
        if any(library in mapped for library in _SPINNING):
            return _SPIN_SECONDS
    return _SHORT_SPIN_SECONDS


class ThreadsCpu:
    """Processor time of the threads of this process from now on: Python's, and native ones if asked.

    The thread that pins a loader's batches does not count: it has nothing to do while the workers are
    stopped. Nor does a thread that has ended meanwhile, nor any where Linux keeps no such accounts.
    """

    def __init__(self, besides: Collection[int]) -> None:
        """Begin to count Python's threads; those with the native ids `besides` never count."""
        pinning = {one.native_id for one in threading.enumerate() if _OF_PINNING in one.name}
        self._besides = {*besides, *pinning}
        self._before = _spent(_of_python())
        self._of_all = False

    def count_native(self) -> None:
        """Count all other threads as well from now on, such as those of a native loader."""
        self._of_all = True
        self._before = {**_spent(_all()), **self._before}

    def seconds(self) -> float:
        """Return the seconds that the threads have used."""
        now = _spent(_all() if self._of_all else _of_python())
        return sum(now[one] - self._before.get(one, 0.0) for one in now.keys() - self._besides)


def _of_python() -> list[int]:
    return [one.native_id for one in threading.enumerate() if one.native_id is not None]


def _all() -> list[int]:
    try:
        return [int(one.name) for one in _TASKS.iterdir()]
    except OSError:
        return _of_python()


def _spent(threads: Iterable[int]) -> dict[int, float]:
    """Return the seconds of processor time of each thread since it began."""
    found = {}
    for number in threads:
        with contextlib.suppress(OSError, ValueError, IndexError):
            told = (_TASKS / str(number) / "schedstat").read_text()
            found[number] = int(told.split()[0]) / _NANOSECONDS
    return found
