"""For torchtitan: arguments of its command line, by the names of torchtitan 0.3.0.

0.2 reads those of the loader as `--training.dataloader.*`; later ones count tokens instead of samples.
"""

from typing import Any

from autotune.export.best import BestConfig
from autotune.export.formats.telling import Said, told, words_of
from search_spaces.knob import written


def torchtitan(best: BestConfig) -> Said:
    """Return `--section.name value`, an argument a line."""
    fields, unsaid = told(best, words_of("torchtitan"))
    return Said("".join(f"{_argument(*each)}\n" for each in fields.items()), unsaid)


def _argument(name: str, value: Any) -> str:
    if isinstance(value, bool):
        section, _, last = name.rpartition(".")
        return f"--{name}" if value else f"--{section}.no_{last}"
    return f"--{name} {written(value)}"
