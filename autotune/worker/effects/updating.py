"""Updates of the weights from the gradients of all micro-batches.

They are the plain ones, those of the user's hook, or those of the user's own function.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.worker.effects.compression import OneBitAdam
from autotune.worker.gradients import whole
from autotune.worker.protocol import Knobs
from autotune.worker.workload import Workload

_OF_OPTIMIZERS = {
    "optimizer_kernels": ("foreach", "fused"),
    "parallelism": ("zero1",),
    "gradient_compression": ("one_bit",),
    "precision": ("fp16",),  # whose loss is scaled
}
"""Knob -> values that act on the optimizer."""


def check(knobs: Knobs, workload: Workload) -> None:
    """Check that the configuration fits the workload's updates.

    Raises:
        ValueError: it needs an optimizer, and there is none.
    """
    for name, values in _OF_OPTIMIZERS.items():
        if workload.optimizer_step is not None and knobs[name] in values:
            raise ValueError(
                f"{name}={knobs[name]} acts on the optimizer, and the workload has an `optimizer_step` "
                "of its own; take the value out of the search space, or give the Workload "
                "`optimizer` and `step` instead"
            )


def check_several(knobs: Knobs, plain: Sequence[Optimizer]) -> None:
    """Check that the configuration fits the optimizers that the workload has made.

    Raises:
        ValueError: it replaces a single optimizer, and there are several, or a schedule holds a
            reference to it.
    """
    replaced = {
        "parallelism": knobs["parallelism"] == "zero1",
        "gradient_compression": knobs["gradient_compression"] == "one_bit",
    }
    for name in (name for name, does in replaced.items() if does):
        asked = f"{name}={knobs[name]}"
        if name == "gradient_compression" and len(plain) > 1:
            raise ValueError(
                f"{asked} takes the place of one optimizer, and the workload has {len(plain)}; take the "
                "value out of the search space"
            )
        if any(hasattr(one.step, "_wrapped_by_lr_sched") for one in plain):
            raise ValueError(
                f"{asked} takes the place of the optimizer, and a schedule was made for the one that "
                "`optimizer` returned; make the schedule in `step`, for update.optimizers"
            )


class Updates:
    """All updates of one training; the argument of `Workload.step`."""

    def __init__(
        self,
        knobs: Knobs,
        model: nn.Module,
        scaler: torch.amp.GradScaler,
        optimizers: Sequence[Optimizer],
        workload: Workload,
    ) -> None:
        """Prepare updates of a model by some optimizers."""
        self.model = model
        self.optimizers = tuple(optimizers)
        self.number = 0
        self.norm_before_clipping: float | torch.Tensor | None = None
        """Norm in the last step; None where it did not clip."""
        self.before_own: Callable[[], None] | None = None
        """Function called before every call of `optimizer_step`."""
        self._set_to_none = knobs["set_to_none"]
        self._scaler = scaler
        self._hook, self._own = workload.step, workload.optimizer_step
        self._updated = self._unscaled = False

    def take(self, number: int) -> None:
        """Update the weights at a step, and drop the gradients.

        Raises:
            ValueError: the user's hook has not updated anything.
        """
        self.number, self.norm_before_clipping = number, None
        self._updated = self._unscaled = False
        if self._own is not None:
            if self.before_own is not None:
                self.before_own()
            self._own(self.model)
            self.model.zero_grad(set_to_none=self._set_to_none)
            return
        (self._hook or _plainly)(self)
        if not self._updated:
            raise ValueError(
                "Workload: `step` returned without an update, so that nothing was trained; call "
                "what it is called with: update()"
            )
        self._scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=self._set_to_none)

    def __call__(self, *optimizers: Optimizer) -> None:
        """Update the weights, by these optimizers or by all, through the loss scaler if there is one."""
        for optimizer in optimizers or self.optimizers:
            self._scaler.step(optimizer)
        self._updated = True

    def unscale(self) -> None:
        """Take the loss scale off the gradients, before anything but clip_grad_norm reads them.

        Raises:
            ValueError: they are not those of all ranks.
        """
        if any(isinstance(one, OneBitAdam) for one in self.optimizers):
            raise ValueError(
                "gradient_compression=one_bit: ranks exchange no gradients after its warm-up, so there "
                "are none that could be clipped or read; take the value out of the search space"
            )
        if not self._unscaled:
            for optimizer in self.optimizers:
                self._scaler.unscale_(optimizer)
        self._unscaled = True

    def clip_grad_norm(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the gradients, averaged over the ranks; return the norm before.

        It stands for torch.nn.utils.clip_grad_norm_ of all parameters.
        """
        self.unscale()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), max_norm, norm_type)
        self.norm_before_clipping = whole(norm)
        return self.norm_before_clipping


def _plainly(update: Updates) -> None:
    update()
