"""One process that drives all devices of a node: nn.DataParallel, as training was before DDP.

Every forward pass copies the model to the devices and splits the batch; results are gathered on the
first, which has to hold them. On the CPU, where DataParallel does nothing, the process computes the
batch at once with all its threads.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from autotune.worker.effects import precision
from autotune.worker.protocol import Knobs

Loss = Callable[[nn.Module, Any], torch.Tensor]


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


def wrapped(
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


def loss(knobs: Knobs, outside: Loss) -> Loss:
    """Return the loss of a batch; the mean over devices where each computes one (loss_placement)."""
    if knobs["loss_placement"] == "inside":
        return lambda model, batch: model(batch).mean()
    # A model that returns its loss, whatever the knob is, returns one per device.
    return lambda model, batch: outside(model, batch).mean()
