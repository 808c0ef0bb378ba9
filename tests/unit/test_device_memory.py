"""What a rank has of a device. The device is a stand-in, at the boundary of torch.cuda."""

import types

import pytest
import torch

from autotune.worker.observers import memory

GIB, MIB = 1 << 30, 1 << 20
CUDA = torch.device("cuda", 0)
CONTEXT_AND_NCCL = 900 * MIB


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A device of 80 GiB on which this process has reserved 10 GiB, and at most 12; the fraction that it
    is held to."""
    set_to: list[float] = []
    answers = {
        "max_memory_reserved": lambda _: 12 * GIB,
        "memory_reserved": lambda _: 10 * GIB,
        "mem_get_info": lambda _: (80 * GIB - 10 * GIB - CONTEXT_AND_NCCL, 80 * GIB),
        "get_device_properties": lambda _: types.SimpleNamespace(total_memory=80 * GIB),
        "set_per_process_memory_fraction": lambda fraction, _: set_to.append(fraction),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return set_to


@pytest.mark.usefixtures("fractions")
def test_the_peak_holds_what_the_allocator_does_not_know_of() -> None:
    assert memory.peak_bytes(CUDA) == 12 * GIB + CONTEXT_AND_NCCL


@pytest.mark.usefixtures("fractions")
def test_a_rank_that_shares_its_device_does_not_count_its_neighbours() -> None:
    assert memory.peak_bytes(CUDA, alone=False) == 12 * GIB + 512 * MIB


def test_a_limit_is_for_all_that_a_rank_has(fractions: list[float]) -> None:
    memory.limit(CUDA, 20 * GIB)
    memory.limit(CUDA, 100 * GIB)
    memory.limit(CUDA, 1 * MIB)
    assert fractions == [pytest.approx((20 * GIB - CONTEXT_AND_NCCL) / (80 * GIB)), 1.0, 0.0]
