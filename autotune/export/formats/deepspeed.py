"""For DeepSpeed: ds_config.json. Read with DeepSpeed 0.19.

Its bf16 and fp16 are formats of the weights beside fp32 ones, where the trials had autocast; its stages
are its own ZeRO, not PyTorch's. Its section activation_checkpointing sets up what a model may call: it
turns nothing on, so that knob is left unsaid.
"""

from autotune.export.best import BestConfig
from autotune.export.formats.telling import Said, as_json, nested, told, words_of


def deepspeed(best: BestConfig) -> Said:
    """Return a ds_config.json, for any number of ranks."""
    fields, unsaid = told(best, words_of("deepspeed"))
    return Said(as_json(nested(fields)), unsaid)
