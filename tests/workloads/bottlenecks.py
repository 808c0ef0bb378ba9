"""Small regressions, each with one thing planted that holds it back."""

import os
import time

import torch
from torch import nn

import autotune

_SLOW = 0.02
WIDTH, LAYERS = 256, 8


class SlowToRead(torch.Tensor):
    """A loss that takes long to reach the host, as on a device that is far behind."""

    def __float__(self):
        time.sleep(_SLOW)
        return torch.Tensor.__float__(self.as_subclass(torch.Tensor))


class SlowSamples(torch.utils.data.TensorDataset):
    """Every sample takes a while to prepare."""

    def __getitem__(self, index):
        time.sleep(_SLOW / 4)
        return super().__getitem__(index)


def squared(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


def slow_to_read(model, batch):
    return squared(model, batch).as_subclass(SlowToRead)


def slow_on_one_rank(model, batch):
    if os.environ["RANK"] == "1":
        time.sleep(_SLOW)
    return squared(model, batch)


def stack(width=WIDTH, layers=LAYERS):
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def build(*, planted):
    """Build it.

    Args:
        planted: loader, buckets, reading, rank or memory; none leaves all well.
    """
    width = 128 if planted == "buckets" else 64
    data = torch.randn(512, width), torch.randn(512, width)
    samples = SlowSamples if planted == "loader" else torch.utils.data.TensorDataset
    models = {
        "loader": lambda: stack(width, 2),
        "buckets": lambda: stack(width, 100),
        "reading": lambda: stack(width, 2),
        "rank": lambda: stack(width, 2),
        "none": lambda: stack(width, 2),
        "memory": lambda: stack(width, 2),
    }
    model = models[planted]()
    if planted == "memory" and os.environ["RANK"] == "1":
        model.kept = torch.ones(100_000_000)  # 400 MB that the other rank does not have
    losses = {"reading": slow_to_read, "rank": slow_on_one_rank}
    return autotune.Workload(
        model=model,
        dataset=samples(*data),
        loss=losses.get(planted, squared),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )
