"""The same little training with every hook of the contract; each rank writes down what came of it."""

import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import autotune

WIDTH, STEPS, CLIP = 8, 4, 0.1


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))


def loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


def batches(rank, world, micro_batch):
    """Three whole batches, of which each rank has its part; then they come again."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        x, y = torch.randn(2, world * micro_batch, WIDTH, generator=generator)
        mine = slice(rank * micro_batch, (rank + 1) * micro_batch)
        yield x[mine], y[mine]


def optimizers(model):
    """One for matrices, one for all else."""
    parameters = list(model.parameters())
    return [
        torch.optim.Adam([p for p in parameters if p.ndim > 1], lr=0.01),
        torch.optim.SGD([p for p in parameters if p.ndim == 1], lr=0.1),
    ]


def rate(number):
    return 0.01 / (1 + number)


def build(*, folder, own=False, device=None):
    """Build it.

    Args:
        folder: where each rank writes `<rank>.json`.
        own: the updates are by `optimizer_step`.
        device: of the rank.
    """
    trained = model()
    seen = {"device": str(device), "norms": []}
    made = []

    def optimizer(parameters):
        made[:] = optimizers(trained)
        return made

    def step(update):
        seen["norms"].append(float(update.clip_grad_norm(CLIP)))
        for group in update.optimizers[0].param_groups:
            group["lr"] = rate(update.number)
        update()
        done(update.model, update.number)

    def optimizer_step(model):
        optimizer(None) if not made else None
        seen["norms"].append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        made[0].param_groups[0]["lr"] = rate(len(seen["norms"]) - 1)
        for one in made:
            one.step()
        done(model, len(seen["norms"]) - 1)

    def done(model, number):
        if number == STEPS - 1:
            whole = [_whole(p.detach()) for p in model.parameters()]
            seen["weights"] = torch.cat([p.flatten() for p in whole]).tolist()
            Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(seen))

    updates = {"optimizer_step": optimizer_step} if own else {"optimizer": optimizer, "step": step}
    return autotune.Workload(model=trained, loss=loss, batches=batches, **updates)


def plainly(world, micro_batch, accumulation):
    """The same in plain PyTorch, in one process over the batches of all ranks: weights, and the norms of
    the gradients before they were clipped."""
    trained = model()
    several = optimizers(trained)
    norms = []
    endless = (
        batch for _ in range(STEPS * accumulation) for batch in batches(0, 1, world * micro_batch)
    )
    for number in range(STEPS):
        for _ in range(accumulation):
            (loss(trained, next(endless)) / accumulation).backward()
        norms.append(float(nn.utils.clip_grad_norm_(trained.parameters(), CLIP)))
        several[0].param_groups[0]["lr"] = rate(number)
        for one in several:
            one.step()
            one.zero_grad()
    return torch.cat([p.detach().flatten() for p in trained.parameters()]), norms


def _whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
