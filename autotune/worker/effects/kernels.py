"""Which kernels run, and what they keep: compilation, attention, layout, streams, recomputation."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from autotune.worker.effects.blocks import blocks, repeated
from autotune.worker.effects.parallel import SHARDING
from autotune.worker.protocol import Knobs

_ATTENTION = {
    "unfused": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash3": SDPBackend.FLASH_ATTENTION,
}


@runtime_checkable
class SplitProjection(Protocol):
    """An attention module that can issue its Q, K and V projections on CUDA streams of their own."""

    qkv_streams: bool


def qkv_streams(knobs: Knobs, model: nn.Module) -> None:
    """qkv_streams: set on every attention module that offers it.

    Raises:
        ValueError: it is asked for and no module of the model offers it.
    """
    offering = [module for module in model.modules() if isinstance(module, SplitProjection)]
    if knobs["qkv_streams"]:
        _must_offer(
            offering, "qkv_streams is on", "qkv_streams", "give the attention modules the attribute"
        )
    for module in offering:
        module.qkv_streams = knobs["qkv_streams"]


def _must_offer(offering: Sequence[object], asked: str, name: str, instead: str) -> None:
    if not offering:
        raise ValueError(
            f"{asked}, but no module of the model has a `{name}` attribute; take the knob out of the "
            f"search space or {instead}"
        )


@runtime_checkable
class ChunkedLoss(Protocol):
    """A model that computes its loss in its forward pass, in slices of the vocabulary if asked to."""

    loss_chunks: int


def loss_chunks(knobs: Knobs, model: nn.Module) -> None:
    """loss_chunks: set on the module that offers it.

    Raises:
        ValueError: it is asked for and no module of the model offers it.
    """
    offering = [module for module in model.modules() if isinstance(module, ChunkedLoss)]
    if knobs["loss_chunks"] > 1:
        _must_offer(
            offering, "loss_chunks is above 1", "loss_chunks", "compute the loss inside the model"
        )
    for module in offering:
        module.loss_chunks = knobs["loss_chunks"]


def compiled(knobs: Knobs, model: nn.Module) -> nn.Module:
    """compile, compile_scope: the model, or each of its blocks, through torch.compile, before it is
    wrapped.

    Block by block where FSDP2 gathers and frees the parameters of each: its hooks would break the graph
    of a whole model there, and what is compiled again after every break shares nothing.

    Not in place: Module.compile leaves an nn.Sequential uncompiled, without a word (torch 2.13).

    Raises:
        ValueError: blocks are to be compiled and the model has none.
    """
    mode, scope = knobs["compile"], knobs["compile_scope"]
    if mode == "none":
        return model
    if scope == "blocks":
        _compile_blocks(repeated(model, "compile_scope=blocks"), mode)
        return model
    if knobs["parallelism"] in SHARDING and (several := blocks(model)):
        _compile_blocks(several, mode)
        return model
    return cast(nn.Module, torch.compile(model, mode=mode))


def _compile_blocks(found: Sequence[nn.Module], mode: str) -> None:
    """Every block's forward, so that the model keeps its modules, their names and their hooks."""
    # Equal blocks share what was compiled of the first; such as differ in a number are compiled one by
    # one, and torch.compile would leave the ninth as it is, without a word.
    dynamo = torch._dynamo.config
    dynamo.cache_size_limit = max(dynamo.cache_size_limit, 2 * len(found))
    for block in found:
        block.forward = torch.compile(block.forward, mode=mode)


def cudnn_benchmark(knobs: Knobs) -> None:
    """cudnn_benchmark: for this process; where it is off, as the user's code has it."""
    if knobs["cudnn_benchmark"]:
        torch.backends.cudnn.benchmark = True


def flash_attention(knobs: Knobs) -> None:
    """attention: flash3 takes the place of torch's own FlashAttention, for this process.

    Raises:
        ValueError: this torch, or its surroundings, has it not.
    """
    if knobs["attention"] != "flash3":
        return
    activate = getattr(torch.nn.attention, "activate_flash_attention_impl", None)
    if activate is None:
        raise ValueError(
            f"attention=flash3: PyTorch {torch.__version__} cannot register FlashAttention 3; use a "
            "newer one, or take the value out of the search space"
        )
    try:
        activate("FA3")
    except (ImportError, RuntimeError) as error:
        raise ValueError(
            "attention=flash3 needs FlashAttention 3 with its module flash_attn_interface, which could "
            f"not be loaded ({error}); install it, or take the value out of the search space"
        ) from error


def attention(knobs: Knobs) -> AbstractContextManager[Any]:
    """attention: the one implementation that scaled_dot_product_attention may choose, for forward and
    backward pass."""
    backend = _ATTENTION.get(knobs["attention"])
    return sdpa_kernel(backend) if backend else nullcontext()


def checkpoint_activations(knobs: Knobs, model: nn.Module) -> None:
    """activation_checkpointing: of every k-th block of the model's longest list of equal modules.

    Raises:
        ValueError: the model has no list of at least two modules of one class.
    """
    every = knobs["activation_checkpointing"]
    if not every:
        return
    for number, block in enumerate(repeated(model, "activation_checkpointing")):
        if number % every == 0:
            block.forward = _checkpointed(block.forward)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


def channels_last(knobs: Knobs, model: nn.Module) -> None:
    """channels_last: convolution weights with the channel innermost; feeding sees to batches."""
    if knobs["channels_last"]:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def optimizer_kernels(knobs: Knobs, optimizer: torch.optim.Optimizer) -> None:
    """optimizer_kernels: foreach and fused implementations, before the first step.

    Raises:
        ValueError: the optimizer has no such implementation.
    """
    wanted = knobs["optimizer_kernels"]
    if wanted == "default":
        return
    for group in optimizer.param_groups:
        if wanted not in group:
            raise ValueError(
                f"optimizer_kernels={wanted}: {type(optimizer).__name__} has no {wanted} "
                "implementation; take the value out of the search space"
            )
        group["foreach"], group["fused"] = wanted == "foreach", wanted == "fused"
    if wanted == "fused":  # as the constructor does: the kernel takes the loss scale itself
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
