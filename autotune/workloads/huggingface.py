"""Causal language model of Hugging Face transformers, built from a configuration.

Nothing is downloaded. It needs what the extra `huggingface` installs.
"""

from typing import Any

import torch
from torch import nn

from autotune.worker.installing import pip_install
from autotune.worker.workload import Workload
from autotune.workloads.text import Windows, byte_tokens

_VOCABULARY = 256
_LEARNING_RATE = 3e-4
_TEXT_BYTES = 2_000_000


def build(
    *, model_type: str = "gpt2", config: dict[str, Any] | None = None, length: int = 128
) -> Workload:
    """Build a causal language model that transformers knows, over bytes of real text, with AdamW.

    Args:
        model_type: as in AutoConfig.for_model: gpt2, llama, qwen3...
        config: fields of its configuration; vocab_size is 256 unless given.
        length: tokens per sample.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        ValueError: transformers knows no such model, or the length is below 2.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"the huggingface workload needs transformers: {pip_install('huggingface')}"
        ) from None
    if length < 2:
        raise ValueError(f"length {length}: a sample has at least two tokens, one to predict")
    settings = {"vocab_size": _VOCABULARY, "use_cache": False, **(config or {})}
    chosen = AutoConfig.for_model(model_type, **settings)
    model = AutoModelForCausalLM.from_config(chosen)  # type: ignore[no-untyped-call]
    return Workload(
        model=model,
        dataset=Windows(byte_tokens(_TEXT_BYTES), length=length, stride=max(1, length // 2)),
        loss=own_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=_LEARNING_RATE),
        tokens_per_sample=length,
        shorten=lambda batch, tokens: batch[:, :tokens],
    )


def own_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the loss that the model computes inside forward; batch: tokens (samples, length)."""
    loss: torch.Tensor = model(input_ids=batch, labels=batch).loss
    return loss
