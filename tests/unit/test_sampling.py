"""In which steps DDP times its communication, seen in what DDP has logged."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autotune.worker.observers import communication
from tests.support.one_rank import CPU, group, settings_of_torch

__all__ = ["group", "settings_of_torch"]  # fixtures

STEPS, CUDA = 30, torch.device("cuda", 0)


def last_timed(blocks: range, device: torch.device) -> int:
    """The number of the step that DDP has timed last, in blocks of thirty steps."""
    model = DistributedDataParallel(nn.Linear(2, 2))
    for block in blocks:
        communication.sample(model, block, device)
        for _ in range(STEPS):
            model(torch.ones(1, 2)).sum().backward()
    return int(model._get_ddp_logging_data()["iteration"])


def test_one_step_in_ten_is_timed_in_blocks_that_do_not_count() -> None:
    assert last_timed(range(3), CUDA) >= 3 * STEPS - 10


def test_no_step_is_timed_on_a_device_in_blocks_that_count() -> None:
    assert last_timed(range(8), CUDA) <= 3 * STEPS


def test_the_cpu_has_no_pipeline_to_drain() -> None:
    assert last_timed(range(8), CPU) >= 8 * STEPS - 10
