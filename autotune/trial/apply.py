"""Knob value -> its effect on torch, DDP, the loader and the optimizer step.

One function per effect. Each acts on what any training script has (constructor arguments, contexts,
process-wide settings), never on our own loop.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler

from autotune.trial.protocol import Knobs
from autotune.trial.workload import Workload

_DDP_DEFAULT_BUCKET = 25
# torch 2.13 has renamed it and warns of the old name.
_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers"
)
AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@runtime_checkable
class SplitProjection(Protocol):
    """An attention module that can issue its Q, K and V projections on CUDA streams of their own."""

    qkv_streams: bool


def float32_matmul(knobs: Knobs) -> None:
    """precision: whether fp32 matrix products may run in TF32, for this process.

    Strict fp32 also turns off TF32 in cuDNN convolutions, which PyTorch leaves on by default.
    """
    relaxed = knobs["precision"] == "tf32"
    torch.set_float32_matmul_precision("high" if relaxed else "highest")
    torch.backends.cudnn.allow_tf32 = relaxed


def autocast(knobs: Knobs, device: torch.device) -> AbstractContextManager[Any]:
    """precision: the context for forward and loss."""
    dtype = AUTOCAST_DTYPES.get(knobs["precision"])
    return torch.autocast(device.type, dtype=dtype) if dtype else nullcontext()


def gradient_scaler(knobs: Knobs, device: torch.device) -> torch.amp.GradScaler:
    """precision: fp16 needs its loss scaled; for the others the scaler passes everything through."""
    return torch.amp.GradScaler(device.type, enabled=knobs["precision"] == "fp16")


def ddp_arguments(knobs: Knobs) -> dict[str, Any]:
    """bucket_cap_mb, gradient_as_bucket_view, static_graph, broadcast_buffers: arguments for
    DistributedDataParallel.

    PyTorch's own default of 25 MiB comes with a first bucket of 1 MiB, which a 25 that is passed
    explicitly has not. 25 therefore means to leave the argument out.
    """
    arguments: dict[str, Any] = {
        name: knobs[name] for name in ("gradient_as_bucket_view", "static_graph")
    }
    if not knobs["broadcast_buffers"]:
        arguments[_BUFFERS] = False
    if knobs["bucket_cap_mb"] != _DDP_DEFAULT_BUCKET:
        arguments["bucket_cap_mb"] = knobs["bucket_cap_mb"]
    return arguments


def compress_gradients(knobs: Knobs, model: DistributedDataParallel) -> None:
    """gradient_compression: the all-reduce in a narrower format."""
    hooks = {
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
    }
    if hook := hooks.get(knobs["gradient_compression"]):
        model.register_comm_hook(None, hook)


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


def checkpoint_activations(knobs: Knobs, model: nn.Module) -> None:
    """activation_checkpointing: of every k-th block of the model's longest list of equal modules.

    Raises:
        ValueError: the model has no list of at least two modules of one class.
    """
    every = knobs["activation_checkpointing"]
    if not every:
        return
    for number, block in enumerate(_blocks(model)):
        if number % every == 0:
            block.forward = _checkpointed(block.forward)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


def _blocks(model: nn.Module) -> list[nn.Module]:
    lists = [
        list(module.children())
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
    ]
    alike = [blocks for blocks in lists if len(blocks) > 1 and len(set(map(type, blocks))) == 1]
    if not alike:
        raise ValueError(
            "activation_checkpointing: the model has no nn.ModuleList or nn.Sequential of two or more "
            "modules of one class; take the knob out of the search space"
        )
    longest = max(map(len, alike))
    return [block for blocks in alike if len(blocks) == longest for block in blocks]


def channels_last(knobs: Knobs, model: nn.Module) -> None:
    """channels_last: convolution weights with the channel innermost; batches follow in `on_device`."""
    if knobs["channels_last"]:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def gradient_sync(
    model: DistributedDataParallel, *, last_micro_batch: bool
) -> AbstractContextManager[Any]:
    """accumulation_steps: gradients travel once per optimizer step, with the last micro-batch."""
    return nullcontext() if last_micro_batch else model.no_sync()


def qkv_streams(knobs: Knobs, model: nn.Module) -> None:
    """qkv_streams: set on every attention module that offers it.

    Raises:
        ValueError: it is asked for and no module of the model offers it.
    """
    offering = [module for module in model.modules() if isinstance(module, SplitProjection)]
    if knobs["qkv_streams"] and not offering:
        raise ValueError(
            "qkv_streams is on, but no module of the model has a `qkv_streams` attribute; "
            "take the knob out of the search space or give the attention modules the attribute"
        )
    for module in offering:
        module.qkv_streams = knobs["qkv_streams"]


def loader(
    workload: Workload, knobs: Knobs, *, rank: int, world_size: int, seed: int, pin: bool
) -> DataLoader[Any]:
    """micro_batch, loader_workers: the loader of one rank, shuffled, each sample on one rank.

    Raises:
        ValueError: the dataset cannot fill one micro-batch on every rank.
    """
    size = len(workload.dataset)  # type: ignore[arg-type]
    if size < knobs["micro_batch"] * world_size:
        raise ValueError(
            f"the dataset has {size} samples, fewer than micro_batch {knobs['micro_batch']} x "
            f"{world_size} ranks; lower micro_batch or enlarge the dataset"
        )
    sampler: DistributedSampler[Any] = DistributedSampler(
        workload.dataset, world_size, rank, shuffle=True, seed=seed, drop_last=True
    )
    return DataLoader(
        workload.dataset,
        batch_size=knobs["micro_batch"],
        sampler=sampler,
        collate_fn=workload.collate,
        drop_last=True,
        pin_memory=pin,
        num_workers=knobs["loader_workers"],
        persistent_workers=knobs["loader_workers"] > 0,
        # Forked like the rank itself: torch is loaded in them at once.
        multiprocessing_context="fork" if knobs["loader_workers"] else None,
    )


def endless(source: DataLoader[Any]) -> Iterator[Any]:
    """Batches of epoch after epoch, each shuffled anew."""
    epoch = 0
    while True:
        if isinstance(source.sampler, DistributedSampler):
            source.sampler.set_epoch(epoch)
        yield from source
        epoch += 1


def on_device(batches: Iterator[Any], knobs: Knobs, device: torch.device) -> Iterator[Any]:
    """stream_prefetch: batches on the device, the next one copied on a side stream if asked for;
    channels_last: tensors of four dimensions in that format."""
    if knobs["channels_last"]:
        batches = (mapped(batch, _with_channels_last) for batch in batches)
    if knobs["stream_prefetch"]:
        return _prefetched(batches, device)
    return (move(batch, device) for batch in batches)


def move(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor in it on the device."""
    return mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))


def mapped(batch: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The batch with the function applied to every tensor; lists, tuples and dicts are followed."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(value, function) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        changed = [mapped(value, function) for value in batch]
        return type(batch)(*changed) if hasattr(batch, "_fields") else type(batch)(changed)
    return batch


def _with_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _prefetched(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    side = torch.cuda.Stream(device)

    def copy_next() -> Any:
        host_batch = next(batches)
        with torch.cuda.stream(side):
            return move(host_batch, device)

    upcoming = copy_next()
    while True:
        current = torch.cuda.current_stream(device)
        current.wait_stream(side)
        batch = upcoming
        _record_stream(batch, current)
        upcoming = copy_next()
        yield batch


def _record_stream(batch: Any, stream: torch.cuda.Stream) -> None:
    # Without this the allocator may hand the memory to the side stream while it is still read.
    if isinstance(batch, torch.Tensor):
        batch.record_stream(stream)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _record_stream(value, stream)
    elif isinstance(batch, list | tuple):
        for value in batch:
            _record_stream(value, stream)
