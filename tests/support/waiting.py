"""Waiting for what must come about, rather than for time to pass."""

import time
from collections.abc import Callable
from typing import TypeVar

_POLL_SECONDS = 0.05

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
    """Tells the seconds since. A limit for them is many times what a busy machine takes, and below what
    the fault would take."""
    began = time.monotonic()
    return lambda: time.monotonic() - began
