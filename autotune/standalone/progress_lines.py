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
_WARNING_OF_TORCH = re.compile(
    r"(\[\w+\]:)*(\[W\d+ [^\]]*\.cpp:\d+\]|W\d{4} \S+ \d+ torch/\S+:\d+\])"
)
"""Beginning of a warning in a log of torch, which is not the script's, perhaps behind a rank."""


@contextlib.contextmanager
def reported(
    say: Callable[[str], None], output: Callable[[], str], every: float = _EVERY
) -> Iterator[None]:
    """Report every few seconds, until the block is left, how long it has taken and the last output.

    Args:
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
    """Return the last line of a script's output, shortened; empty if there is none.

    Blank lines and warnings of torch's logs are left out. A progress bar has many lines.
    """
    lines = (line.strip() for line in reversed(_ENDS_OF_LINES.split(text)))
    last = next((line for line in lines if line and not _WARNING_OF_TORCH.match(line)), "")
    return last if len(last) <= _MOST_SHOWN else f"{last[: _MOST_SHOWN - 3]}..."
