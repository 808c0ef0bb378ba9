"""Multi-head attention whose Q, K and V projections can run on CUDA streams of their own."""

import functools
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional

T = TypeVar("T")
Triple = tuple[T, T, T]


class Attention(nn.Module):
    """Scaled dot-product attention over `heads` heads.

    Attributes:
        qkv_streams: issue the three projections on three CUDA streams.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or width < 1 or width % heads:
            raise ValueError(f"d_model {width} is not a multiple of heads {heads}")
        self.heads = heads
        self.qkv_streams = False
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(
        self,
        queries: torch.Tensor,
        memory: torch.Tensor,
        *,
        causal: bool = False,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend from queries (batch, n, width) to memory (batch, m, width).

        Args:
            causal: position i sees positions up to i only.
            mask: boolean, broadcastable to (batch, heads, n, m); True may be seen.
        """
        query, key, value = self._project(queries, memory)
        mixed = functional.scaled_dot_product_attention(
            self._split(query),
            self._split(key),
            self._split(value),
            attn_mask=mask,
            is_causal=causal,
        )
        batch, _, length, _ = mixed.shape
        projected: torch.Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, -1))
        return projected

    def _project(
        self, queries: torch.Tensor, memory: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if not self.qkv_streams:
            return self.query(queries), self.key(memory), self.value(memory)
        layers, sources = (self.query, self.key, self.value), (queries, memory, memory)
        return _side_by_side(layers, sources)

    def _split(self, tensor: torch.Tensor) -> torch.Tensor:
        batch, length, width = tensor.shape
        return tensor.view(batch, length, self.heads, width // self.heads).transpose(1, 2)


@functools.cache
def _side_streams(device: torch.device) -> Triple[torch.cuda.Stream]:
    """Return three streams of a device; they are kept, as the allocator pools memory per stream."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device), torch.cuda.Stream(device)


def _side_by_side(layers: Triple[nn.Linear], sources: Triple[torch.Tensor]) -> Triple[torch.Tensor]:
    """Apply each layer on a stream of its own.

    All of them wait for earlier work, and later work waits for all of them; none waits for another.
    """
    device = sources[0].device
    current, sides = torch.cuda.current_stream(device), _side_streams(device)
    for side in sides:
        side.wait_stream(current)
    results = []
    for layer, source, side in zip(layers, sources, sides, strict=True):
        with torch.cuda.stream(side):
            results.append(layer(source))
        source.record_stream(side)
    for result, side in zip(results, sides, strict=True):
        current.wait_stream(side)
        result.record_stream(current)
    return results[0], results[1], results[2]


def feed_forward(width: int, hidden: int, activation: nn.Module) -> nn.Sequential:
    """Return the position-wise network of a transformer layer."""
    return nn.Sequential(nn.Linear(width, hidden), activation, nn.Linear(hidden, width))
