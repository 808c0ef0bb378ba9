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


def _module_of(kind: type) -> Callable[[Workload], bool]:
    return lambda workload: _any_module(workload, lambda module: isinstance(module, kind))


def _any_module(workload: Workload, wanted: Callable[[nn.Module], bool]) -> bool:
    return any(map(wanted, workload.model.modules()))


TARGETS: Mapping[str, Callable[[Workload], bool]] = {
    "blocks": lambda workload: bool(blocks(workload.model)),
    "buffers": lambda workload: next(workload.model.buffers(), None) is not None,
    "chunked loss": _module_of(ChunkedLoss),
    "convolutions": _module_of(_ConvNd),
    "dataset": lambda workload: workload.batches is None,
    "float8 layers": lambda workload: _any_module(workload, takes_float8),
    "optimizer": lambda workload: workload.optimizer is not None,
    "shortened samples": lambda workload: bool(workload.shorten and workload.tokens_per_sample),
    "split projections": _module_of(SplitProjection),
}
"""Target of a knob, as its entry in the catalogue names it -> tells whether a workload has it."""


def lacking(workload: Workload) -> list[str]:
    """Return the targets that a workload has not."""
    return [target for target, there in TARGETS.items() if not there(workload)]
