"""Formats of a recommendation: a pure function for each, to a text and the knobs that it leaves unsaid.

The words of each format for a knob are in the knob's entry (search_spaces.knobs).
"""

from collections.abc import Callable, Iterator, Mapping

from autotune.errors import BadInput
from autotune.export import writing
from autotune.export.best import BestConfig
from autotune.export.formats.command_line import ACTING, argv, env
from autotune.export.formats.frameworks import (
    accelerate,
    deepspeed,
    hf_trainer,
    hydra,
    lightning,
    torchtitan,
)
from autotune.export.formats.telling import Said, as_json
from search_spaces import CATALOGUE
from search_spaces.knob import written

__all__ = ["FORMATS", "Said", "known", "remarks"]


def yaml(best: BestConfig) -> Said:
    """Return what `autotune.load` and `autotune run` read."""
    return Said(writing.as_text(writing.document_of(best)), {})


def json(best: BestConfig) -> Said:
    """Return the same content for programs."""
    content = writing.document_of(best)
    content.pop("own", None)
    return Said(as_json(content), {})


FORMATS: Mapping[str, Callable[[BestConfig], Said]] = {
    "yaml": yaml,
    "json": json,
    "env": env,
    "argv": argv,
    "hf-trainer": hf_trainer,
    "accelerate": accelerate,
    "lightning": lightning,
    "deepspeed": deepspeed,
    "hydra": hydra,
    "torchtitan": torchtitan,
}


def known(name: str) -> str:
    """Return the name of a format.

    Raises:
        BadInput: there is none of that name.
    """
    if name not in FORMATS:
        raise BadInput(f"there is no format {name}; there are {', '.join(FORMATS)}")
    return name


def remarks(name: str, said: Said) -> Iterator[str]:
    """Yield a line for each knob that a format has left unsaid."""
    for knob, value in said.unsaid.items():
        in_env = name != "env" and knob in ACTING and value != CATALOGUE[knob].default
        instead = "; --format env does" if in_env else ""
        yield f"{name} cannot say {knob}={written(value)}{instead}"
