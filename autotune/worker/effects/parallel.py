"""Distribution of model, gradients and optimizer state over ranks, or over the devices of one process.

nn.DataParallel is training as it was before DDP: every forward pass copies the model to the devices
and splits the batch; results are gathered on the first, which has to hold them. On the CPU, where
DataParallel does nothing, the process computes the batch at once with all its threads.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autotune.worker.effects import precision
from autotune.worker.effects.compression import compress_gradients, compressed_momentum
from autotune.worker.effects.precision import AUTOCAST_DTYPES
from autotune.worker.protocol import Knobs

_DDP_DEFAULT_BUCKET = 25
_MIB = 1 << 20
# torch 2.13 has renamed it and warns of the old name.
BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers"
)
DDP_ARGUMENTS = {
    "bucket_cap_mb": "bucket_cap_mb",
    "gradient_as_bucket_view": "gradient_as_bucket_view",
    "static_graph": "static_graph",
    "find_unused_parameters": "find_unused_parameters",
    "broadcast_buffers": BUFFERS,
}
"""Knob -> argument of DistributedDataParallel."""
SHARDING = ("fsdp", "fsdp_no_reshard", "hsdp")
"""Values of parallelism with which each rank holds a part of the weights."""
Loss = Callable[[nn.Module, Any], torch.Tensor]


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the modules of the longest lists (nn.ModuleList, nn.Sequential) of one class each.

    The result is empty if there is no list of at least two. A block inside of another is left out: a
    knob would act on it twice, and FSDP2 cannot shard it after the other.
    """
    lists = [
        list(module.children())
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
    ]
    alike = [found for found in lists if len(found) > 1 and len(set(map(type, found))) == 1]
    longest = max(map(len, alike), default=0)
    every = [block for found in alike if len(found) == longest for block in found]
    inside = {part for block in every for part in block.modules() if part is not block}
    return [block for block in every if block not in inside]


def repeated(model: nn.Module, knob: str) -> list[nn.Module]:
    """Return the blocks, for a knob that needs them.

    Raises:
        ValueError: there is no list of at least two.
    """
    found = blocks(model)
    if not found:
        raise ValueError(
            f"{knob}: the model has no nn.ModuleList or nn.Sequential of two or more modules of one "
            "class; take the knob out of the search space"
        )
    return found


if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def wrapped(knobs: Knobs, model: nn.Module, device: torch.device) -> nn.Module:
    """Move the model to the device: bare, under DDP, or sharded by FSDP2 (parallelism)."""
    if knobs["parallelism"] in SHARDING:
        # FSDP2 moves each part by itself: the whole model may be larger than the device.
        return sharded(knobs, model, device)
    model = model.to(device)
    if knobs["parallelism"] == "none":
        return model
    first_bucket(knobs)
    wrapper = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        **ddp_arguments(knobs),
    )
    compress_gradients(knobs, wrapper)
    return wrapper


def first_bucket(knobs: Knobs) -> None:
    """Set first_bucket_mb, which DDP reads when it is built, if its bucket size is the default."""
    size = int(knobs["first_bucket_mb"] * _MIB)
    dist._DEFAULT_FIRST_BUCKET_BYTES = size  # type: ignore[attr-defined]


def sharded(knobs: Knobs, model: nn.Module, device: torch.device) -> nn.Module:
    """Shard parameters, gradients and optimizer state; each block is gathered when it is needed.

    fsdp gathers parameters again for the backward pass, fsdp_no_reshard does not; hsdp shards over the
    ranks of a node and replicates over nodes. Parameters outside blocks are kept for the backward
    pass, which begins with them.
    """
    # Imported where needed: half of what importing torch itself takes.
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dtype = AUTOCAST_DTYPES.get(knobs["precision"])
    # Without a format of its own FSDP2 sums gradients in that of the parameters.
    summed = torch.float32 if dtype else None
    if knobs["fsdp_reduce_dtype"] == "bf16":
        summed = torch.bfloat16
    arguments: dict[str, Any] = {
        "mesh": mesh(knobs["parallelism"], device.type),
        "reshard_after_forward": knobs["parallelism"] != "fsdp_no_reshard",
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=summed),
    }
    for block in blocks(model):
        fully_shard(block, **arguments)
    fully_shard(model, **{**arguments, "reshard_after_forward": False})
    prefetch(knobs, model)
    return model


