"""For torchtitan: arguments of its command line, by the names of torchtitan 0.3.0.

0.2 reads those of the loader as `--training.dataloader.*`; later ones count tokens instead of samples.
"""

from collections.abc import Mapping
from typing import Any

from autotune.export.best import BestConfig
from autotune.export.formats.telling import (
    Fields,
    Knobs,
    Rule,
    Said,
    field,
    has_loader_workers,
    one_of,
    told,
    where,
)
from search_spaces.knob import written

_BY_ITSELF = {"activation_checkpointing": None}
"""It checkpoints by a policy of its own, which is another class in its configuration for every kind."""


def _formats(weights: str, computing: str) -> Fields:
    return {"training.dtype": weights, "training.mixed_precision_param": computing}


def _ranks(replicas: int, shards: int, **more: str) -> Fields:
    return {
        "parallelism.data_parallel_replicate_degree": replicas,
        "parallelism.data_parallel_shard_degree": shards,
        **{f"parallelism.{name}": value for name, value in more.items()},
    }


def _rules(ranks: int) -> Mapping[str, Rule]:
    def samples(_: Any, knobs: Knobs) -> Fields:
        micro_batch, accumulated = knobs["micro_batch"], knobs["accumulation_steps"]
        return {
            "training.local_batch_size": micro_batch,
            "training.global_batch_size": micro_batch * accumulated * ranks,
        }

    return {
        "micro_batch": samples,
        "accumulation_steps": samples,
        "precision": one_of(
            {
                "fp32": _formats("float32", "float32"),
                "bf16": _formats("float32", "bfloat16"),
                "pure_bf16": _formats("bfloat16", "bfloat16"),
            }
        ),
        "parallelism": one_of(
            {
                "none": _ranks(1, 1),
                "ddp": _ranks(ranks, 1),
                "fsdp": _ranks(1, ranks, fsdp_reshard_after_forward="always"),
                "fsdp_keep": _ranks(1, ranks, fsdp_reshard_after_forward="never"),
            }
        ),
        "fsdp_reduce_dtype": one_of({"fp32": {"training.mixed_precision_reduce": "float32"}}),
        "compile": one_of({"none": {"compile.enable": False}, "default": {"compile.enable": True}}),
        # It compiles block by block.
        "compile_scope": lambda value, knobs: (
            {} if value == "blocks" or knobs["compile"] == "none" else None
        ),
        "optimizer_kernels": one_of(
            {name: {"optimizer.implementation": name} for name in ("foreach", "fused")}
        ),
        "loader_workers": field("dataloader.num_workers"),
        "pin_memory": field("dataloader.pin_memory"),
        "persistent_workers": where(has_loader_workers, field("dataloader.persistent_workers")),
        "prefetch_factor": where(has_loader_workers, field("dataloader.prefetch_factor")),
        "log_interval": field("metrics.log_freq"),
    }


def torchtitan(best: BestConfig) -> Said:
    """`--section.name value`, an argument a line."""
    compiles = best.knobs.get("compile", "none") != "none"
    by_itself = {**_BY_ITSELF, "optimizer_kernels": "fused"}
    if compiles:
        by_itself["compile_scope"] = "blocks"
    fields, unsaid = told(best, _rules(best.world_size), by_itself)
    return Said("".join(f"{_argument(*each)}\n" for each in fields.items()), unsaid)


def _argument(name: str, value: Any) -> str:
    if isinstance(value, bool):
        section, _, last = name.rpartition(".")
        return f"--{name}" if value else f"--{section}.no_{last}"
    return f"--{name} {written(value)}"
