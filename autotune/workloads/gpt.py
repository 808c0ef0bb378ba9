"""A GPT-style causal language model over the bytes of the standard library's sources."""

import torch
from torch import nn
from torch.nn import functional

from autotune.worker.workload import Workload
from autotune.workloads.attention import Attention, feed_forward
from autotune.workloads.loss import linear_cross_entropy
from autotune.workloads.text import Windows, byte_tokens

_VOCABULARY = 256
_LEARNING_RATE = 3e-4
_TEXT_BYTES = 4_000_000


class Block(nn.Module):
    """Pre-norm transformer layer (GPT-2)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.network_norm = nn.LayerNorm(width)
        self.network = feed_forward(width, 4 * width, nn.GELU())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the same shape."""
        normed = self.attention_norm(hidden)
        hidden = hidden + self.attention(normed, normed, causal=True)
        out: torch.Tensor = hidden + self.network(self.network_norm(hidden))
        return out


class Gpt(nn.Module):
    """Token and position embeddings, blocks, and a head that shares the token embedding.

    Attributes:
        loss_chunks: slices of the vocabulary in which the loss is computed.
    """

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.loss_chunks = 1
        self.tokens = nn.Embedding(_VOCABULARY, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _VOCABULARY, bias=False)
        self.apply(_initialise)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Return logits (batch, length, vocabulary) of tokens (batch, length), or their loss.

        With the following tokens, of the same shape, it is the mean cross-entropy.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            hidden = block(hidden)
        hidden = self.norm(hidden)
        if targets is None:
            return functional.linear(hidden, self.head.weight)
        return linear_cross_entropy(hidden, self.head.weight, targets, chunks=self.loss_chunks)


def build(*, layers: int = 4, d_model: int = 256, heads: int = 4, length: int = 128) -> Workload:
    """Build a GPT with learned positions, with AdamW.

    Args:
        layers: transformer blocks.
        d_model: width of the residual stream, a multiple of heads.
        heads: attention heads.
        length: tokens per sample.
    """
    if length < 1:
        raise ValueError(f"length {length}: a sample has at least one token")
    windows = Windows(byte_tokens(_TEXT_BYTES), length=length + 1, stride=max(1, length // 2))
    return Workload(
        model=Gpt(layers, d_model, heads, length),
        dataset=windows,
        loss=next_token_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=_LEARNING_RATE),
        tokens_per_sample=length,
        shorten=lambda batch, tokens: batch[:, : tokens + 1],
    )


def next_token_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of each next token; batch: (samples, length + 1)."""
    loss: torch.Tensor = model(batch[:, :-1], batch[:, 1:])
    return loss


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)  # GPT-2
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
