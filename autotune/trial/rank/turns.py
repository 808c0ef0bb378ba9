"""Leave to train, block by block, on devices that several trials share in turn."""

import contextlib
import multiprocessing
import os
import queue
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Protocol

from autotune.trial.protocol import Turn, Waiting, from_line


class Turns(Protocol):
    """What `run_blocks` asks before each block."""

    def next(self) -> Turn:
        """Wait for leave to train a block."""

    def silence(self) -> None:
        """The block is over: nothing of this rank is to run on, until it has leave again."""


class _Alone:
    """Nobody else is there: the devices are this trial's all the time."""

    def next(self) -> Turn:
        return Turn("", 0)

    def silence(self) -> None:
        """There is nobody to disturb."""


ALONE = _Alone()


class TakenTurns:
    """Turns that the agent passes on. A rank that waits takes no processor time, and its loader's
    workers are stopped: what they would prepare meanwhile, no step would have to wait for."""

    def __init__(self, connection: Connection) -> None:
        """Take in the line to the agent, on which `listen` hears of turns."""
        self._connection = connection
        self._given: queue.SimpleQueue[Turn] = queue.SimpleQueue()
        self._last = 0
        self._silent = False

    def listen(self, gone: Callable[[], None]) -> None:
        """Take in turns until the agent is gone, and say so. For a thread of its own."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = from_line(self._connection.recv_bytes())
                if isinstance(message, Turn):
                    self._given.put(message)
        gone()

    def next(self) -> Turn:
        """Wait for the next turn; the rank is silent meanwhile."""
        self.silence()
        self._connection.send_bytes(Waiting(self._last).to_line())
        turn = self._given.get()
        self._last = turn.number
        self._wake()
        return turn

    def silence(self) -> None:
        """Stop the processes that this one has started: a loader's workers, mostly."""
        if self._last and not self._silent:
            self._silent = True
            _signal_children(signal.SIGSTOP)

    def _wake(self) -> None:
        if self._silent:
            self._silent = False
            _signal_children(signal.SIGCONT)


def _signal_children(number: signal.Signals) -> None:
    for child in multiprocessing.active_children():
        if child.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child.pid, number)
