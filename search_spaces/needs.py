"""Needs that several knobs have: of the machine, and of the values of another knob."""

from search_spaces.knob import Knobs, NotWith, OnlyWith

CUDA = "a CUDA device"
NCCL = "NCCL: a CUDA device of its own for every rank"
TF32 = "a CUDA device of compute capability 8.0 or higher"
FLASH = "a CUDA device of compute capability 8.0 or higher, or the CPU"
FP8 = "a CUDA device of compute capability 8.9 or higher"
SWITCH = "a CUDA device of compute capability 9.0 or higher"
HOPPER = "a CUDA device of compute capability 9.0"

BF16 = ("bf16", "pure_bf16")
"""Values of precision that compute in bf16."""
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""Values of compile that replay CUDA graphs, whose results lie in memory of the graphs' own."""
SHARDED = ("fsdp", "fsdp_no_reshard", "hsdp")
"""Values of parallelism with which each rank holds a part of the weights."""
UNSHARDED = ("ddp", "none")
"""Values of parallelism with which each rank holds whole weights and the whole optimizer."""
IN_DDP = ("ddp", "zero1")
"""Values of parallelism with which the model is in DistributedDataParallel."""

WITH_DDP = OnlyWith("parallelism", IN_DDP, "it acts on DDP only")
WITH_FSDP = OnlyWith("parallelism", SHARDED, "it acts on FSDP2 only")
WITH_WORKERS = OnlyWith("num_workers", (), "it acts on loader workers only")
FOR_ONE_COPY = NotWith(
    "parallelism",
    "it is tied to one copy of the model, and every forward pass makes new ones",
    of_other=("data_parallel",),
    device="cuda",
)


def in_ddp(knobs: Knobs) -> bool:
    """Return whether the model is in DistributedDataParallel."""
    return knobs["parallelism"] in IN_DDP


def has_workers(knobs: Knobs) -> bool:
    """Return whether a DataLoader takes what is for its workers."""
    return bool(knobs["num_workers"])
