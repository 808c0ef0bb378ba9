"""Batches that a loader's workers have ready, and processes that rest between blocks."""

import contextlib
import math
import multiprocessing
import multiprocessing.resource_tracker
import signal
import threading
from collections.abc import Iterator

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from autotune.worker.observers import reserve
from autotune.worker.protocol import Turn, Waiting, from_line
from autotune.worker.rank.context import TakenTurns, resting_children
from tests.support.waiting import wait_for


def in_child(target):
    """Run a function in a process of its own, as what it changes of torch stays there."""
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_loader_that_are_ready_are_counted(workers: int) -> None:
    def counts() -> None:
        reserve.watch()
        extra = {"prefetch_factor": 3, "multiprocessing_context": "fork"} if workers else {}
        loader = DataLoader(TensorDataset(torch.arange(80)), 2, num_workers=workers, **extra)
        batches = iter(loader)
        next(batches)
        if not workers:
            assert math.isnan(reserve.ready_batches())
            return
        wait_for(lambda: reserve.ready_batches() == 6, "six batches are ready")
        for _ in range(3):
            next(batches)
        wait_for(lambda: reserve.ready_batches() == 6, "the queue is full again")
        list(batches)
        assert reserve.ready_batches() == 0

    in_child(counts)


@contextlib.contextmanager
def sleeper() -> Iterator[psutil.Process]:
    child = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
    child.start()
    yield psutil.Process(child.pid)
    child.kill()
    child.join()


def stopped(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


def test_children_rest_between_blocks() -> None:
    def rest() -> None:
        with sleeper() as child:
            with resting_children():
                wait_for(lambda: stopped(child), "it rests")
            wait_for(lambda: not stopped(child), "it goes on")

    in_child(rest)


def test_process_that_removes_shared_memory_goes_on_while_others_rest() -> None:
    def rest() -> None:
        tracker = multiprocessing.resource_tracker.ResourceTracker()
        tracker.ensure_running()
        own = set(psutil.Process().children())
        with sleeper() as child, resting_children():
            wait_for(lambda: stopped(child), "it rests")
            assert own
            assert not any(map(stopped, own))
        tracker._stop()

    in_child(rest)


def test_children_rest_from_the_wait_for_the_first_turn_on() -> None:
    def take_turns() -> None:
        here, agent = multiprocessing.Pipe()
        turns = TakenTurns(here)
        threading.Thread(target=turns.listen, args=(lambda: None,), daemon=True).start()
        with sleeper() as child:
            waits = threading.Thread(target=turns.next)
            waits.start()
            assert isinstance(from_line(agent.recv_bytes()), Waiting)
            wait_for(lambda: stopped(child), "it rests until the first turn")
            agent.send_bytes(Turn("t", 1).to_line())
            waits.join()
            wait_for(lambda: not stopped(child), "it goes on")
            turns.silence()
            wait_for(lambda: stopped(child), "it rests until the next turn")
        agent.close()

    in_child(take_turns)
