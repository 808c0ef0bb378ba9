"""For Lightning: keyword arguments of its Trainer. Read with Lightning 2.6."""

from collections.abc import Mapping

import yaml

from autotune.export.best import BestConfig
from autotune.export.formats.telling import (
    Rule,
    Said,
    bucket,
    field,
    in_ddp,
    nested,
    nodes,
    on_cpu,
    one_of,
    told,
    where,
)

_STRATEGY = "strategy.init_args"
_CLASS = "lightning.pytorch.strategies.DDPStrategy"


def _ddp(name: str, usual: bool) -> Rule:
    """An argument of DistributedDataParallel, where it is not what that does anyway."""
    return where(in_ddp, one_of({usual: {}, not usual: {f"{_STRATEGY}.{name}": not usual}}))


_RULES: Mapping[str, Rule] = {
    "accumulation_steps": field("accumulate_grad_batches"),
    "precision": one_of(
        {
            "fp32": {"precision": "32-true"},
            "bf16": {"precision": "bf16-mixed"},
            "fp16": {"precision": "16-mixed"},
            "pure_bf16": {"precision": "bf16-true"},
        }
    ),
    "parallelism": one_of({"ddp": {"strategy": "ddp"}, "none": {"strategy": "auto"}}),
    "bucket_cap_mb": bucket(f"{_STRATEGY}.bucket_cap_mb", whole=False),
    "gradient_as_bucket_view": _ddp("gradient_as_bucket_view", False),
    "static_graph": _ddp("static_graph", False),
    "find_unused_parameters": _ddp("find_unused_parameters", False),
    "broadcast_buffers": _ddp("broadcast_buffers", True),
    "cudnn_benchmark": field("benchmark"),
    "log_interval": field("log_every_n_steps"),
}


def lightning(best: BestConfig) -> Said:
    """YAML; a strategy with arguments has the form of LightningCLI, of which
    `lightning.pytorch.cli.instantiate_class((), arguments["strategy"])` makes one."""
    fields, unsaid = told(best, _RULES)
    if any(name.startswith(_STRATEGY) for name in fields):
        fields.pop("strategy", None)
        fields = {"strategy.class_path": _CLASS, **fields}
    content = {
        "accelerator": "cpu" if on_cpu(best) else "gpu",
        "devices": best.world_size // nodes(best),  # of each node
        **({"num_nodes": nodes(best)} if nodes(best) > 1 else {}),
        **nested(fields),
    }
    return Said(yaml.safe_dump(content, sort_keys=False), unsaid)
