"""For DeepSpeed: ds_config.json. Read with DeepSpeed 0.19.

Its bf16 and fp16 are formats of the weights beside fp32 ones, where the trials had autocast; its stages
are its own ZeRO, not PyTorch's. Its section activation_checkpointing sets up what a model may call: it
turns nothing on, so that knob is left unsaid.
"""

from collections.abc import Mapping

from autotune.export.best import BestConfig
from autotune.export.formats.telling import (
    Fields,
    Knobs,
    Rule,
    Said,
    as_json,
    field,
    nested,
    one_of,
    told,
    where,
)

_MIB = 1 << 20
_BYTES = {"bf16": 2, "fp16": 2}
"""Of an element of the gradients, by what DeepSpeed computes in; else 4."""
_BETWEEN_RANKS = "communication_data_type"


def _formats(bf16: bool, fp16: bool) -> Fields:
    return {"bf16.enabled": bf16, "fp16.enabled": fp16}


def _shards_parameters(knobs: Knobs) -> bool:
    return knobs["parallelism"] in ("fsdp", "fsdp_keep")


def _bucket(mib: float, knobs: Knobs) -> Fields:
    """In elements. Stage 0 has buckets of a fixed size."""
    elements = int(mib * _MIB) // _BYTES.get(knobs["precision"], 4)
    return {"zero_optimization.reduce_bucket_size": elements}


_RULES: Mapping[str, Rule] = {
    "micro_batch": field("train_micro_batch_size_per_gpu"),
    "accumulation_steps": field("gradient_accumulation_steps"),
    "precision": one_of(
        {
            "fp32": _formats(bf16=False, fp16=False),
            "bf16": _formats(bf16=True, fp16=False),
            "fp16": _formats(bf16=False, fp16=True),
        }
    ),
    "parallelism": one_of(
        {
            name: {"zero_optimization.stage": stage}
            for name, stage in {"ddp": 0, "none": 0, "zero1": 1, "fsdp_keep": 2, "fsdp": 3}.items()
        }
    ),
    "bucket_cap_mb": where(lambda knobs: knobs["parallelism"] == "zero1", _bucket),
    "gradient_compression": where(
        lambda knobs: not _shards_parameters(knobs),
        one_of(
            {
                "none": {_BETWEEN_RANKS: "fp32"},
                "fp16": {_BETWEEN_RANKS: "fp16"},
                "bf16": {_BETWEEN_RANKS: "bf16"},
            }
        ),
    ),
    "fsdp_reduce_dtype": where(_shards_parameters, field(_BETWEEN_RANKS)),
    "freeze_gc": one_of({False: {}, True: {"disable_python_gc": True}}),
}


def deepspeed(best: BestConfig) -> Said:
    """A ds_config.json, for any number of ranks."""
    fields, unsaid = told(best, _RULES)
    return Said(as_json(nested(fields)), unsaid)
