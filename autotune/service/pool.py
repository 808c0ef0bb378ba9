"""Several daemons of one queue under one process, each of which runs one study at a time."""

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from autotune.errors import AutotuneError

_POLL_SECONDS = 0.5
_AGAIN_SECONDS = 5.0
"""Pause before a daemon that has died is replaced."""
_MOST_DEATHS = 4
"""Deaths in a row, in the place of one daemon, after which the pool gives up."""
_LASTING_SECONDS = 600.0
"""Life of a daemon after which its death is the first of a new row."""
_LEAVE_SECONDS = 120.0
"""Timeout of a daemon that was told to leave: it clears away what runs first."""

log = logging.getLogger(__name__)

Start = Callable[[], subprocess.Popen[bytes]]


class DaemonPool:
    """Supervisor of daemons: replaces those that die, until all have left or it is told to leave."""

    def __init__(self, start: Start, count: int) -> None:
        """Prepare to start the daemons.

        Args:
            start: starts one.
            count: number of daemons.
        """
        self._start = start
        self._count = count
        self._leaving = threading.Event()
        self._sign = time.monotonic()

    @property
    def silence(self) -> float:
        """Seconds since it last looked at its daemons: twice a second, if all is well."""
        return time.monotonic() - self._sign

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
                places = [place for place in places if not place.has_left]
                self._leaving.wait(_POLL_SECONDS)
        finally:
            _end([place.process for place in places if place.process])

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
                self.process, self._began = self._start(), now
            return
        if code := self.process.poll():
            self._count_death(self.process.pid, code, now)
            self.process, self._due = None, now + _AGAIN_SECONDS

    def _count_death(self, pid: int, code: int, now: float) -> None:
        self._deaths = 1 if now - self._began >= _LASTING_SECONDS else self._deaths + 1
        if self._deaths >= _MOST_DEATHS:
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
