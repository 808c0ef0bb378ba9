"""Targets of knobs in a workload, and those that a workload lacks."""

from collections.abc import Callable, Mapping

from torch import nn
from torch.nn.modules.conv import _ConvNd

from autotune.worker.effects.blocks import blocks
from autotune.worker.effects.float8 import takes_float8
from autotune.worker.effects.kernels import ChunkedLoss, SplitProjection
from autotune.worker.workload import Workload

ATTENTION = "attention"
"""Seen in a profile only: a model may call it anywhere."""


def _module_of(kind: type) -> Callable[[nn.Module], bool]:
    return lambda model: _any_module(model, lambda module: isinstance(module, kind))


def _any_module(model: nn.Module, wanted: Callable[[nn.Module], bool]) -> bool:
    return any(map(wanted, model.modules()))


_OF_MODEL: Mapping[str, Callable[[nn.Module], bool]] = {
    "blocks": lambda model: bool(blocks(model)),
    "buffers": lambda model: next(model.buffers(), None) is not None,
    "chunked loss": _module_of(ChunkedLoss),
    "convolutions": _module_of(_ConvNd),
    "float8 layers": lambda model: _any_module(model, takes_float8),
    "split projections": _module_of(SplitProjection),
}


def _in_model(there: Callable[[nn.Module], bool]) -> Callable[[Workload], bool]:
    return lambda workload: there(workload.model)


TARGETS: Mapping[str, Callable[[Workload], bool]] = {
    **{target: _in_model(there) for target, there in _OF_MODEL.items()},
    "dataset": lambda workload: workload.batches is None,
    "optimizer": lambda workload: workload.optimizer is not None,
    "shortened samples": lambda workload: bool(workload.shorten and workload.tokens_per_sample),
}
"""Target of a knob, as its entry in the catalogue names it -> tells whether a workload has it."""


def lacking(workload: Workload) -> list[str]:
    """Return the targets that a workload has not."""
    return [target for target, there in TARGETS.items() if not there(workload)]


def targets_in(model: nn.Module) -> list[str]:
    """Return the targets that a model has, of those that lie in a model."""
    return [target for target, there in _OF_MODEL.items() if there(model)]
