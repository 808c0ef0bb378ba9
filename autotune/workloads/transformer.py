"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017)."""

import math

import torch
from torch import nn
from torch.nn import functional

from autotune.worker.workload import Workload
from autotune.workloads.attention import Attention, feed_forward
from autotune.workloads.loss import linear_cross_entropy
from autotune.workloads.text import Windows, word_tokens

_PADDING = 0
_START = 1
_BETAS = (0.9, 0.98)  # as published
_EPSILON = 1e-9  # as published
_LEARNING_RATE = 1e-4  # of a schedule's middle; throughput does not depend on it
_LABEL_SMOOTHING = 0.1  # as published
_TEXT_BYTES = 2_000_000
_LONGEST_WAVE = 10_000


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, post-norm as published."""

    def __init__(self, width: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.network = feed_forward(width, hidden, nn.ReLU())
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Map (batch, n, width) to the same shape; `visible` (batch, 1, 1, n) is False at padding."""
        attended = self.attention(source, source, mask=visible)
        source = self.norms[0](source + self.dropout(attended))
        out: torch.Tensor = self.norms[1](source + self.dropout(self.network(source)))
        return out


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder, feed-forward; post-norm as published."""

    def __init__(self, width: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.self_attention = Attention(width, heads)
        self.cross_attention = Attention(width, heads)
        self.network = feed_forward(width, hidden, nn.ReLU())
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, target: torch.Tensor, memory: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        """Map target (batch, m, width) to the same shape; memory: (batch, n, width) of the encoder."""
        attended = self.self_attention(target, target, causal=True)
        target = self.norms[0](target + self.dropout(attended))
        attended = self.cross_attention(target, memory, mask=visible)
        target = self.norms[1](target + self.dropout(attended))
        out: torch.Tensor = self.norms[2](target + self.dropout(self.network(target)))
        return out


class Transformer(nn.Module):
    """Embeddings shared between source, target and the output layer.

    Attributes:
        loss_chunks: slices of the vocabulary in which the loss is computed.
    """

    def __init__(
        self, layers: int, width: int, hidden: int, heads: int, vocabulary: int, dropout: float
    ) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"d_model {width} is odd; position encodings come in pairs")
        shape = (width, hidden, heads, dropout)
        self.loss_chunks = 1
        self.scale = math.sqrt(width)
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList(EncoderLayer(*shape) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(*shape) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)

    def forward(
        self, source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return logits (batch, m, vocabulary) of tokens (batch, n) and (batch, m), or their loss.

        With labels (batch, m) it is the mean label-smoothed cross-entropy.
        """
        visible = (source != _PADDING)[:, None, None, :]
        memory = self._embed(source)
        for encoder_layer in self.encoder:
            memory = encoder_layer(memory, visible)
        hidden = self._embed(target)
        for decoder_layer in self.decoder:
            hidden = decoder_layer(hidden, memory, visible)
        if labels is None:
            return functional.linear(hidden, self.embedding.weight)
        return linear_cross_entropy(
            hidden,
            self.embedding.weight,
            labels,
            chunks=self.loss_chunks,
            label_smoothing=_LABEL_SMOOTHING,
            ignore_index=_PADDING,
        )

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(tokens) * self.scale
        places = sinusoids(tokens.shape[1], embedded.shape[2], tokens.device)
        out: torch.Tensor = self.dropout(embedded + places)
        return out


def sinusoids(length: int, width: int, device: torch.device) -> torch.Tensor:
    """Return position encodings (length, width), section 3.5 of the paper."""
    places = torch.arange(length, device=device)[:, None]
    rates = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(_LONGEST_WAVE) / width))
    return torch.stack(((places * rates).sin(), (places * rates).cos()), dim=-1).flatten(1)


def build(
    *,
    layers: int = 6,
    d_model: int = 512,
    d_ff: int = 2048,
    heads: int = 8,
    vocabulary: int = 30_000,
    length: int = 64,
    dropout: float = 0.1,
) -> Workload:
    """Build the Transformer at its published size, learning to continue real text.

    A source is a window of words, its target the window that follows.

    Args:
        layers: of the encoder, and of the decoder.
        d_model: width, an even multiple of heads.
        d_ff: width inside the feed-forward networks.
        heads: attention heads.
        vocabulary: tokens, shared by source and target.
        length: tokens of the source, and of the target.
        dropout: as published, 0.1.
    """
    tokens = word_tokens(_TEXT_BYTES, vocabulary)
    return Workload(
        model=Transformer(layers, d_model, d_ff, heads, vocabulary, dropout),
        dataset=Windows(tokens, length=2 * length, stride=max(1, length // 8)),
        loss=continuation_loss,
        optimizer=lambda parameters: torch.optim.Adam(
            parameters, lr=_LEARNING_RATE, betas=_BETAS, eps=_EPSILON
        ),
        tokens_per_sample=2 * length,
        shorten=shortened,
    )


def continuation_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the label-smoothed cross-entropy of the second half of each window, given the first."""
    source, target = batch.chunk(2, dim=1)
    shifted = torch.cat((torch.full_like(target[:, :1], _START), target[:, :-1]), dim=1)
    loss: torch.Tensor = model(source, shifted, target)
    return loss


def shortened(batch: torch.Tensor, tokens: int) -> torch.Tensor:
    """Cut windows to a number of tokens: their sources at the front, their targets at the end."""
    middle, half = batch.shape[1] // 2, tokens // 2
    return batch[:, middle - half : middle + half]
