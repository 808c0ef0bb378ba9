"""Size of the gradients that a rank holds."""

import math

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def held_norm(optimizer: Optimizer) -> float:
    """Return the norm of an optimizer's gradients, of shards the part that this rank holds.

    It is NaN where there is no gradient, or a sparse one.
    """
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    gradients = [_held(p.grad.detach()) for p in parameters if p.grad is not None]
    if not gradients or any(gradient.layout != torch.strided for gradient in gradients):
        return math.nan
    return float(nn.utils.get_total_norm(gradients))


def _held(tensor: Tensor) -> Tensor:
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found
