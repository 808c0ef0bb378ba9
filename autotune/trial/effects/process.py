"""Settings of a whole rank: threads, environment, garbage collection."""

import gc

import torch

from autotune.trial.protocol import Knobs

_AUTO = "auto"
_PER_COLLECTIVE = (2, 24)


VARIABLES = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "PYTORCH_CUDA_ALLOC_CONF",
)
"""All that `environment` may set."""


def threads(knobs: Knobs, given: int, replicas: int = 1) -> int:
    """cpu_threads: of this process, for each of its replicas; 0 leaves the number that it is given."""
    return int(knobs["cpu_threads"]) * replicas or given


def environment(knobs: Knobs) -> dict[str, str]:
    """nccl_algo, nccl_proto, nccl_channels, expandable_segments: read by NCCL and by the CUDA allocator
    when they start."""
    found = {}
    if knobs["nccl_algo"] != _AUTO:
        found["NCCL_ALGO"] = _algorithm(knobs["nccl_algo"])
    if knobs["nccl_proto"] != _AUTO:
        found["NCCL_PROTO"] = str(knobs["nccl_proto"])
    if knobs["nccl_channels"]:
        found["NCCL_MIN_NCHANNELS"] = found["NCCL_MAX_NCHANNELS"] = str(knobs["nccl_channels"])
    if knobs["expandable_segments"]:
        found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return found


def _algorithm(name: str) -> str:
    """From 2.24 on NCCL refuses a collective that the named algorithm does not know, as trees do not
    know all-gather; it takes one algorithm per collective there."""
    version = torch.cuda.nccl.version() if torch.cuda.is_available() else (0,)
    return f"allreduce:{name.lower()}" if tuple(version) >= _PER_COLLECTIVE else name


def allocator(knobs: Knobs) -> None:
    """expandable_segments: torch has read the environment when it was loaded, long before the fork."""
    if knobs["expandable_segments"]:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")


def garbage_collection(knobs: Knobs) -> None:
    """freeze_gc: what lives by now is never looked at again, and nothing is collected during steps;
    reference counts still free almost everything."""
    if knobs["freeze_gc"]:
        gc.collect()
        gc.freeze()
        gc.disable()
