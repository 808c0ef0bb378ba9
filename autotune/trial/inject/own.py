"""What a script has in force of what knobs turn, read from what it has built, once it trains."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autotune.trial.effects import parallel
from autotune.trial.protocol import Knobs

FORMATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_MIB = 1 << 20


class Formats:
    """The number format in which a model computes.

    Frameworks enter autocast around the model, or around its forward pass inside of what they wrap it
    in: it is seen where it is entered.
    """

    def __init__(self) -> None:
        self._entered: set[str] = set()

    def watch(self) -> None:
        """Look at every autocast that is entered from now on while gradients are on."""
        enter: Callable[..., Any] = torch.autocast.__enter__

        def watched(context: torch.autocast) -> Any:
            if torch.is_grad_enabled() and context._enabled:
                dtype = context.fast_dtype
                self._entered.add(FORMATS.get(dtype, str(dtype)))
            return enter(context)

        torch.autocast.__enter__ = watched  # type: ignore[method-assign]

    def own(self, parameters: Iterable[nn.Parameter]) -> str:
        """Of a training that updates these.

        Args:
            parameters: at least one.
        """
        if self._entered:
            return " and ".join(sorted(self._entered))
        dtypes = {parameter.dtype for parameter in parameters}
        return "pure_bf16" if dtypes == {torch.bfloat16} else "fp32"


def of_model(model: DistributedDataParallel) -> dict[str, Any]:
    """Knobs of its constructor."""
    bucket = model.bucket_bytes_cap / _MIB
    return {
        "bucket_cap_mb": int(bucket) if bucket.is_integer() else bucket,
        "gradient_as_bucket_view": bool(model.gradient_as_bucket_view),
        "static_graph": bool(model.static_graph),
        "find_unused_parameters": bool(model.find_unused_parameters),
        "broadcast_buffers": bool(getattr(model, parallel.BUFFERS)),
    }


def of_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """optimizer_kernels, if all groups of parameters are alike."""
    kinds = {
        "fused" if group.get("fused") else "foreach" if group.get("foreach") else "default"
        for group in optimizer.param_groups
    }
    return {"optimizer_kernels": " and ".join(sorted(kinds))}


def contrary(own: Mapping[str, Any], knobs: Knobs, names: Iterable[str]) -> Iterator[str]:
    """What is in force, `knob value`, where the configuration says something else.

    Args:
        own: knob -> the value in force, of those that show.
        knobs: a value for every knob.
        names: of those that are compared.
    """
    for name in sorted({*names} & own.keys()):
        # Autocast does not tell one from the other.
        if own[name] != knobs[name] and (own[name], knobs[name]) != ("fp32", "tf32"):
            yield f"{name} {own[name]}"
