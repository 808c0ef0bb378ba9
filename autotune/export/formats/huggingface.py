"""For Hugging Face: fields of TrainingArguments, and the configuration of `accelerate launch`.

Read with transformers 5.23 and Accelerate 1.15. Fields that older ones lack are said only where they are
needed: these refuse what they do not know.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from autotune.export.best import BestConfig
from autotune.export.formats.telling import (
    SHARDED,
    Fields,
    Knobs,
    Rule,
    Said,
    as_json,
    bucket,
    compiled,
    field,
    has_loader_workers,
    in_ddp,
    nested,
    of_accelerate,
    on_cpu,
    one_of,
    told,
    where,
)


def _training_compile(mode: str, knobs: Knobs) -> Fields | None:
    if knobs["compile_scope"] != "model":
        return None
    return {"torch_compile": True, **({} if mode == "default" else {"torch_compile_mode": mode})}


def _training_checkpointing(every: int, knobs: Knobs) -> Fields:
    if every == 0:
        return {}
    if every == 1:
        sharded = knobs["parallelism"] in SHARDED
        name = "fsdp_config.activation_checkpointing" if sharded else "gradient_checkpointing"
        return {name: True}
    return {
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs.every_n_layers": every,
    }


def _training_sharding(reshard: bool) -> Fields:
    return {
        "fsdp": True,
        "fsdp_config.version": 2,
        "fsdp_config.reshard_after_forward": reshard,
    }


_TRAINING: Mapping[str, Rule] = {
    "micro_batch": field("per_device_train_batch_size"),
    "accumulation_steps": field("gradient_accumulation_steps"),
    "precision": one_of(
        {
            "fp32": {"bf16": False, "fp16": False},
            "tf32": {"bf16": False, "fp16": False, "tf32": True},
            "bf16": {"bf16": True, "fp16": False},
            "fp16": {"bf16": False, "fp16": True},
        }
    ),
    "parallelism": one_of(
        {
            "ddp": {},
            "none": {},
            "fsdp": _training_sharding(True),
            "fsdp_keep": _training_sharding(False),
        }
    ),
    "bucket_cap_mb": bucket("ddp_bucket_cap_mb", whole=True),
    "find_unused_parameters": where(in_ddp, field("ddp_find_unused_parameters")),
    "broadcast_buffers": where(in_ddp, field("ddp_broadcast_buffers")),
    "static_graph": where(in_ddp, one_of({False: {}, True: {"ddp_static_graph": True}})),
    "activation_checkpointing": _training_checkpointing,
    "compile": compiled(_training_compile),
    "compile_scope": one_of({"model": {}}),
    "loader_workers": field("dataloader_num_workers"),
    "pin_memory": field("dataloader_pin_memory"),
    "persistent_workers": field("dataloader_persistent_workers"),
    "prefetch_factor": where(has_loader_workers, field("dataloader_prefetch_factor")),
    "log_interval": lambda value, _: {"logging_strategy": "steps", "logging_steps": value},
}


def hf_trainer(best: BestConfig) -> Said:
    """A file for HfArgumentParser.parse_json_file."""
    fields, unsaid = told(best, _TRAINING, of_accelerate(best))
    # Without that word it refuses bf16 where there is no device.
    where_measured = {"use_cpu": True} if on_cpu(best) else {}
    return Said(as_json(nested({**where_measured, **fields})), unsaid)


def _launch_compile(mode: str, knobs: Knobs) -> Fields:
    scope = _launch_scope(knobs["compile_scope"], knobs)
    return {
        "dynamo_config.dynamo_backend": "INDUCTOR",
        "dynamo_config.dynamo_mode": mode,
        **scope,
    }


def _launch_scope(scope: str, knobs: Knobs) -> Fields:
    if scope != "blocks" or knobs["compile"] == "none":
        return {}
    return {"dynamo_config.dynamo_use_regional_compilation": True}


def _launch_sharding(reshard: bool) -> Fields:
    return {
        "distributed_type": "FSDP",
        "fsdp_config.fsdp_version": 2,
        "fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_config.fsdp_reshard_after_forward": reshard,
    }


def _launch_checkpointing(every: int, knobs: Knobs) -> Fields | None:
    """Accelerate checkpoints the blocks that FSDP wraps, all of them."""
    if not every:
        return {}
    sharded = knobs["parallelism"] in ("fsdp", "fsdp_keep")
    return {"fsdp_config.fsdp_activation_checkpointing": True} if sharded and every == 1 else None


_LAUNCH: Mapping[str, Rule] = {
    "precision": one_of(
        {
            "fp32": {"mixed_precision": "no"},
            "bf16": {"mixed_precision": "bf16"},
            "fp16": {"mixed_precision": "fp16"},
        }
    ),
    "parallelism": one_of(
        {
            "ddp": {},
            "none": {},
            "fsdp": _launch_sharding(True),
            "fsdp_keep": _launch_sharding(False),
        }
    ),
    "activation_checkpointing": _launch_checkpointing,
    "compile": compiled(_launch_compile),
    "compile_scope": _launch_scope,
}
"""enable_cpu_affinity, which is numa_binding, `accelerate launch` takes from the command line only."""


def accelerate(best: BestConfig) -> Said:
    """A file for `accelerate launch --config_file`, on one machine."""
    fields, unsaid = told(best, _LAUNCH, of_accelerate(best))
    content = nested({**_ranks(best), **fields})
    if on_cpu(best) and best.world_size > 1:
        unsaid = {"world_size": best.world_size, **unsaid}  # it starts one process, unless by MPI
    return Said(yaml.safe_dump(content, sort_keys=False), unsaid)


def _ranks(best: BestConfig) -> dict[str, Any]:
    several = "MULTI_CPU" if on_cpu(best) else "MULTI_GPU"
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": several if best.world_size > 1 else "NO",
        "num_processes": best.world_size,
        "use_cpu": on_cpu(best),
    }
