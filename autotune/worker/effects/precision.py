"""Number format in which the model computes."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from autotune.worker.protocol import Knobs

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
PURE_BF16 = "pure_bf16"


class Convolutions(NamedTuple):
    """Earlier setting of TF32 in cuDNN; None if this configuration has not changed it."""

    before: bool | None

    def undo(self) -> None:
        """Restore the earlier setting."""
        if self.before is not None:
            torch.backends.cudnn.allow_tf32 = self.before


def float32_matmul(knobs: Knobs) -> Convolutions:
    """Set whether fp32 matrix products may run in TF32, for this process (precision).

    cuDNN's convolutions do so in any case, unless the user's code forbids it: PyTorch's own
    default, and so that of a plain script.
    """
    relaxed = knobs["precision"] == "tf32"
    torch.set_float32_matmul_precision("high" if relaxed else "highest")
    if not relaxed:
        return Convolutions(None)
    before = bool(torch.backends.cudnn.allow_tf32)
    torch.backends.cudnn.allow_tf32 = True
    return Convolutions(before)


def autocast(knobs: Knobs, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context for forward and loss (precision)."""
    dtype = AUTOCAST_DTYPES.get(knobs["precision"])
    return torch.autocast(device.type, dtype=dtype) if dtype else nullcontext()


def gradient_scaler(knobs: Knobs, device: torch.device) -> torch.amp.GradScaler:
    """Return a loss scaler, enabled for fp16 (precision)."""
    return torch.amp.GradScaler(device.type, enabled=knobs["precision"] == "fp16")


def is_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a fused update, which a GradScaler has called, skips itself for an overflow.

    It waits for the device.
    """
    overflow = getattr(optimizer, "found_inf", None)
    return overflow is not None and bool(overflow)


def weights(knobs: Knobs, model: nn.Module) -> None:
    """Keep weights, gradients and the optimizer's state in bf16 (precision: pure_bf16)."""
    if knobs["precision"] == PURE_BF16:
        model.to(torch.bfloat16)


def batch_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a float tensor of a batch as a model of bf16 weights takes it (precision)."""
    return tensor.to(torch.bfloat16) if tensor.dtype == torch.float32 else tensor
