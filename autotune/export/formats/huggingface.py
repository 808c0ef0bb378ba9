"""For Hugging Face: fields of TrainingArguments, and the configuration of `accelerate launch`.

Read with transformers 5.23 and Accelerate 1.15. Fields that older ones lack are said only where they are
needed: these refuse what they do not know. `accelerate launch` takes enable_cpu_affinity, which is
numa_binding, from the command line only.
"""

from typing import Any

import yaml

from autotune.export.best import BestConfig
from autotune.export.formats.telling import Said, as_json, nested, on_cpu, told, words_of


def hf_trainer(best: BestConfig) -> Said:
    """Return a file for HfArgumentParser.parse_json_file."""
    fields, unsaid = told(best, words_of("hf-trainer"))
    # Without that word it refuses bf16 where there is no device.
    where_measured = {"use_cpu": True} if on_cpu(best) else {}
    return Said(as_json(nested({**where_measured, **fields})), unsaid)


def accelerate(best: BestConfig) -> Said:
    """Return a file for `accelerate launch --config_file`, on one machine."""
    fields, unsaid = told(best, words_of("accelerate"))
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
