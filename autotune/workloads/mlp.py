"""Multi-layer perceptron: many parameters and little arithmetic, so communication dominates."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from autotune.worker.workload import Workload

_SAMPLES = 8192
_CLASSES = 10
_LEARNING_RATE = 0.01


def build(*, layers: int = 4, width: int = 1024) -> Workload:
    """Build a perceptron with ReLU over random vectors whose class is a function of them, with SGD.

    Args:
        layers: hidden layers of `width` x `width` weights.
        width: of input and hidden layers, at least 10.
    """
    if layers < 1 or width < _CLASSES:
        raise ValueError(f"layers {layers} x width {width}: at least 1 x {_CLASSES}")
    hidden = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())]
    inputs = torch.randn(_SAMPLES, width)
    labels = inputs[:, :_CLASSES].argmax(dim=1)
    return Workload(
        model=nn.Sequential(*hidden, nn.Linear(width, _CLASSES)),
        dataset=TensorDataset(inputs, labels),
        loss=classification_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=_LEARNING_RATE),
    )


def classification_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross-entropy; batch: inputs (samples, ...) and labels (samples,)."""
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels)
