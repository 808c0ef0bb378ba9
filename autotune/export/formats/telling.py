"""What the formats have in common: which knobs are to be said, and what is left of them when a format
has said what it can."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.export.best import BestConfig
from search_spaces import CATALOGUE, defaults

Knobs = Mapping[str, Any]
Fields = dict[str, Any]
Rule = Callable[[Any, Knobs], Fields | None]
"""From the value of a knob, and all knobs, to fields of the consumer; None if it has none for that. No
fields at all: the consumer does so without being told, unless a script told it something else before."""

SHARDED = ("fsdp", "fsdp_keep", "hsdp")

_NOBODYS = object()
"""What is no default of anybody's."""
_OF_THE_JOB = {"micro_batch": _NOBODYS, "accumulation_steps": _NOBODYS}
"""No library has a default for these that a job could rely on."""


@dataclass(frozen=True)
class Said:
    """A recommendation in the terms of a consumer.

    Attributes:
        text: what it reads; ends with a newline unless empty.
        unsaid: knobs that it has no word for, with their values: those that it would not have by itself.
    """

    text: str
    unsaid: Mapping[str, Any]


def told(
    best: BestConfig, rules: Mapping[str, Rule], by_itself: Knobs | None = None
) -> tuple[Fields, dict[str, Any]]:
    """Fields of the consumer, and knobs for which it has none.

    Of a workload every knob is said for which there is a rule, also at its default: the consumer's own
    may be another. What has no rule is left unsaid where it is not PyTorch's default. Of a script, which
    has its own values for all else, only what differs from the script as it was is said or left unsaid.

    Args:
        rules: by knob.
        by_itself: what the consumer does without being told, where that is not PyTorch's default.
    """
    knobs = {**defaults(), **best.knobs}
    usual = {**defaults(), **_OF_THE_JOB, **(by_itself or {})}
    fields: Fields = {}
    unsaid: dict[str, Any] = {}
    for name in _to_tell(best):
        found = rules[name](knobs[name], knobs) if name in rules else None
        if found or (found is not None and best.script is None):
            fields |= found
        elif best.script is not None or knobs[name] != usual.get(name, _NOBODYS):
            unsaid[name] = knobs[name]
    return fields, unsaid


def _to_tell(best: BestConfig) -> Iterator[str]:
    if best.script is None:
        return iter(best.knobs)
    changed = {*best.script["turned"], *best.script["changes"]}
    return (name for name in best.knobs if name in changed)


def field(name: str) -> Rule:
    """A field that takes the knob's value as it is."""
    return lambda value, _: {name: value}


def one_of(fields: Mapping[Any, Fields]) -> Rule:
    """Fields for each value that the consumer knows."""
    return lambda value, _: fields.get(value)


def where(condition: Callable[[Knobs], bool], rule: Rule) -> Rule:
    """A rule that holds beside some values of the other knobs only."""
    return lambda value, knobs: rule(value, knobs) if condition(knobs) else None


def has_loader_workers(knobs: Knobs) -> bool:
    """Whether a DataLoader takes what is for its workers."""
    return bool(knobs["loader_workers"])


def in_ddp(knobs: Knobs) -> bool:
    """Whether the model is in DistributedDataParallel."""
    return knobs["parallelism"] in ("ddp", "zero1")


def bucket(name: str, *, whole: bool) -> Rule:
    """bucket_cap_mb. PyTorch's own 25 has a smaller first bucket, which a 25 that is said has not.

    Args:
        name: of the consumer's field.
        whole: it takes whole numbers only.
    """

    def rule(value: Any, knobs: Knobs) -> Fields | None:
        if not in_ddp(knobs) or (whole and value != int(value)):
            return None
        if value == CATALOGUE["bucket_cap_mb"].default:
            return {}
        return {name: int(value) if whole else value}

    return rule


def compiled(modes: Callable[[str, Knobs], Fields | None]) -> Rule:
    """compile: nothing to say of `none`."""
    return lambda value, knobs: {} if value == "none" else modes(value, knobs)


def of_accelerate(best: BestConfig) -> Knobs:
    """What Accelerate does by itself: FSDP sums gradients in the format that it computes in."""
    low = best.knobs.get("precision") in ("bf16", "fp16")
    sharded = best.knobs.get("parallelism") in SHARDED
    return {"fsdp_reduce_dtype": best.knobs["precision"]} if low and sharded else {}


def on_cpu(best: BestConfig) -> bool:
    """Whether it was measured where there was no CUDA device."""
    environment: Mapping[str, Any] = best.provenance.get("environment", {})
    return "devices" in environment and not environment["devices"]


def nodes(best: BestConfig) -> int:
    """On how many it was measured."""
    return 1 + len(best.provenance.get("environment", {}).get("others", ()))


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        *sections, last = name.split(".")
        inner = found
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return found


def as_json(content: Mapping[str, Any]) -> str:
    """A file of JSON."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
