"""What a rank draws from its data set, and how it gets to the device."""

import collections
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import autotune
from autotune.worker.effects import feeding
from tests.support.one_rank import (
    CPU,
    group,
    regression,
    settings_of_torch,
    training,
)
from tests.support.trials import knobs

__all__ = ["group", "settings_of_torch"]  # fixtures


@pytest.mark.parametrize("micro_batch", [1, 3, 64])
def test_the_model_sees_micro_batches(micro_batch):
    shapes = set()
    model = nn.Linear(16, 16)
    model.register_forward_hook(lambda *call: shapes.add(call[1][0].shape))
    loop = training(regression(model, width=16), micro_batch=micro_batch)
    for _ in range(100):
        loop.step()
    assert shapes == {(micro_batch, 16)}


def numbered(samples: int, **changes: Any) -> autotune.Workload:
    """A workload whose samples are their own numbers."""
    return dataclasses.replace(regression(width=1), dataset=list(range(samples)), **changes)


@pytest.mark.parametrize(
    ("samples", "micro_batch", "ranks"), [(64, 4, 2), (67, 4, 2), (12, 4, 3), (101, 7, 4)]
)
def test_no_sample_is_on_two_ranks_nor_twice_in_an_epoch(samples, micro_batch, ranks):
    per_rank = []
    for rank in range(ranks):
        source = feeding.loader(
            numbered(samples),
            knobs(micro_batch=micro_batch),
            rank=rank,
            world_size=ranks,
            seed=0,
        )
        batches = list(source)
        assert {len(batch) for batch in batches} == {micro_batch}
        assert len(batches) == samples // ranks // micro_batch
        per_rank.append([sample for batch in batches for sample in batch.tolist()])
    everything = [sample for samples in per_rank for sample in samples]
    assert len(everything) == len(set(everything))


def test_epoch_after_epoch_is_shuffled_anew_and_again_in_the_same_way():
    def draw(seed: int) -> list[tuple[int, ...]]:
        source = feeding.loader(numbered(12), knobs(micro_batch=4), rank=0, world_size=1, seed=seed)
        batches = feeding.endless(source)
        return [
            tuple(sample for _ in range(3) for sample in next(batches).tolist()) for _ in range(4)
        ]

    epochs = draw(seed=1)
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len(set(epochs)) == 4
    assert draw(seed=1) == epochs != draw(seed=2)


@pytest.mark.parametrize(("samples", "micro_batch", "ranks"), [(7, 4, 2), (0, 1, 1), (3, 1, 4)])
def test_a_dataset_that_cannot_fill_a_micro_batch_is_refused(samples, micro_batch, ranks):
    with pytest.raises(ValueError, match=f"dataset has {samples} samples.*lower micro_batch"):
        feeding.loader(
            numbered(samples),
            knobs(micro_batch=micro_batch),
            rank=0,
            world_size=ranks,
            seed=0,
        )


def test_the_users_collate_is_used():
    source = feeding.loader(
        numbered(8, collate=lambda samples: {"sum": sum(samples)}),
        knobs(micro_batch=8),
        rank=0,
        world_size=1,
        seed=0,
    )
    assert next(iter(source)) == {"sum": 28}


# Moving batches

Pair = collections.namedtuple("Pair", ["left", "right"])


def test_a_batch_keeps_its_form_when_it_is_moved():
    meta = torch.device("meta")
    tensor = torch.ones(2)
    batch = {"a": [tensor, (tensor, "text")], "b": Pair(tensor, None), 3: 4.5}
    moved = feeding.move(batch, meta)
    assert moved["a"][0].device == moved["a"][1][0].device == meta
    assert isinstance(moved["a"], list) and isinstance(moved["a"][1], tuple)
    assert isinstance(moved["b"], Pair) and moved["b"].left.device == meta
    assert (moved["a"][1][1], moved["b"].right, moved[3]) == ("text", None, 4.5)
    assert tensor.device == CPU


def test_a_mapping_that_is_no_dict_is_moved_too():
    """As Hugging Face's collators return them."""
    batch = collections.UserDict(ids=torch.ones(2))
    assert feeding.move(batch, torch.device("meta"))["ids"].device.type == "meta"


def test_without_prefetch_batches_come_in_order():
    batches = feeding.on_device(iter([torch.tensor(n) for n in range(5)]), knobs(), CPU)
    assert [int(batch) for batch in batches] == [0, 1, 2, 3, 4]
