"""Processor time of the Python threads of this process, as Linux accounts for it.

Source: Documentation/scheduler/sched-stats.rst of Linux, `/proc/<pid>/schedstat`.
"""

import contextlib
import threading
from pathlib import Path

_OF_PINNING = "_pin_memory_loop"
"""Part of the name of the thread by which a loader pins what its workers have ready."""
_NANOSECONDS = 1e9


def other_threads_cpu() -> float:
    """Return the seconds of processor time of all Python threads of this process but the calling one.

    The thread that pins a loader's batches does not count: it has nothing to do while the workers are
    stopped. A thread that has ended does not count either, nor does any where Linux keeps no such
    accounts.
    """
    own, seconds = threading.get_native_id(), 0.0
    for thread in threading.enumerate():
        if thread.native_id not in (None, own) and _OF_PINNING not in thread.name:
            with contextlib.suppress(OSError, ValueError, IndexError):
                told = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
                seconds += int(told.split()[0]) / _NANOSECONDS
    return seconds
