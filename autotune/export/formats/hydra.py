"""Overrides for Hydra, one a line."""

import re
from collections.abc import Mapping

from autotune.config.arguments import ASSIGNMENT
from autotune.export.best import BestConfig
from autotune.export.formats.telling import Said, told
from search_spaces import CATALOGUE
from search_spaces.knob import KnobValue, written
from search_spaces.words import Fields, Words

NODE = "++autotune"
"""Where a knob of a workload goes: a node of its own, in whatever configuration the job has."""
_PLAIN = re.compile(r"[A-Za-z_][\w-]*")
_OTHER_TYPES = ("null", "true", "false", "nan", "inf", "infinity")


def hydra(best: BestConfig) -> Said:
    """Return overrides, a line each.

    A script gets its own keys, as workload.flags have them (`key=`). A workload gets every knob that is
    not PyTorch's default as a value of the node `autotune`.
    """
    if best.script is not None:
        words = _keys(best.script["flags"], best.script["turned"])
    else:
        words = {name: _under_node(name) for name in best.knobs}
    fields, unsaid = told(best, words)
    return Said("".join(f"{key}={value}\n" for key, value in fields.items()), unsaid)


def _keys(flags: Mapping[str, str], turned: Mapping[str, KnobValue]) -> dict[str, Words]:
    keys = {name: flag for name, flag in flags.items() if flag.endswith(ASSIGNMENT)}
    own = {name: key for name, key in keys.items() if not key.startswith("-")}
    return {name: _as_tried(name, key, turned) for name, key in own.items()}


def _as_tried(name: str, flag: str, turned: Mapping[str, KnobValue]) -> Words:
    """Return the words that the trials had."""
    key = flag.removesuffix(ASSIGNMENT)
    return Words(lambda value, _: {key: written(turned.get(name, value))})


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
