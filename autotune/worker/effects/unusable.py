"""Knobs that have nothing to act on in a workload, at any value."""

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.conv import _ConvNd

from autotune.worker.effects.blocks import blocks
from autotune.worker.effects.float8 import takes_float8
from autotune.worker.effects.kernels import ChunkedLoss, SplitProjection
from autotune.worker.workload import Workload

_OF_BLOCKS = ("activation_checkpointing", "layer_keep", "compile_scope", "fsdp_prefetch")
_OF_CONVOLUTIONS = ("channels_last", "cudnn_benchmark")
_OF_SHORTENED_SAMPLES = ("curriculum_start", "curriculum_share")
_OF_LOADERS = ("loader_workers", "persistent_workers", "prefetch_factor")


def unusable(workload: Workload) -> list[str]:
    """Return the names of knobs that have nothing to act on."""
    return sorted({*_of_model(workload.model), *_of_rest(workload)})


def _of_model(model: nn.Module) -> Iterator[str]:
    modules = list(model.modules())
    if not blocks(model):
        yield from _OF_BLOCKS
    if not any(isinstance(module, _ConvNd) for module in modules):
        yield from _OF_CONVOLUTIONS
    if not any(isinstance(module, SplitProjection) for module in modules):
        yield "qkv_streams"
    if not any(isinstance(module, ChunkedLoss) for module in modules):
        yield "loss_chunks"
    if not any(map(takes_float8, modules)):
        yield "float8"
    if next(model.buffers(), None) is None:
        yield "broadcast_buffers"


def _of_rest(workload: Workload) -> Iterator[str]:
    if workload.shorten is None or not workload.tokens_per_sample:
        yield from _OF_SHORTENED_SAMPLES
    if workload.batches is not None:
        yield from _OF_LOADERS
    if workload.optimizer is None:
        yield "optimizer_kernels"
