"""Progress messages about a long run."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator

_EVERY = 10.0
"""Seconds between two lines."""
_MOST_SHOWN = 100
"""Largest number of characters shown of a line of output."""
_ENDS_OF_LINES = re.compile(r"[\r\n]+")


@contextlib.contextmanager
def reported(
    say: Callable[[str], None], output: Callable[[], str], every: float = _EVERY
) -> Iterator[None]:
    """Report every few seconds, until the block is left, how long it has taken and the last output.

    Args:
        say: called with a line.
        output: returns the end of the output.
        every: seconds between two lines.
    """
    done, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(every):
            last = last_line(output())
            printed = f"; it has printed: {last}" if last else "; it has printed nothing yet"
            say(f"  {time.monotonic() - began:.0f} s{printed}")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def last_line(text: str) -> str:
    """Return the last line of a text that is not blank, shortened; a progress bar has many lines."""
    lines = [line.strip() for line in _ENDS_OF_LINES.split(text) if line.strip()]
    last = lines[-1] if lines else ""
    return last if len(last) <= _MOST_SHOWN else f"{last[: _MOST_SHOWN - 3]}..."
