"""When FSDP2 gathers the blocks of a model: among four ranks of which there is only one, and what the
others would send is never waited for."""

import re

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.one_rank import LAYERS, regression, stack, training


@pytest.fixture(scope="module", autouse=True)
def four_ranks():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


class Order(TorchDispatchMode):
    """Which of gathering (g) and computing (c) came when."""

    def __init__(self):
        super().__init__()
        self.seen = ""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.seen += "g" if "allgather" in name else "c" if name in ("addmm", "mm") else ""
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("ahead", "forward", "backward"), [(0, 1, 2), (1, 2, 2), (2, 3, 3)])
def test_blocks_are_gathered_as_far_ahead_as_asked(ahead, forward, backward):
    """By itself FSDP2 gathers one block ahead in the backward pass only."""
    # What was not sent is not read: the loss is no number.
    loop = training(regression(), parallelism="fsdp", fsdp_prefetch=ahead, log_interval=100)
    loop.step()
    with Order() as order:
        loop.step()
    found = re.fullmatch(f"(g+)(?:cg*){{{LAYERS - 1}}}c(g+)c.*", order.seen)
    assert [len(gathered) for gathered in found.groups()] == [forward, backward]


def test_no_rank_ever_has_the_whole_model_on_its_device(monkeypatch):
    """It may be larger than that; FSDP2 brings each part there by itself."""
    whole = []
    monkeypatch.setattr(nn.Module, "to", lambda module, *_, **__: whole.append(module) or module)
    training(regression(), parallelism="fsdp").step()
    assert not whole


def test_stages_of_equal_layers_are_sharded_and_compute():
    stages = nn.Sequential(*(nn.Sequential(*stack()[:2]) for _ in range(2)))
    loop = training(regression(stages), parallelism="fsdp", fsdp_prefetch=1)
    loop.step()
    assert all(isinstance(stage, FSDPModule) for stage in stages)


def test_all_blocks_may_be_gathered_at_once():
    loop = training(regression(), parallelism="fsdp", fsdp_prefetch=16, log_interval=100)
    loop.step()
    with Order() as order:
        loop.step()
    assert order.seen.startswith("g" * LAYERS + "c" * LAYERS + "g" * LAYERS)
