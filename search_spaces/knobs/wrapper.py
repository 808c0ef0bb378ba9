"""Knobs that act on what shares a model among ranks."""

from typing import Any

from search_spaces.knob import (
    ANY_WORKLOAD,
    BLOCKS,
    BUFFERS,
    DDP,
    GRAPH,
    NOTHING,
    NUMBERS,
    ON_OR_OFF,
    SHARDING,
    STATISTICS,
    WRAPPER,
    Choice,
    Fields,
    Knob,
    Knobs,
    NotWith,
    OnlyWith,
    Range,
    Via,
    Words,
    field,
    one_of,
    without,
)
from search_spaces.needs import CUDA, NCCL, SHARDED, UNSHARDED, WITH_DDP, WITH_FSDP, in_ddp

_LOST_IN_SENDING = (
    "an overflow (fp16) would stay in what was lost in sending, which needs fp32 to be kept"
)

_DDP_BUCKET = 25
"""MiB: PyTorch's own, which has a smaller first bucket. A 25 that is said has not."""
_LIGHTNING_DDP = "strategy.init_args"
_DEEPSPEED_SENDS = "communication_data_type"
_DEEPSPEED_FORMATS = {"none": "fp32", "fp16": "fp16", "bf16": "bf16"}
_DEEPSPEED_STAGES = {"ddp": 0, "none": 0, "zero1": 1, "fsdp_no_reshard": 2, "fsdp": 3}
_DEEPSPEED_BYTES = {"bf16": 2, "fp16": 2}
"""Bytes of an element of the gradients, by the precision in which DeepSpeed computes; else 4."""
_MIB = 1 << 20


def _bucket(name: str, *, whole: bool = False) -> Words:
    """Return a field for bucket_cap_mb, which may take whole numbers only."""

    def say(value: Any, knobs: Knobs) -> Fields | None:
        if not in_ddp(knobs) or (whole and value != int(value)):
            return None
        if value == _DDP_BUCKET:
            return {}
        return {name: int(value) if whole else value}

    return Words(say)


def _deepspeed_bucket(mib: float, knobs: Knobs) -> Fields | None:
    """Return a bucket in elements. Stage 0 has buckets of a fixed size."""
    if knobs["parallelism"] != "zero1":
        return None
    elements = int(mib * _MIB) // _DEEPSPEED_BYTES.get(knobs["precision"], 4)
    return {"zero_optimization.reduce_bucket_size": elements}


def _lightning_ddp(name: str, *, usual: bool) -> Words:
    """Return an argument of DistributedDataParallel, said where it is not what that does anyway."""
    return one_of({usual: {}, not usual: {f"{_LIGHTNING_DDP}.{name}": not usual}}, in_ddp)


def _hf_sharding(*, reshard: bool) -> Fields:
    return {
        "fsdp": True,
        "fsdp_config.version": 2,
        "fsdp_config.reshard_after_forward": reshard,
    }


def _accelerate_sharding(*, reshard: bool) -> Fields:
    return {
        "distributed_type": "FSDP",
        "fsdp_config.fsdp_version": 2,
        "fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_config.fsdp_reshard_after_forward": reshard,
    }


def _torchtitan_ranks(value: str, knobs: Knobs) -> Fields | None:
    """Return how many ranks hold copies, and how many share one."""
    ranks = knobs["world_size"]
    degrees = {"none": (1, 1), "ddp": (ranks, 1), "fsdp": (1, ranks), "fsdp_no_reshard": (1, ranks)}
    if value not in degrees:
        return None
    reshards = {"fsdp": "always", "fsdp_no_reshard": "never"}.get(value)
    replicas, shards = degrees[value]
    return {
        "parallelism.data_parallel_replicate_degree": replicas,
        "parallelism.data_parallel_shard_degree": shards,
        **({"parallelism.fsdp_reshard_after_forward": reshards} if reshards else {}),
    }


def _shards_weights(knobs: Knobs) -> bool:
    """Return whether DeepSpeed shards weights, or gradients, for this parallelism."""
    return knobs["parallelism"] in ("fsdp", "fsdp_no_reshard")


def _summed_by_accelerate(knobs: Knobs) -> str:
    """Return the format in which FSDP sums gradients there: the one that it computes in."""
    low = knobs["precision"] in ("bf16", "fp16") and knobs["parallelism"] in SHARDED
    return str(knobs["precision"]) if low else "fp32"


