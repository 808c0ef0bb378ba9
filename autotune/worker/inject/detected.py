"""Settings that a script has in force for knobs, read from what it has built, once it trains."""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autotune.worker.effects.feeding import OF_LOADER, OF_WORKERS
from autotune.worker.effects.kernels import OF_IMAGES
from autotune.worker.effects.parallel import DDP_ARGUMENTS
from autotune.worker.patches import Wrapper, wrapping
from autotune.worker.protocol import Knobs
from autotune.worker.survey_result import ON, agrees

_FORMATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_MIB = 1 << 20
_BACKENDS_BY_GRAPH = "debug_backend_override"
"""Setting of torch._dynamo: numbers of graphs, and the back end that compiles them."""
_HOOKS = {
    "allreduce_hook": "none",
    "fp16_compress_hook": "fp16",
    "bf16_compress_hook": "bf16",
    "powerSGD_hook": "powersgd",
}
"""Hooks of torch by name -> gradient_compression."""
_CHECKPOINTING = torch.utils.checkpoint


class Formats:
    """Number format in which a model computes.

    Frameworks enter autocast around the model, or around its forward pass inside of their wrapper:
    it is observed where it is entered.
    """

    def __init__(self) -> None:
        self._entered: set[torch.dtype] = set()

    def watch(self) -> None:
        """Record every autocast that is entered from now on while gradients are on."""

        @wrapping(torch.autocast, "__enter__")
        def watched(enter: Any, context: torch.autocast) -> Any:
            if context._enabled and torch.is_grad_enabled():
                self._entered.add(context.fast_dtype)
            return enter(context)

    def detected(self, parameters: Iterable[nn.Parameter]) -> str:
        """Return the format of a training that updates some parameters.

        Args:
            parameters: at least one.
        """
        if self._entered:
            return " and ".join(sorted(_FORMATS.get(d, str(d)) for d in self._entered))
        dtypes = {parameter.dtype for parameter in parameters}
        return "pure_bf16" if dtypes == {torch.bfloat16} else "fp32"


def around_checkpoints(wrapper: Wrapper) -> None:
    """Call a function in the place of what torch.utils.checkpoint does, from now on.

    Args:
        wrapper: as of patches.wrapping; its second argument is the function that will be called anew.
    """
    for owner, name in (
        (_CHECKPOINTING, "_checkpoint_without_reentrant_generator"),
        (_CHECKPOINTING.CheckpointFunction, "apply"),
    ):
        if hasattr(owner, name):
            wrapping(owner, name)(wrapper)


class Recomputation:
    """Observer of activation checkpointing by torch.utils.checkpoint."""

    def __init__(self) -> None:
        self.seen = False

    def watch(self) -> None:
        """Observe every pass from now on."""
        around_checkpoints(self._enter)

    def _enter(self, enter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.seen = True
        return enter(*args, **kwargs)

    def detected(self) -> dict[str, Any]:
        """Return activation_checkpointing, if it was observed."""
        return {"activation_checkpointing": ON} if self.seen else {}


def compiled_frames() -> int:
    """Return the number of frames that torch.compile has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["frames"]["ok"]) if dynamo else 0


def leave_graphs_uncompiled() -> None:
    """Have torch.compile capture graphs, and run them as they are.

    Frames are seen all the same, and generating code takes longest of all that a survey waits for.
    Versions of torch that cannot do without it generate it.
    """
    config = importlib.import_module("torch._dynamo.config")
    if hasattr(config, _BACKENDS_BY_GRAPH):
        setattr(config, _BACKENDS_BY_GRAPH, ">=0:aot_eager")


def compilation() -> dict[str, Any]:
    """Return whether anything is compiled, as `compile`: which mode it is does not show."""
    return {"compile": ON if compiled_frames() else "none"}


def memory_format(parameters: Iterable[torch.Tensor]) -> dict[str, Any]:
    """Return channels_last, if the weights of convolutions show it.

    A weight of one channel or of 1 x 1 has both formats at once.
    """
    weights = (one for one in parameters if one.dim() == OF_IMAGES and not is_sharded(one))
    last = [
        not weight.is_contiguous()
        for weight in weights
        if weight.is_contiguous() != weight.is_contiguous(memory_format=torch.channels_last)
    ]
    return {"channels_last": all(last)} if last else {}


def is_sharded(parameter: torch.Tensor) -> bool:
    """Return whether ranks hold parts of a parameter (FSDP2)."""
    return hasattr(parameter, "placements")


def ddp_settings(model: DistributedDataParallel) -> dict[str, Any]:
    """Return knobs of the constructor of DistributedDataParallel."""
    bucket = model.bucket_bytes_cap / _MIB
    switches = {name: arg for name, arg in DDP_ARGUMENTS.items() if name != "bucket_cap_mb"}
    return {
        "bucket_cap_mb": int(bucket) if bucket.is_integer() else bucket,
        **{name: bool(getattr(model, argument)) for name, argument in switches.items()},
        "gradient_compression": _hooks(model),
    }


def _hooks(model: DistributedDataParallel) -> str:
    names = [getattr(hook, "__name__", type(hook).__name__) for hook, _ in model._comm_hooks]
    return " and ".join(_HOOKS.get(name, name) for name in names) or "none"


def loader_settings(iterator: Any) -> dict[str, Any]:
    """Return knobs of the DataLoader of an iterator.

    Without workers some mean nothing; without a device memory is not pinned, whatever was asked for.
    """
    unread = () if iterator._num_workers else OF_WORKERS
    if not torch.accelerator.is_available():
        unread = (*unread, "pin_memory")
    return {name: getattr(iterator, f"_{name}") for name in OF_LOADER if name not in unread}


def optimizer_settings(optimizer: Optimizer) -> dict[str, Any]:
    """Return optimizer_kernels, if all groups of parameters are alike."""
    kinds = {
        "fused" if group.get("fused") else "foreach" if group.get("foreach") else "default"
        for group in optimizer.param_groups
    }
    return {"optimizer_kernels": " and ".join(sorted(kinds))}


def contradictions(own: Mapping[str, Any], knobs: Knobs, names: Iterable[str]) -> Iterator[str]:
    """Yield `knob value` in force where the configuration has another value.

    Args:
        own: knob -> value in force, as far as it was detected.
        knobs: a value for every knob.
        names: of the knobs that are compared.
    """
    for name in sorted({*names} & own.keys()):
        if not agrees(own[name], knobs[name]):
            yield f"{name} {own[name]}"
