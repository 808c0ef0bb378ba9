"""Forms for training frameworks: Hugging Face, Lightning, DeepSpeed, torchtitan, Hydra.

Read with transformers 5.23, Accelerate 1.15, Lightning 2.6, DeepSpeed 0.19 and torchtitan 0.3.0.

- Hugging Face: fields that older versions lack are said only where they are needed, as these refuse
  what they do not know. `accelerate launch` takes enable_cpu_affinity, which is numa_binding, from the
  command line only.
- Accelerate, and so the Trainer of Hugging Face, computes fp32 products in TF32 beside torch.compile.
- DeepSpeed: its bf16 and fp16 are formats of the weights beside fp32 ones, where the trials had
  autocast; its stages are its own ZeRO, not PyTorch's. Its section activation_checkpointing sets up what
  a model may call: it turns nothing on, so that knob is left unsaid.
- torchtitan: 0.2 reads the arguments of the loader as `--training.dataloader.*`; later versions count
  tokens instead of samples.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from autotune.config.arguments import ASSIGNMENT
from autotune.export.best import BestConfig
from autotune.export.formats.telling import (
    Said,
    arguments_of,
    as_json,
    nested,
    nodes,
    on_cpu,
    own_words,
    told,
    words_of,
)
from search_spaces import CATALOGUE
from search_spaces.knob import Fields, KnobValue, Words, written

NODE = "++autotune"
"""Where a knob of a workload goes: a node of its own, in whatever configuration the job has."""
_PLAIN = re.compile(r"[A-Za-z_][\w-]*")
_OTHER_TYPES = ("null", "true", "false", "nan", "inf", "infinity")
_STRATEGY = "strategy.init_args"
_CLASS = "lightning.pytorch.strategies.DDPStrategy"


def hydra(best: BestConfig) -> Said:
    """Return overrides, a line each.

    A script gets its own keys, as workload.flags have them (`key=`). A workload gets every knob that is
    not PyTorch's default as a value of the node `autotune`.
    """
    if best.script is not None:
        script = best.script
        words = own_words(script, lambda name: _override(name, script))
    else:
        words = {name: _under_node(name) for name in best.knobs}
    fields, unsaid = told(best, words)
    return Said("".join(f"{key}={value}\n" for key, value in fields.items()), unsaid)


def _override(name: str, script: Mapping[str, Any]) -> Fields | None:
    flag: str = script["flags"][name]
    if flag.startswith("-") or not flag.endswith(ASSIGNMENT):
        return None
    [word] = arguments_of(name, script)
    return {flag.removesuffix(ASSIGNMENT): word.removeprefix(flag)}


def _under_node(name: str) -> Words:
    usual = name in CATALOGUE and not CATALOGUE[name].always_said

    def say(value: KnobValue, _: object) -> Fields:
        if usual and value == CATALOGUE[name].default:
            return {}
        return {f"{NODE}.{name}": _quoted(value)}

    return Words(say)


def _quoted(value: KnobValue) -> str:
    """Return the value in Hydra's grammar, which reads it as the same type again."""
    if not isinstance(value, str):
        return written(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _OTHER_TYPES:
        return value
    # A backslash counts only before a quote.
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", value)
    return "'" + re.sub(r"(\\+)$", r"\1\1", escaped) + "'"


def hf_trainer(best: BestConfig) -> Said:
    """Return a file for HfArgumentParser.parse_json_file."""
    fields, unsaid = told(best, words_of("hf-trainer"))
    # Without that word it refuses bf16 where there is no device.
    where_measured = {"use_cpu": True} if on_cpu(best) else {}
    unsaid = {**unsaid, **_computed_in_tf32(best, compiles="torch_compile" in fields)}
    return Said(as_json(nested({**where_measured, **fields})), unsaid)


def _computed_in_tf32(best: BestConfig, *, compiles: bool) -> dict[str, Any]:
    """Return precision=fp32 where Accelerate turns TF32 on whatever it is told."""
    strict = compiles and best.knobs.get("precision") == "fp32"
    return {"precision": "fp32"} if strict and not on_cpu(best) else {}


def accelerate(best: BestConfig) -> Said:
    """Return a file for `accelerate launch --config_file`, on one machine."""
    fields, unsaid = told(best, words_of("accelerate"))
    content = nested({**_ranks(best), **fields})
    compiles = "dynamo_config.dynamo_backend" in fields
    unsaid = {**unsaid, **_computed_in_tf32(best, compiles=compiles)}
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


def lightning(best: BestConfig) -> Said:
    """Return YAML.

    A strategy with arguments has the form of LightningCLI, of which
    `lightning.pytorch.cli.instantiate_class((), arguments["strategy"])` makes one.
    """
    fields, unsaid = told(best, words_of("lightning"))
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


def deepspeed(best: BestConfig) -> Said:
    """Return a ds_config.json, for any number of ranks."""
    fields, unsaid = told(best, words_of("deepspeed"))
    return Said(as_json(nested(fields)), unsaid)


def torchtitan(best: BestConfig) -> Said:
    """Return `--section.name value`, an argument a line."""
    fields, unsaid = told(best, words_of("torchtitan"))
    return Said("".join(f"{_argument(*each)}\n" for each in fields.items()), unsaid)


def _argument(name: str, value: Any) -> str:
    if isinstance(value, bool):
        section, _, last = name.rpartition(".")
        return f"--{name}" if value else f"--{section}.no_{last}"
    return f"--{name} {written(value)}"
