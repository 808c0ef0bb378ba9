"""Settings of a whole rank: threads, environment, garbage collection."""

import gc

import torch

from autotune.trial.protocol import Knobs

_AUTO = "auto"


def threads(knobs: Knobs, given: int) -> int:
    """cpu_threads: of this process; 0 leaves the number that the study gives."""
    return int(knobs["cpu_threads"]) or given


def environment(knobs: Knobs) -> dict[str, str]:
    """nccl_algo, nccl_proto, nccl_channels, expandable_segments: read by NCCL and by the CUDA allocator
    when they start."""
    found = {
        variable: str(knobs[knob])
        for variable, knob in (("NCCL_ALGO", "nccl_algo"), ("NCCL_PROTO", "nccl_proto"))
        if knobs[knob] != _AUTO
    }
    if knobs["nccl_channels"]:
        found["NCCL_MIN_NCHANNELS"] = found["NCCL_MAX_NCHANNELS"] = str(knobs["nccl_channels"])
    if knobs["expandable_segments"]:
        found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return found


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
