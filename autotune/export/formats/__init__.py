"""A recommendation in the terms of those who use it: a pure function for each, from the configuration to
a text and to what that cannot say."""

from collections.abc import Callable, Iterator, Mapping

from autotune.errors import BadInput
from autotune.export.best import BestConfig
from autotune.export.formats.deepspeed import deepspeed
from autotune.export.formats.document import json, yaml
from autotune.export.formats.huggingface import accelerate, hf_trainer
from autotune.export.formats.hydra import hydra
from autotune.export.formats.lightning import lightning
from autotune.export.formats.process import ACTING, env
from autotune.export.formats.script import argv
from autotune.export.formats.telling import Said
from autotune.export.formats.torchtitan import torchtitan
from search_spaces import CATALOGUE
from search_spaces.knob import written

__all__ = ["FORMATS", "Said", "known", "remarks"]

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
    """The name of a format.

    Raises:
        BadInput: there is none of that name.
    """
    if name not in FORMATS:
        raise BadInput(f"there is no format {name}; there are {', '.join(FORMATS)}")
    return name


def remarks(name: str, said: Said) -> Iterator[str]:
    """What a format has left unsaid, a line for each knob."""
    for knob, value in said.unsaid.items():
        in_env = name != "env" and knob in ACTING and value != CATALOGUE[knob].default
        instead = "; --format env does" if in_env else ""
        yield f"{name} cannot say {knob}={written(value)}{instead}"