KNOBS = (
    Knob(
        name="bucket_cap_mb",
        changes=NOTHING,
        domain=Range(0.01, 100_000, integer=False),
        default=_DDP_BUCKET,
        summary="MiB of gradients per all-reduce of DDP; 25, PyTorch's own, has a first bucket of 1",
        acts_on=WRAPPER,
        target=ANY_WORKLOAD,
        inject=Via(DDP),
        applied="DistributedDataParallel(bucket_cap_mb=...)",
        source="PyTorch DistributedDataParallel (default 25); Li et al. 2020",
        ordered=True,
        memory=True,
        parts=("communication",),
        promising=25,
        because="few calls that still overlap with the backward pass",
        only_with=(WITH_DDP,),
        conflicts=(),
        exports={
            "hf-trainer": _bucket("ddp_bucket_cap_mb", whole=True),
            "lightning": _bucket(f"{_LIGHTNING_DDP}.bucket_cap_mb"),
            "deepspeed": Words(_deepspeed_bucket),
        },
    ),
    Knob(
        name="gradient_as_bucket_view",
        changes=NOTHING,
        domain=ON_OR_OFF,
        default=False,
        summary="gradients live in the buckets: one copy and its memory less",
        acts_on=WRAPPER,
        target=ANY_WORKLOAD,
        inject=Via(DDP),
        applied="DistributedDataParallel(gradient_as_bucket_view=...)",
        source="PyTorch DistributedDataParallel (default false)",
        memory=True,
        parts=("communication",),
        promising=True,
        because="saves a copy of all gradients",
        only_with=(WITH_DDP,),
        conflicts=(),
        exports={"lightning": _lightning_ddp("gradient_as_bucket_view", usual=False)},
    ),
    Knob(
        name="gradient_compression",
        changes=frozenset({NUMBERS}),
        domain=Choice(("none", "fp16", "bf16", "powersgd", "one_bit")),
        default="none",
        summary="gradients travel, and are summed, in half precision; as low-rank factors (powersgd, in "
        "your job after PyTorch's 1,000 steps of whole gradients); or Adam's momentum travels in one "
        "bit per parameter (one_bit)",
        needs=NCCL,
        needs_for=("bf16", "powersgd"),
        acts_on=WRAPPER,
        target=ANY_WORKLOAD,
        inject=Via(DDP, values=("none", "fp16", "bf16", "powersgd")),
        applied="DistributedDataParallel.register_comm_hook; one_bit: the update of Adam as well",
        source="PyTorch DDP communication hooks; Vogels et al. 2019, PowerSGD; Tang et al. 2021, 1-bit "
        "Adam; on gloo bf16 fails, and powersgd as soon as there are two buckets (torch 2.13)",
        memory=True,
        number_format=True,
        parts=("communication", "optimizer"),
        promising="none",
        because="it costs precision: only if communication is what hurts",
        only_with=(WITH_DDP,),
        conflicts=(
            NotWith(
                "parallelism",
                "both replace the optimizer",
                values=("one_bit",),
                of_other=("zero1",),
            ),
            NotWith(
                "precision", _LOST_IN_SENDING, values=("one_bit",), of_other=("fp16", "pure_bf16")
            ),
            NotWith("precision", _LOST_IN_SENDING, values=("powersgd",), of_other=("fp16",)),
        ),
        stateful=("powersgd", "one_bit"),
        exports={
            "deepspeed": one_of(
                {name: {_DEEPSPEED_SENDS: sent} for name, sent in _DEEPSPEED_FORMATS.items()},
                lambda knobs: not _shards_weights(knobs),
            ),
        },
    ),
    Knob(
        name="powersgd_rank",
        changes=frozenset({NUMBERS}),
        domain=Range(1, 64),
        default=1,
        summary="rank of the factors that PowerSGD sends for a matrix of gradients",
        acts_on=WRAPPER,
        target=ANY_WORKLOAD,
        inject=Via(DDP),
        applied="PowerSGDState(matrix_approximation_rank=...)",
        source="Vogels et al. 2019, PowerSGD; PyTorch powerSGD_hook (default 1)",
        ordered=True,
        number_format=True,
        parts=("communication",),
        promising=1,
        because="the least to send",
        only_with=(
            OnlyWith(
                "gradient_compression",
                ("powersgd",),
                "it acts beside gradient_compression=powersgd only",
            ),
        ),
        conflicts=(),
        exports={},
    ),
    Knob(
        name="static_graph",
        changes=frozenset({NUMBERS, GRAPH}),
        domain=ON_OR_OFF,
        default=False,
        summary="promises DDP that every step uses the same parameters in the same order",
        acts_on=WRAPPER,
        target=ANY_WORKLOAD,
        inject=Via(DDP),
        applied="DistributedDataParallel(static_graph=...)",
        source="PyTorch DistributedDataParallel (default false)",
        parts=("communication",),
        only_with=(WITH_DDP,),
        conflicts=(
            NotWith(
                "accumulation_steps",
                "DDP learns the graph from its first backward pass, which no_sync hides from it "
                "(torch 2.13)",
            ),
        ),
        made_for=(
            *("accumulation_steps", "activation_checkpointing", "compile", "compile_scope"),
            "loss_chunks",
        ),
        exports={
            "hf-trainer": one_of({False: {}, True: {"ddp_static_graph": True}}, in_ddp),
            "lightning": _lightning_ddp("static_graph", usual=False),
        },
    ),
    Knob(
        name="broadcast_buffers",
        changes=frozenset({NUMBERS, STATISTICS}),
        domain=ON_OR_OFF,
        default=True,
        summary="rank 0 sends its buffers (running statistics of BatchNorm) before every forward pass",
        acts_on=WRAPPER,
        target=BUFFERS,
        inject=Via(DDP),
        applied="DistributedDataParallel(broadcast_buffers=...)",
        source="PyTorch DistributedDataParallel (default true)",
        parts=("launching",),
        only_with=(WITH_DDP,),
        conflicts=(),
        exports={
            "hf-trainer": field("ddp_broadcast_buffers", in_ddp),
            "lightning": _lightning_ddp("broadcast_buffers", usual=True),
        },
    ),
    Knob(
        name="parallelism",
        changes=frozenset({NUMBERS, STATISTICS}),
        domain=Choice(("ddp", "none", "data_parallel", "zero1", "fsdp", "fsdp_no_reshard", "hsdp")),
        default="ddp",
        summary="what ranks share: nothing (ddp), optimizer state (zero1), parameters as well (FSDP2); "
        "none: the bare model of a single rank; data_parallel: one process drives all devices of a "
        "node, on the CPU all its processors",
        acts_on=WRAPPER,
        target=ANY_WORKLOAD,
        inject=Via(SHARDING, values=("ddp", "fsdp", "fsdp_no_reshard", "hsdp")),
        applied="DistributedDataParallel, DataParallel, ZeroRedundancyOptimizer, fully_shard of blocks "
        "and model",
        source="Li et al. 2020, PyTorch Distributed (VLDB); Rajbhandari et al. 2020, ZeRO; Zhao et al. "
        "2023, PyTorch FSDP",
        parts=("communication", "optimizer", "launching", "compute"),
        promising="ddp",
        because="the least to send; sharding is for what does not fit",
        memory=True,
        # FSDP2 sends no buffers. data_parallel computes per device; on the CPU, where it computes the
        # rows of all at once, its rank says so.
        same_statistics=((*UNSHARDED, "zero1", "data_parallel"), SHARDED),
        only_with=(),
        conflicts=(),
        stateful=("data_parallel", "zero1", *SHARDED),
        exports={
            "hf-trainer": one_of(
                {
                    "ddp": {},
                    "none": {},
                    "fsdp": _hf_sharding(reshard=True),
                    "fsdp_no_reshard": _hf_sharding(reshard=False),
                }
            ),
            "accelerate": one_of(
                {
                    "ddp": {},
                    "none": {},
                    "fsdp": _accelerate_sharding(reshard=True),
                    "fsdp_no_reshard": _accelerate_sharding(reshard=False),
                }
            ),
            "lightning": one_of({"ddp": {"strategy": "ddp"}, "none": {"strategy": "auto"}}),
            "deepspeed": one_of(
                {
                    name: {"zero_optimization.stage": stage}
                    for name, stage in _DEEPSPEED_STAGES.items()
                }
            ),
            "torchtitan": Words(_torchtitan_ranks),
        },
    ),
    Knob(
        name="loss_placement",
        changes=frozenset({NUMBERS}),
        domain=Choice(("outside", "inside")),
        default="outside",
        summary="under DataParallel, the loss on the gathered outputs of all devices, or inside what "
        "each device runs",
        needs=CUDA,
        acts_on=WRAPPER,
        target=ANY_WORKLOAD,
        inject=None,
        applied="DataParallel(module whose forward pass returns the loss)",
        source="PyTorch DataParallel: outputs are gathered on device_ids[0]",
        parts=("compute", "pressure"),
        promising="inside",
        because="the outputs of all devices need not fit on the first",
        memory=True,
        only_with=(
            OnlyWith(
                "parallelism", ("data_parallel",), "it acts beside parallelism=data_parallel only"
            ),
        ),
        conflicts=(),
        exports={},
    ),
    Knob(
        name="fsdp_prefetch",
        changes=NOTHING,
        domain=Range(0, 16),
        default=0,
        summary="blocks ahead whose parameters FSDP2 gathers while one computes, forward and backward; "
        "0: as FSDP2 does by itself",
        acts_on=WRAPPER,
        target=BLOCKS,
        inject=Via(SHARDING),
        applied="FSDPModule.set_modules_to_forward_prefetch, set_modules_to_backward_prefetch",
        source="PyTorch FSDP2 documentation, explicit prefetching",
        ordered=True,
        memory=True,
        parts=("communication", "launching"),
        promising=2,
        because="gathering no longer waits for the host",
        only_with=(WITH_FSDP,),
        conflicts=(),
        exports={},
    ),
    Knob(
        name="fsdp_reduce_dtype",
        changes=frozenset({NUMBERS}),
        domain=Choice(("fp32", "bf16")),
        default="fp32",
        summary="the format in which FSDP2 sums gradients over ranks; under pure_bf16 always bf16",
        acts_on=WRAPPER,
        target=ANY_WORKLOAD,
        inject=Via(SHARDING),
        applied="MixedPrecisionPolicy(reduce_dtype=...)",
        source="PyTorch FSDP2 documentation; torchtitan, mixed_precision_reduce (default float32)",
        parts=("communication",),
        promising="fp32",
        because="sums keep their precision: only if communication is what hurts",
        memory=True,
        number_format=True,
        only_with=(WITH_FSDP,),
        conflicts=(
            NotWith(
                "precision", "gradients of bf16 weights are bf16 already", of_other=("pure_bf16",)
            ),
        ),
        exports={
            "hf-trainer": without(_summed_by_accelerate),
            "accelerate": without(_summed_by_accelerate),
            "deepspeed": field(_DEEPSPEED_SENDS, _shards_weights),
            "torchtitan": one_of({"fp32": {"training.mixed_precision_reduce": "float32"}}),
        },
    ),
    Knob(
        name="first_bucket_mb",
        changes=NOTHING,
        domain=Range(0.01, 1000, integer=False),
        default=1,
        summary="MiB of DDP's first bucket: how early the first gradients leave",
        acts_on=WRAPPER,
        target=ANY_WORKLOAD,
        inject=Via(DDP),
        applied="torch.distributed._DEFAULT_FIRST_BUCKET_BYTES",
        source="PyTorch DistributedDataParallel (1 MiB unless bucket_cap_mb is given)",
        parts=("communication",),
        promising=1,
        because="PyTorch's own",
        ordered=True,
        only_with=(WITH_DDP,),
        conflicts=(
            NotWith(
                "bucket_cap_mb", "DDP has a first bucket of its own only with its own bucket size"
            ),
        ),
        exports={},
    ),
    Knob(
        name="find_unused_parameters",
        changes=frozenset({GRAPH}),
        domain=ON_OR_OFF,
        default=False,
        summary="DDP walks the graph of every step for parameters that get no gradient",
        acts_on=WRAPPER,
        target=ANY_WORKLOAD,
        inject=Via(DDP),
        applied="DistributedDataParallel(find_unused_parameters=...)",
        source="PyTorch DistributedDataParallel; Hugging Face Trainer sets it for some models",
        parts=("launching",),
        promising=False,
        because="a walk less per step; right unless parameters do go unused",
        only_with=(WITH_DDP,),
        conflicts=(NotWith("static_graph", "a static graph finds them in its first step"),),
        exports={
            "hf-trainer": field("ddp_find_unused_parameters", in_ddp),
            "lightning": _lightning_ddp("find_unused_parameters", usual=False),
        },
    ),
)
