"""Processor time of the Python threads of this process, as Linux accounts for it.

Source: Documentation/scheduler/sched-stats.rst of Linux, `/proc/<pid>/schedstat`.
"""

import contextlib
import threading
from collections.abc import Collection
from pathlib import Path

_OF_PINNING = "_pin_memory_loop"
"""Part of the name of the thread by which a loader pins what its workers have ready."""
_NANOSECONDS = 1e9


class ThreadsCpu:
    """Processor time of the Python threads of this process from now on.

    The thread that pins a loader's batches does not count: it has nothing to do while the workers are
    stopped. Nor does a thread that has ended meanwhile, nor any where Linux keeps no such accounts.
    """

    def __init__(self, besides: Collection[int]) -> None:
        """Begin to count; threads with the native ids `besides` do not."""
        self._besides = besides
        self._before = self._now()

    def seconds(self) -> float:
        """Return the seconds that the threads have used."""
        return sum(used - self._before.get(thread, 0.0) for thread, used in self._now().items())

    def _now(self) -> dict[int, float]:
        found = {}
        for thread in threading.enumerate():
            number = thread.native_id
            if number is None or number in self._besides or _OF_PINNING in thread.name:
                continue
            with contextlib.suppress(OSError, ValueError, IndexError):
                told = Path(f"/proc/self/task/{number}/schedstat").read_text()
                found[number] = int(told.split()[0]) / _NANOSECONDS
        return found
