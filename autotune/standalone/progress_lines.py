"""Telling what a long run is doing while it runs."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator

_EVERY = 10.0
"""Seconds between two lines."""
_MOST_SHOWN = 100
"""Characters of a line of output."""
_ENDS_OF_LINES = re.compile(r"[\r\n]+")


@contextlib.contextmanager
def reported(
    say: Callable[[str], None], output: Callable[[], str], every: float = _EVERY
) -> Iterator[None]:
    """Say every few seconds, until the block is left, how long it has taken and what was printed last.

    Args:
        say: told a line.
        output: the end of what was printed.
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
    """The last line of a text with anything in it, shortened; a progress bar has many."""
    lines = [line.strip() for line in _ENDS_OF_LINES.split(text) if line.strip()]
    last = lines[-1] if lines else ""
    return last if len(last) <= _MOST_SHOWN else f"{last[: _MOST_SHOWN - 3]}..."
