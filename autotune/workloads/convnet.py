"""A residual convolutional network (He et al. 2016) over images that are in memory: compute-bound."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.worker.workload import Workload
from autotune.workloads.mlp import classification_loss

_SAMPLES = 2048
_CLASSES = 10
_CHANNELS = 3
_LEARNING_RATE = 0.05
_MOMENTUM = 0.9


class Residual(nn.Module):
    """Two convolutions with batch normalisation, and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (batch, width, height, breadth) to the same shape."""
        out: torch.Tensor = torch.relu(images + self.body(images))
        return out


def build(*, size: int = 32, width: int = 32, blocks: int = 4) -> Workload:
    """Build a strided convolution, residual blocks and a linear classifier, with SGD and momentum.

    Args:
        size: of the square images, pixels, at least 4.
        width: channels.
        blocks: residual blocks.
    """
    if size < 4 or width < 1 or blocks < 1:
        raise ValueError(f"size {size}, width {width}, blocks {blocks}: at least 4, 1 and 1")
    model = nn.Sequential(
        nn.Conv2d(_CHANNELS, width, 3, stride=2, padding=1),
        nn.Sequential(*(Residual(width) for _ in range(blocks))),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, _CLASSES),
    )
    images = torch.randn(_SAMPLES, _CHANNELS, size, size)
    labels = images.mean(dim=(2, 3)).argmax(dim=1)
    return Workload(
        model=model,
        dataset=TensorDataset(images, labels),
        loss=classification_loss,
        optimizer=lambda parameters: torch.optim.SGD(
            parameters, lr=_LEARNING_RATE, momentum=_MOMENTUM
        ),
    )
