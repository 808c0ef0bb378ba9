"""Waiting for what must come about, rather than for time to pass."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_POLL_SECONDS = 0.05
_PRESSURE = Path("/proc/pressure/cpu")

Found = TypeVar("Found")


def wait_for(condition: Callable[[], Found], what: str, timeout: float = 180.0) -> Found:
    """What the condition returns once that is true.

    Raises:
        AssertionError: it is not within so many seconds.
    """
    give_up = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        time.sleep(_POLL_SECONDS)
    return found


def stopwatch() -> Callable[[], float]:
    """Tells the seconds since, less those in which anything on this machine waited for a processor: they
    do not show how long a thing takes by itself."""
    began, hindered = time.monotonic(), _hindered()
    return lambda: time.monotonic() - began - (_hindered() - hindered)


def _hindered() -> float:
    """Since the machine started; 0 where the kernel does not count it (pressure stall information)."""
    if not _PRESSURE.exists():
        return 0.0
    some = _PRESSURE.read_text().splitlines()[0]
    return float(some.rpartition("total=")[2]) / 1e6
