"""Small convolutional network over compressed images: decoding them takes longer than the network."""

import itertools
import random
import zlib

import torch
from torch import nn
from torch.utils.data import Dataset

from autotune.worker.workload import Workload
from autotune.workloads.mlp import classification_loss

_SAMPLES = 2048
_CLASSES = 10
_CHANNELS = 3
_LEARNING_RATE = 1e-3


class CompressedImages(Dataset[tuple[torch.Tensor, int]]):
    """Compressed images; each is unpacked, flipped and normalised when it is read."""

    def __init__(self, samples: int, size: int) -> None:
        # Few distinct pictures, so that building the dataset takes no time; each is unpacked anew.
        generator = torch.Generator().manual_seed(0)
        shape = (_CHANNELS, size, size)
        pictures = [
            torch.randint(0, 64, shape, dtype=torch.uint8, generator=generator) + 16 * label
            for label in range(_CLASSES)
        ]
        self._packed = [zlib.compress(picture.numpy().tobytes()) for picture in pictures]
        self._samples = samples
        self._shape = shape

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % _CLASSES
        raw = bytearray(zlib.decompress(self._packed[label]))
        picture = torch.frombuffer(raw, dtype=torch.uint8).view(self._shape).float()
        if random.random() < 0.5:
            picture = picture.flip(-1)
        return (picture / 255 - 0.5) / 0.25, label


def build(*, size: int = 64, width: int = 8) -> Workload:
    """Build three strided convolutions and a linear classifier, with AdamW.

    Args:
        size: of the square images, pixels, at least 8.
        width: channels of the first convolution; it doubles with each.
    """
    if size < 8 or width < 1:
        raise ValueError(f"size {size}, width {width}: at least 8 and 1")
    return Workload(
        model=_network(width),
        dataset=CompressedImages(_SAMPLES, size),
        loss=classification_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=_LEARNING_RATE),
    )


def _network(width: int) -> nn.Module:
    channels = [_CHANNELS, width, 2 * width, 4 * width]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], _CLASSES)]
    return nn.Sequential(*layers, *pooled)
