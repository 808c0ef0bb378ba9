"""Context of a rank: its place among the ranks, its devices, and permission to train.

Permission comes block by block on devices that interleaved trials share.
"""

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

import torch

from autotune.worker import proc, processes
from autotune.worker.observers.threads import ThreadsCpu, seconds_to_rest
from autotune.worker.protocol import Configure, TrialRequest, Turn, Waiting, from_line


class Turns(Protocol):
    """Source of turns, which `run_blocks` asks before each block.

    Attributes:
        waiting_cpu: seconds of processor time that other threads of the rank used in the latest wait.
    """

    waiting_cpu: float

    def next(self) -> Turn | None:
        """Wait for permission to train a block; return None if another configuration has come."""

    def silence(self) -> None:
        """Stop background work of this rank until its next turn, as the block is over."""


class _Alone:
    """Source of turns for a trial that has its devices to itself."""

    waiting_cpu = 0.0

    def next(self) -> Turn:
        return Turn("", 0)

    def silence(self) -> None:
        """Do nothing: no other trial is disturbed."""


ALONE = _Alone()


class TakenTurns:
    """Source of turns that the agent passes on.

    A waiting rank takes no processor time, and what it has started is stopped, such as workers of a
    loader: batches that they prepared meanwhile would cost its steps no waiting. Threads cannot be
    stopped, so what they use is told.
    """

    def __init__(self, connection: Connection) -> None:
        """Use the connection to the agent, on which `listen` receives turns."""
        self._connection = connection
        self._given: queue.SimpleQueue[Turn | Configure] = queue.SimpleQueue()
        self._following: TrialRequest | None = None
        self._last = 0
        self._stopped: set[int] | None = None
        """Processes that this one has started and stopped; None while it trains."""
        self._own_threads = {threading.get_native_id()}
        """Threads that take no part in the training while it waits: this one, and that which listens."""
        self.waiting_cpu = 0.0

    def listen(self, gone: Callable[[], None]) -> None:
        """Receive turns until the agent is gone, then call `gone`. For a thread of its own."""
        self._own_threads.add(threading.get_native_id())
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = from_line(self._connection.recv_bytes())
                if isinstance(message, Turn | Configure):
                    self._given.put(message)
        gone()

    def next(self) -> Turn | None:
        """Wait for the next turn, or another configuration; the rank is silent meanwhile."""
        self.silence()
        self._connection.send_bytes(Waiting(self._last).to_line())
        others = ThreadsCpu(self._own_threads)
        given = self._received(others)
        self.waiting_cpu = others.seconds()
        self._wake()
        if isinstance(given, Configure):
            self._following = given.request
            return None
        self._last = given.number
        return given

    def _received(self, others: ThreadsCpu) -> Turn | Configure:
        """Wait for what comes; meanwhile `others` counts native threads once they could be at rest."""
        with contextlib.suppress(queue.Empty):
            return self._given.get(timeout=seconds_to_rest())
        others.count_native()
        return self._given.get()

    def following(self) -> TrialRequest:
        """Return the next configuration; wait for it unless `next` has received it."""
        while self._following is None:
            self.next()
        request, self._following = self._following, None
        return request

    def silence(self) -> None:
        """Stop the processes that this one has started, and those that they have."""
        if self._stopped is None:
            self._stopped = _stop_children()

    def _wake(self) -> None:
        _resume(self._stopped or ())
        self._stopped = None


class OwnTurns:
    """Source of turns for a warm worker that has the devices to itself.

    A turn only lets it go on, and nothing that is timed depends on it.
    """

    waiting_cpu = 0.0

    def __init__(self, turns: TakenTurns) -> None:
        self._turns = turns

    def next(self) -> Turn | None:
        turn = self._turns.next()
        return ALONE.next() if turn else None

    def silence(self) -> None:
        self._turns.silence()


@contextlib.contextmanager
def resting_children() -> Iterator[None]:
    """Return a context in which the processes that this one has started rest.

    All ranks have to be past their block: none may wait for such a process of another.
    """
    stopped = _stop_children()
    try:
        yield
    finally:
        _resume(stopped)


def _stop_children() -> set[int]:
    """Stop the processes that this one has started, and those that they have; return all of them.

    Those that remove shared memory load nothing, and have to go on where this one ends as it waits.
    """
    started = processes.started_by(os.getpid())
    stopped = {pid for pid in started if not processes.removes_segments(pid)}
    for pid in stopped:
        proc.send(pid, signal.SIGSTOP)
    return stopped


def _resume(pids: Collection[int]) -> None:
    for pid in pids:
        proc.send(pid, signal.SIGCONT)


@dataclass(frozen=True)
class RankContext:
    """Place of a rank in its trial, and the devices it computes on."""

    rank: int
    local_rank: int
    world_size: int
    devices: tuple[torch.device, ...]
    first_on_device: bool = True
    """True if no rank before it shares its device."""
    alone: bool = True
    """True if no other trial may be on its device, except those interleaved with this one."""
    turns: Turns = ALONE
    """Source of permission to train a block."""

    @property
    def device(self) -> torch.device:
        """Return the device that holds the rank's model and takes its batches."""
        return self.devices[0]
