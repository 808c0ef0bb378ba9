"""What goes to a terminal: text of trials, of their libraries, of whoever shares the database, too.

A terminal takes control characters for orders: to change what was printed before, its title or its
clipboard, and with some to type as if somebody had.
"""

import logging
import re
import sys
from typing import TextIO

_ENDS_OF_LINES = re.compile("\r+\n?")
"""A progress bar is written over itself: here each state of it is a line."""
_ORDERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for tabs and ends of lines
    "\u202a-\u202e\u2066-\u2069"  # what has text read in another order than it is written
    "\u2028\u2029\ud800-\udfff]"
)


def plain(text: str) -> str:
    r"""Return a text with what a terminal would obey written out, as `\x1b`."""
    text = _ENDS_OF_LINES.sub("\n", text)
    return _ORDERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def show(
    text: object = "", *, end: str = "\n", file: TextIO | None = None, flush: bool = False
) -> None:
    """Print it for people: what is piped on reaches a terminal, too."""
    print(plain(str(text)), end=end, file=file, flush=flush)


def hand_over(text: str) -> None:
    """Print it for a program, which gets it as it is; a terminal does not."""
    print(plain(text) if sys.stdout.isatty() else text, end="")


class PlainFormatter(logging.Formatter):
    """Of a log that is read on terminals."""

    def format(self, record: logging.LogRecord) -> str:
        """The message with what a terminal would obey written out."""
        return plain(super().format(record))
