"""Speed of a job whose backward passes are not seen."""

import gc

import pytest
import torch
from torch.utils.data import DataLoader

from autotune.worker.inject.meter import MOST_WAITING, JobProbe
from autotune.worker.inject.tokens import Tokens
from tests.support.apart import run_apart


def _batches_without_backward() -> None:
    probe = JobProbe(counts_tokens=True)
    probe.watch_speed(lambda: None)
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    for number, x in enumerate(DataLoader(torch.ones(2 * MOST_WAITING, 1), 1)):
        torch.autograd.backward((x * weight).sum())
        optimizer.step()
        assert probe.draws.waiting <= MOST_WAITING
        assert bool(probe.problem) is (number >= MOST_WAITING)
    assert probe.problem == f"{MOST_WAITING} batches came, and no Tensor.backward"
    assert probe.draws.waiting == 0


@pytest.mark.long
def test_batches_are_kept_no_longer_where_no_backward_pass_is_seen() -> None:
    run_apart(_batches_without_backward)


def _long_evaluation() -> None:
    probe = JobProbe(counts_tokens=True)
    probe.watch_speed(lambda: None)
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight])

    def evaluate() -> None:
        for x in DataLoader(torch.ones(MOST_WAITING + 2, 1), 1):
            assert probe.draws.waiting <= MOST_WAITING
            with torch.no_grad():
                x * weight

    evaluate()  # as a check before the training
    for number, x in enumerate(DataLoader(torch.ones(8, 1), 2), 1):
        (x * weight).sum().backward()
        optimizer.step()
        assert probe.samples == 2 * number
        if number == 2:
            evaluate()
    assert not probe.problem


@pytest.mark.long
def test_a_long_evaluation_that_fetches_with_gradients_enabled_ends_no_watch() -> None:
    run_apart(_long_evaluation)


def _iterator_of_every_step() -> None:
    probe = JobProbe(counts_tokens=True)
    probe.watch_speed(lambda: None)
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    loader = DataLoader(torch.ones(8, 4, dtype=torch.long), 2)
    for _ in range(100):
        (next(iter(loader)) * weight).sum().backward()
        optimizer.step()
    gc.collect()
    assert sum(isinstance(one, Tokens) for one in gc.get_objects()) < 10


def test_nothing_is_kept_of_loaders_that_are_read_anew_in_every_step() -> None:
    run_apart(_iterator_of_every_step)
