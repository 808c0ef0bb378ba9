"""Output to a terminal without control characters.

Texts come from trials, from libraries and from other users of a database. A terminal takes control
characters for orders: to change what was printed before, its title or its clipboard, or to type.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
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
    """Print a text for people, without control characters: a pipe may end at a terminal, too."""
    print(plain(str(text)), end=end, file=file, flush=flush)


def hand_over(text: str) -> None:
    """Print a text for a program unchanged, and for a terminal without control characters."""
    print(plain(text) if sys.stdout.isatty() else text, end="")


class PlainFormatter(logging.Formatter):
    """Formatter of a log that is read on terminals."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message with characters that a terminal would obey written out."""
        return plain(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formatter of a log that a program reads: an object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, logger and message, and the traceback if there is one."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found = {"time": at, "level": record.levelname, "logger": record.name}
        found["message"] = record.getMessage()
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found)