def mesh(parallelism: str, device: str) -> "DeviceMesh":
    """Return all ranks as FSDP2 takes them: those that share parameters, and those that hold copies.

    With ddp every rank holds a copy.
    """
    from torch.distributed.device_mesh import init_device_mesh

    world = dist.get_world_size()
    sharing = {"ddp": 1, "hsdp": int(os.environ.get("LOCAL_WORLD_SIZE", world))}
    if parallelism not in sharing:
        return init_device_mesh(device, (world,))
    sizes = (world // sharing[parallelism], sharing[parallelism])
    return init_device_mesh(device, sizes, mesh_dim_names=("replicate", "shard"))


def prefetch(knobs: Knobs, model: nn.Module) -> None:
    """Let every block request the parameters of the following ones (fsdp_prefetch).

    Raises:
        ValueError: it is asked for and the model has no blocks.
    """
    ahead = knobs["fsdp_prefetch"]
    if not ahead:
        return
    found: list[Any] = repeated(model, "fsdp_prefetch")
    for place, block in enumerate(found):
        block.set_modules_to_forward_prefetch(found[place + 1 : place + 1 + ahead])
        block.set_modules_to_backward_prefetch(found[max(0, place - ahead) : place][::-1])


def ddp_arguments(knobs: Knobs) -> dict[str, Any]:
    """Return the arguments of DistributedDataParallel: DDP_ARGUMENTS, and what layer_keep needs.

    PyTorch's own default of 25 MiB has a first bucket of 1 MiB,
    which an explicit 25 has not: for 25 the argument is left out.
    """
    arguments: dict[str, Any] = {argument: knobs[name] for name, argument in DDP_ARGUMENTS.items()}
    if knobs["layer_keep"] < 1:  # blocks that are left out have no gradient
        arguments["find_unused_parameters"] = True
    if knobs["broadcast_buffers"]:
        del arguments[BUFFERS]
    if knobs["bucket_cap_mb"] == _DDP_DEFAULT_BUCKET:
        del arguments["bucket_cap_mb"]
    return arguments


def gradient_sync(model: nn.Module, *, last_micro_batch: bool) -> AbstractContextManager[Any]:
    """Exchange gradients once per optimizer step, with the last micro-batch (accumulation_steps)."""
    if isinstance(model, DistributedDataParallel):
        return nullcontext() if last_micro_batch else model.no_sync()
    if hasattr(model, "set_requires_gradient_sync"):  # FSDP2's
        model.set_requires_gradient_sync(last_micro_batch)  # type: ignore[operator]
    return nullcontext()


def optimizer(
    knobs: Knobs, plain: torch.optim.Optimizer, model: nn.Module
) -> torch.optim.Optimizer:
    """Return the optimizer of the wrapped model (parallelism, gradient_compression).

    zero1 keeps the state of each parameter on one rank only; one_bit sends momentum instead of
    gradients.

    Args:
        plain: made for all parameters of the model, which it may have sorted into groups.
        model: as it was wrapped.
    """
    if knobs["parallelism"] == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        taken = signature(type(plain).__init__).parameters
        defaults = {name: value for name, value in plain.defaults.items() if name in taken}
        return ZeroRedundancyOptimizer(plain.param_groups, optimizer_class=type(plain), **defaults)
    return compressed_momentum(knobs, model, plain)


class _Replica(nn.Module):
    """Part that each device runs, in a thread of its own."""

    def __init__(
        self, knobs: Knobs, model: nn.Module, device: torch.device, inside: Loss | None
    ) -> None:
        super().__init__()
        self.model = model
        self._knobs = knobs
        self._device = device
        # In a tuple, so that a loss that is a module does not become a submodule of this one.
        self._inside = (inside,) if inside is not None else ()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        # Threads start with autocast's default format, not with that of the thread that starts them.
        with precision.autocast(self._knobs, self._device):
            if self._inside:
                return self._inside[0](self.model, *inputs)
            return self.model(*inputs, **named)


def replicated(
    knobs: Knobs, model: nn.Module, loss: Loss, devices: Sequence[torch.device]
) -> nn.Module:
    """Wrap the model for data_parallel; compute the loss on every device (loss_placement: inside)."""
    model = model.to(devices[0])
    inside = loss if knobs["loss_placement"] == "inside" else None
    if inside or knobs["precision"] in precision.AUTOCAST_DTYPES:
        model = _Replica(knobs, model, devices[0], inside)
    if devices[0].type == "cpu":
        return model
    return nn.DataParallel(model, device_ids=list(devices))


def replica_loss(knobs: Knobs, outside: Loss) -> Loss:
    """Return the loss of a batch; the mean over devices where each computes one (loss_placement)."""
    if knobs["loss_placement"] == "inside":
        return lambda model, batch: model(batch).mean()
    # A model that returns its loss, whatever the knob is, returns one per device.
    return lambda model, batch: outside(model, batch).mean()
