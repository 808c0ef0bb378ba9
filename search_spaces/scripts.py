"""Which knobs act on a training script that nobody has changed, and through what of it.

A knob that is not here is turned by the script itself: by an argument that the study maps it to.
"""

from collections.abc import Mapping, Sequence

from search_spaces.knob import KnobValue, written

PROCESS = "the process"
DDP = "a model in DistributedDataParallel"
LOADER = "a DataLoader"
OPTIMIZER = "an optimizer of torch.optim"

THROUGH: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("cpu_threads", "cpu_affinity", "cudnn_benchmark", "freeze_gc", "attention"),
            *("nccl_algo", "nccl_proto", "nccl_channels", "nccl_ctas", "nccl_registration"),
            *("cuda_connections", "expandable_segments"),
        ),
        PROCESS,
    ),
    **dict.fromkeys(
        (
            *("bucket_cap_mb", "first_bucket_mb", "gradient_as_bucket_view", "static_graph"),
            *("find_unused_parameters", "broadcast_buffers", "gradient_compression"),
            *("powersgd_rank", "precision", "activation_checkpointing", "channels_last"),
        ),
        DDP,
    ),
    **dict.fromkeys(
        ("loader_workers", "pin_memory", "prefetch_factor", "persistent_workers"), LOADER
    ),
    "optimizer_kernels": OPTIMIZER,
}
"""Knob -> what a script must have for it to act."""

_VALUES: Mapping[str, tuple[KnobValue, ...]] = {
    "precision": ("fp32", "tf32", "bf16"),
    "gradient_compression": ("none", "fp16", "bf16", "powersgd"),
    "channels_last": (False,),
}
"""Of knobs with values that need more of the training than can be changed from outside: the others."""

_FROM: Mapping[str, KnobValue] = {"precision": "fp32", "activation_checkpointing": 0}
"""What the script itself must do for the knob to be changed from outside: what it does besides cannot
be taken away."""


def refusal(name: str, values: Sequence[KnobValue], baseline: KnobValue) -> str | None:
    """Why a knob cannot take these values in a script that does not turn it itself; None if it can.

    Args:
        name: of the knob.
        values: to be tried.
        baseline: what the script has today.
    """
    if name not in THROUGH:
        return "cannot be changed from outside the script"
    wanted = [value for value in values if value != baseline]
    if wanted and baseline != _FROM.get(name, baseline):
        return f"cannot be changed from outside a script that has {written(baseline)} by itself"
    known = _VALUES.get(name, tuple(wanted))
    refused = [written(value) for value in wanted if value not in known]
    return f"cannot be {' or '.join(refused)} from outside the script" if refused else None
