"""Several daemons of one queue under one process, each of which runs one study at a time."""

import logging
import subprocess
import threading
import time
from collections.abc import Callable

_POLL_SECONDS = 0.5
_AGAIN_SECONDS = 5.0
"""Pause before a daemon that has died is replaced."""
_LEAVE_SECONDS = 120.0
"""Timeout of a daemon that was told to leave: it clears away what runs first."""

log = logging.getLogger(__name__)


class DaemonPool:
    """Supervisor of daemons: replaces those that die, until all have left or it is told to leave."""

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]], count: int) -> None:
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
        """Run the daemons until each has left by itself, or all were told to."""
        running = [self._start() for _ in range(self._count)]
        while running and not self._leaving.wait(_POLL_SECONDS):
            self._sign = time.monotonic()
            running = [one for each in running for one in self._kept(each)]
        for process in running:
            process.terminate()
        give_up = time.monotonic() + _LEAVE_SECONDS
        for process in running:
            try:
                process.wait(max(0.0, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()

    def shut_down(self) -> None:
        """Have all daemons leave; their studies stay in the queue.

        May be called from a signal handler.
        """
        self._leaving.set()

    def _kept(self, process: subprocess.Popen[bytes]) -> list[subprocess.Popen[bytes]]:
        """Return the daemon, or another one in its place if it has died; none if it has left."""
        code = process.poll()
        if code is None:
            return [process]
        if code == 0:
            return []
        log.warning("daemon %d has died (%d); another one takes its place", process.pid, code)
        self._leaving.wait(_AGAIN_SECONDS)
        return [] if self._leaving.is_set() else [self._start()]
