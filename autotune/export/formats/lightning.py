"""For Lightning: keyword arguments of its Trainer. Read with Lightning 2.6."""

import yaml

from autotune.export.best import BestConfig
from autotune.export.formats.telling import Said, nested, nodes, on_cpu, told, words_of

_STRATEGY = "strategy.init_args"
_CLASS = "lightning.pytorch.strategies.DDPStrategy"


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
