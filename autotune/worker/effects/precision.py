"""Number format in which the model computes."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from autotune.worker.effects.compiler_cache import kept_apart
from autotune.worker.protocol import Knobs

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
PURE_BF16 = "pure_bf16"
_TF32 = "tf32"


class Convolutions(NamedTuple):
    """Earlier settings of TF32 in cuDNN; None if this configuration has not changed them."""

    before: tuple[str, ...] | None

    def undo(self) -> None:
        """Restore the earlier settings."""
        if self.before is None:
            return
        # The older setting, which the newer ones follow, must not contradict them when it is read.
        torch.backends.cudnn.allow_tf32 = {*self.before} == {_TF32}
        for part, setting in zip(_in_cudnn(), self.before, strict=False):
            part.fp32_precision = setting


def _in_cudnn() -> list[Any]:
    """Return what has a setting of its own in cuDNN, since torch 2.9."""
    parts = [getattr(torch.backends.cudnn, name, None) for name in ("conv", "rnn")]
    return [part for part in parts if hasattr(part, "fp32_precision")]


def _of_cudnn() -> tuple[str, ...]:
    """Return the settings of TF32 in cuDNN.

    The older one cannot be read where the script has set the newer ones.
    """
    if parts := _in_cudnn():
        return tuple(part.fp32_precision for part in parts)
    return (_TF32 if torch.backends.cudnn.allow_tf32 else "ieee",)


def matmul_in_tf32() -> bool:
    """Return whether fp32 matrix products may run in TF32, by whichever setting it was said."""
    matmul: Any = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        return bool(matmul.fp32_precision == _TF32)
    return bool(matmul.allow_tf32)


def check_strict() -> None:
    """Check that the user's own code or environment does not let fp32 products run in TF32.

    Raises:
        ValueError: it does.
    """
    if matmul_in_tf32():
        raise ValueError(
            "precision: the workload's own code (torch.set_float32_matmul_precision, allow_tf32) or "
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE lets fp32 products run in TF32, and `baseline` says "
            "fp32, which would switch that off: say `baseline: {precision: tf32}`, or take that out"
        )


def float32_matmul(knobs: Knobs) -> Convolutions:
    """Set whether fp32 matrix products may run in TF32, for this process (precision).

    cuDNN's convolutions do so in any case, unless the user's code forbids it: PyTorch's own
    default, and so that of a plain script.
    """
    relaxed = knobs["precision"] == _TF32
    torch.set_float32_matmul_precision("high" if relaxed else "highest")
    if not relaxed:
        return Convolutions(None)
    before = _of_cudnn()
    torch.backends.cudnn.allow_tf32 = True
    return Convolutions(before)


def autocast(knobs: Knobs, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context for forward and loss (precision)."""
    dtype = AUTOCAST_DTYPES.get(knobs["precision"])
    if not dtype:
        return nullcontext()
    cast = torch.autocast(device.type, dtype=dtype)
    if dtype == torch.bfloat16 or torch.compiler.is_compiling():
        return cast
    # In older versions of torch the key may hold that there is autocast, and not its format.
    return kept_apart(f"precision={knobs['precision']}", cast)


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
