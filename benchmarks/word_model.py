"""The word-level language model of PyTorch's examples: a small Transformer under a large vocabulary."""

import math

import torch
from torch import nn
from torch.nn import functional

from autotune.worker.workload import Workload
from autotune.workloads.text import Windows, word_tokens

_TEXT_BYTES = 4_000_000


class WordModel(nn.Module):
    """Embedding, sinusoidal positions, encoder layers under a causal mask, a linear decoder."""

    def __init__(self, vocabulary: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self._scale = math.sqrt(width)
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 2, width, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.decoder = nn.Linear(width, vocabulary)
        places = torch.arange(length).unsqueeze(1)
        rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        waves = torch.stack([torch.sin(places * rates), torch.cos(places * rates)], dim=-1)
        self.register_buffer("positions", waves.flatten(1))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Words (batch, length) -> logits (batch, length, vocabulary)."""
        hidden = self.embedding(words) * self._scale + self.positions
        out: torch.Tensor = self.decoder(self.encoder(hidden, mask=self.mask, is_causal=True))
        return out


def build(
    *, vocabulary: int = 20_000, width: int = 200, layers: int = 2, length: int = 35
) -> Workload:
    """Return the model over the words of the standard library's sources, with SGD."""
    return Workload(
        model=WordModel(vocabulary, width, layers, length),
        dataset=Windows(word_tokens(_TEXT_BYTES, vocabulary), length=length + 1, stride=length),
        loss=_next_word,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        tokens_per_sample=length,
    )


def _next_word(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
