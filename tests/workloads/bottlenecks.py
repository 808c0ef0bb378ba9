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


class Permuted(nn.Module):
    """Splits its input into heads, and puts the heads before the batch."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, inputs):
        """(batch, 5, 32) -> (batch, 5, 32)."""
        heads = self.inner(inputs).view(-1, 5, 4, 8).permute(2, 0, 1, 3).contiguous()
        return heads.permute(1, 2, 0, 3).reshape(-1, 5, 32)


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
        planted: loader, buckets, reading, rank, layout or memory; none leaves all well.
    """
    width = {"layout": 32, "buckets": 128}.get(planted, 64)
    shape = (512, 5, width) if planted == "layout" else (512, width)
    data = torch.randn(shape), torch.randn(shape)
    samples = SlowSamples if planted == "loader" else torch.utils.data.TensorDataset
    models = {
        "loader": lambda: stack(width, 2),
        "buckets": lambda: stack(width, 100),
        "reading": lambda: stack(width, 2),
        "rank": lambda: stack(width, 2),
        "none": lambda: stack(width, 2),
        "memory": lambda: stack(width, 2),
        "layout": Permuted,
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
