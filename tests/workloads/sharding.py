"""A stack of layers that writes down what its rank holds, after a few steps."""

import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

import autotune

WIDTH, LAYERS = 64, 4
_AT = 4


def build(*, folder):
    """Build it; each rank writes `<rank>.json` into the folder."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    data = torch.utils.data.TensorDataset(torch.ones(256, WIDTH), torch.zeros(256, WIDTH))
    made = {}
    losses = []

    def optimizer(parameters):
        weights = [p for p in parameters if p.requires_grad]  # as many users do
        return torch.optim.Adam(weights, lr=0.01)

    def note(stepped, *_):
        if type(stepped) is torch.optim.Adam:  # the one that ZeRO keeps inside, too
            made["optimizer"] = stepped

    register_optimizer_step_post_hook(note)

    def loss(model, batch):
        held = sum(_local(p).numel() for p in model.parameters())
        found = (model(batch[0]) - batch[1]).square().mean()
        losses.append(float(found))
        if len(losses) == _AT:
            weight = layers[0].weight
            state = made["optimizer"].state.values()
            facts = {
                "losses": losses,
                "batch": len(batch[0]),
                "threads": torch.get_num_threads(),
                "gathered_after_forward": not isinstance(weight, DTensor),
                "parameters": held,
                "state": sum(_local(s["exp_avg"]).numel() for s in state),
                "wrapper": type(model).__name__,
            }
            Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(facts))
        return found

    return autotune.Workload(layers, data, loss, optimizer)


def overflowing(*, folder):
    """Overflows once, in the part of the first rank only; each rank writes what its updates do."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 4, bias=False)
    data = torch.utils.data.TensorDataset(torch.ones(256, 4))
    updates = []

    def loss(model, batch):
        huge = 1e30 if len(updates) == _AT else 1.0
        return (model(batch[0]).float() * torch.tensor([huge, 1.0, 1.0, 1.0])).sum()

    def step(update):
        before = _local(layer.weight).clone()
        finite = bool(_local(layer.weight.grad).isfinite().all())
        update()
        updates.append([finite, not torch.equal(_local(layer.weight), before)])
        if len(updates) == _AT + 2:
            Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(updates[_AT - 1 :]))

    return autotune.Workload(
        nn.Sequential(layer),
        data,
        loss,
        lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        step=step,
    )


def _local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
