"""Reports of a command about its training: lines of a file or of its output, read as they come."""

import json
import math
import os
import re
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

POLL_SECONDS = 0.02
"""Interval between two readings of a file: the timing error of a report without seconds."""
_READ_BYTES = 1 << 16
_MOST_READS = 16
"""Reads of output at a time: more than a pipe holds, so that all is read once its command has ended."""
_ENDS = re.compile(rb"[\r\n]+")
"""Ends of lines. Progress bars return to the beginning of theirs."""
_SHOWN = 200


class UnreadableReport(Exception):
    """Line that should have been a report; the text quotes it."""


@dataclass(frozen=True)
class ProgressReport:
    """One report: an amount, or a rate.

    Attributes:
        amount: samples, or tokens where the study counts those.
        rate: samples or tokens per second.
        seconds: time of the amount; None: since the report before.
        loss: 0 where the report has none.
    """

    amount: float | None = None
    rate: float | None = None
    seconds: float | None = None
    loss: float = 0.0


Reading = Callable[[str], ProgressReport | None]
"""Parser of a line; it returns None if the line is no report."""


def parse_json(line: str, *, tokens: bool) -> ProgressReport | None:
    """Parse a JSON object with the unit of the study and perhaps `seconds`, or with `throughput`.

    Other objects are no reports.

    Raises:
        UnreadableReport: it is no JSON object, a value is no positive number, or it counts another unit.
    """
    try:
        body = json.loads(line)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise UnreadableReport(f"no JSON object: {_shown(line)}")
    unit, other = ("tokens", "samples") if tokens else ("samples", "tokens")
    amount, rate, seconds = (_number(body, name, line) for name in (unit, "throughput", "seconds"))
    if amount is None and rate is None:
        if other in body:
            raise UnreadableReport(
                f"{other} and no {unit}, which the objective counts: {_shown(line)}"
            )
        return None
    loss = body.get("loss")
    last_loss = float(loss) if isinstance(loss, int | float) else 0.0
    return ProgressReport(amount, None if amount is not None else rate, seconds, last_loss)


def _number(body: dict[str, Any], name: str, line: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_positive(value):
        raise UnreadableReport(f"{name} is no number above 0: {_shown(line)}")
    return float(value)


def parse_match(line: str, *, pattern: re.Pattern[str]) -> ProgressReport | None:
    """Parse a line by a pattern whose only group finds the rate.

    Raises:
        UnreadableReport: the text it finds is no positive number.
    """
    found = pattern.search(line)
    if found is None:
        return None
    try:
        rate = float(found[1] or "")
    except ValueError:
        rate = math.nan
    if not _is_positive(rate):
        raise UnreadableReport(
            f"workload.throughput.pattern finds no number above 0: {_shown(line)}"
        )
    return ProgressReport(rate=rate)


def _is_positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _shown(line: str) -> str:
    return repr(line if len(line) <= _SHOWN else line[:_SHOWN] + "...")


class Lines(Protocol):
    """Source of lines."""

    def read(self) -> Iterator[str]:
        """Yield lines completed since the last call."""

    def wait(self) -> None:
        """Wait a moment, or until there is something to read."""


class FileLines:
    """Lines that are appended to a file, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Iterator[str]:
        """Yield lines completed since the last call."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0  # the file was truncated
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            if line.strip():
                yield line.decode(errors="replace")

    def wait(self) -> None:
        """Wait a moment."""
        time.sleep(POLL_SECONDS)


class OutputLines:
    """Lines of a command's output, which is copied to the log."""

    def __init__(self, output: IO[bytes], log: int) -> None:
        """Read from a command's output; `log` is the descriptor of the file that it is copied to."""
        self._descriptor = output.fileno()
        os.set_blocking(self._descriptor, False)
        self._log = log
        self._rest: list[bytes] = []
        """Parts of the line that has not ended yet."""
        self._open = True

    def read(self) -> Iterator[str]:
        """Yield lines completed since the last call, or some of them if there are very many."""
        for _ in range(_MOST_READS):
            if not self._open:
                return
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            if data:
                os.write(self._log, data)
            self._open = bool(data)
            for line in self._completed(data or b"\n"):
                if line.strip():
                    yield line.decode(errors="replace")

    def _completed(self, data: bytes) -> list[bytes]:
        """Return the lines that data complete; only these are looked through for ends."""
        first, *others = _ENDS.split(data)
        self._rest.append(first)
        if not others:
            return []
        whole, self._rest = b"".join(self._rest), [others[-1]]
        return [whole, *others[:-1]]

    def wait(self) -> None:
        """Wait until there is output, or a moment."""
        if self._open:
            select.select([self._descriptor], [], [], POLL_SECONDS)
        else:
            time.sleep(POLL_SECONDS)
