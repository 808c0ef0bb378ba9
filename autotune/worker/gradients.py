"""Parameters of an optimizer and their gradients, whole or in shards."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def parameters_of(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    """Return the parameters that an optimizer updates, in order."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor, gathered if it is sharded over the ranks."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


def held(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def held_norm(optimizer: Optimizer) -> float:
    """Return the norm of an optimizer's gradients, of shards the part that this rank holds.

    It is NaN where there is no gradient, or a sparse one.
    """
    several = parameters_of(optimizer)
    gradients = [held(p.grad.detach()) for p in several if p.grad is not None]
    if not gradients or any(gradient.layout != torch.strided for gradient in gradients):
        return math.nan
    return float(nn.utils.get_total_norm(gradients))
