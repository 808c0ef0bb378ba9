"""Several daemons of one queue under one process, each of which runs one study at a time."""

import contextlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from autotune.errors import AutotuneError

_POLL_SECONDS = 0.5
_AGAIN_SECONDS = 5.0
"""Pause before a daemon that has died is replaced."""
MOST_DEATHS = 4
"""Deaths in the place of one daemon after which no other one is started there."""
_LASTING_SECONDS = 600.0
"""Life of a daemon after which its death is the first of a new row."""
_LEAVE_SECONDS = 120.0
"""Timeout of a daemon that was told to leave: it clears away what runs first."""

log = logging.getLogger(__name__)

SIGNS = "AUTOTUNE_SIGNS"
"""Variable with the descriptor of the pipe of its signs of life, for a daemon that a pool starts."""
_MOST_SIGNS = 4096
"""Signs of life that are read at a time: a daemon gives one or two a second."""

Start = Callable[[int], subprocess.Popen[bytes]]
"""Function that starts a daemon, which writes a byte into this pipe at each sign of life."""


class DaemonPool:
    """Supervisor of daemons: replaces those that die, until all have left or it is told to leave."""

    def __init__(self, start: Start, count: int) -> None:
        self._start = start
        self._count = count
        self._leaving = threading.Event()
        self._sign = time.monotonic()
        self._signs: list[float] = [self._sign]
        """Monotonic times of the last signs of life of the daemons that run."""

    @property
    def silence(self) -> float:
        """Longest of the seconds since it last looked at its daemons, and since their signs of life."""
        return time.monotonic() - min(self._sign, *self._signs)

    def serve(self) -> None:
        """Run the daemons until each has left by itself, or all were told to.

        No daemon outlives this call, even if another one cannot be started.

        Raises:
            AutotuneError: daemons keep dying.
        """
        places = [_Place(self._start) for _ in range(self._count)]
        try:
            while places and not self._leaving.is_set():
                self._sign = time.monotonic()
                for place in places:
                    place.look()
                for place in [one for one in places if one.has_left]:
                    place.forget()
                    places.remove(place)
                self._signs = [place.sign for place in places if place.process] or [self._sign]
                self._leaving.wait(_POLL_SECONDS)
        finally:
            _end([place.process for place in places if place.process])
            for place in places:
                place.forget()

    def shut_down(self) -> None:
        """Have all daemons leave; their studies stay in the queue.

        May be called from a signal handler.
        """
        self._leaving.set()


class _Place:
    """Place of one daemon: its process, or the time at which the next one is started."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self.process: subprocess.Popen[bytes] | None = None
        self._due = self._began = time.monotonic()
        self.sign = self._began
        """Monotonic time of the last sign of life of its daemon, or of the start."""
        self._signs = -1
        """Pipe of the daemon's signs of life; -1: there is none."""
        self._deaths = 0

    @property
    def has_left(self) -> bool:
        """True once the daemon has left by itself."""
        return self.process is not None and self.process.poll() == 0

    def look(self) -> None:
        """Start a daemon if one is due; notice if the present one has died.

        Raises:
            AutotuneError: too many have died in a row.
        """
        now = time.monotonic()
        if self.process is None:
            if now >= self._due:
                self._begin(now)
            return
        with contextlib.suppress(BlockingIOError):
            if os.read(self._signs, _MOST_SIGNS):
                self.sign = now
        if code := self.process.poll():
            self._count_death(self.process.pid, code, now)
            self.process, self._due = None, now + _AGAIN_SECONDS
            self.forget()

    def _begin(self, now: float) -> None:
        self._signs, given = os.pipe()
        try:
            os.set_blocking(self._signs, False)
            os.set_blocking(given, False)
            self.process, self._began, self.sign = self._start(given), now, now
        finally:
            os.close(given)

    def forget(self) -> None:
        """Read no more signs of life of the daemon that was here."""
        if self._signs >= 0:
            os.close(self._signs)
        self._signs = -1

    def _count_death(self, pid: int, code: int, now: float) -> None:
        self._deaths = 1 if now - self._began >= _LASTING_SECONDS else self._deaths + 1
        if self._deaths >= MOST_DEATHS:
            raise AutotuneError(
                f"{self._deaths} daemons of this pool have died one after another, the last one, "
                f"process {pid}, with code {code}; the messages above say why. The pool ends, and "
                "its studies stay in the queue: start it again once the cause is mended"
            )
        log.warning("daemon %d has died (%d); another one takes its place", pid, code)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Tell daemons to leave and wait for them; kill those that take too long."""
    for process in processes:
        process.terminate()
    give_up = time.monotonic() + _LEAVE_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
