"""A small network with faults that show only under bf16, where a training script has them too."""

import time

import torch
from torch import nn

import autotune


def build(*, fault="", slow_fp32=0.0):
    """Build it.

    Args:
        fault: 'scale' (the loss is scaled up and nothing scales the gradients down), 'sync' (the forward
            pass goes around DDP, so gradients stay where they are), 'nan', or '' for none.
        slow_fp32: seconds per forward pass without autocast.
    """
    torch.manual_seed(0)
    inputs = torch.randn(2048, 32)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :1] * 2 + inputs[:, 1:2])
    network = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))

    def loss(model, batch):
        bf16 = torch.is_autocast_enabled("cpu")
        if not bf16:
            time.sleep(slow_fp32)
        around = bf16 and fault == "sync"
        value = (((model.module if around else model)(batch[0]) - batch[1]) ** 2).float().mean()
        if bf16 and fault == "nan":
            return value * float("nan")
        if bf16 and fault == "scale":
            # The value that is logged is right; only the gradients are 8 times too large.
            return value * 8 - (value * 7).detach()
        return value

    return autotune.Workload(
        model=network,
        dataset=data,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    )
