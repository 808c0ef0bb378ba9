"""Parts of all formats: which knobs are to be said, and which of them a format has no words for."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.config import arguments
from autotune.export.best import BestConfig
from search_spaces import CATALOGUE, defaults
from search_spaces.batch import BATCH_KNOBS
from search_spaces.constraints import asked_of
from search_spaces.knob import Fields, Knobs, Words

_NO_DEFAULT = object()
"""Equal to no value: what is always said."""


@dataclass(frozen=True)
class Said:
    """A recommendation in the terms of a consumer.

    Attributes:
        text: what it reads; ends with a newline unless empty.
        unsaid: knobs that it has no word for, with their values: those that it would not have by itself.
    """

    text: str
    unsaid: Mapping[str, Any]


def words_of(form: str) -> dict[str, Words]:
    """Return the words of a format for the knobs of the catalogue, as their entries have them."""
    return {name: knob.exports[form] for name, knob in CATALOGUE.items() if form in knob.exports}


def own_words(
    script: Mapping[str, Any], fields_of: Callable[[str], Fields | None]
) -> dict[str, Words]:
    """Return the words of a script for the knobs that it sets, as the trials had them.

    A knob that several settings make up has words if each of them has.

    Args:
        script: entry of best.yaml.
        fields_of: called with a name in `flags`; returns its fields, none where it cannot be said.
    """
    names = {name: [name] for name in script["flags"]} | script.get("set_by", {})
    return {knob: _of_all(several, fields_of) for knob, several in names.items()}


def arguments_of(name: str, script: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments by which the trials set a name in `flags`; none where no argument does.

    True and false are spelt as the script is given them today.
    """
    flags: Mapping[str, str] = script["flags"]
    now = arguments.valued(flags[name], script.get("today", {}).get(name))
    return arguments.changed(now, flags, {name: script["turned"][name]})


def _of_all(names: Iterable[str], fields_of: Callable[[str], Fields | None]) -> Words:
    def say(*_: Any) -> Fields | None:
        found = [fields_of(name) for name in names]
        return {k: v for one in found if one for k, v in one.items()} if all(found) else None

    return Words(say)


def told(best: BestConfig, words: Mapping[str, Words]) -> tuple[Fields, dict[str, Any]]:
    """Return fields of the consumer, and knobs for which it has none.

    Of a workload every knob is said for which there are words, also at its default: the consumer's own
    may be another. What has no words is left unsaid where it is not PyTorch's default. A script has its
    own values for all else: only what differs from the script as it was is said or left unsaid.
    """
    knobs = {**defaults(), **best.knobs}
    asked = {**asked_of(knobs, best.world_size), **_unknown_batch(best)}
    fields: Fields = {}
    unsaid: dict[str, Any] = {}
    for name in _to_tell(best):
        found = words[name].say(knobs[name], asked) if name in words else None
        if found or (found is not None and best.script is None):
            fields |= found
        elif best.script is not None or knobs[name] != _by_itself(name, words, asked):
            unsaid[name] = knobs[name]
    return fields, unsaid


def _unknown_batch(best: BestConfig) -> dict[str, None]:
    """Return no global batch where a script alone knows one of its factors."""
    return {} if {*BATCH_KNOBS} <= best.knobs.keys() else {"global_batch_size": None}


def _by_itself(name: str, words: Mapping[str, Words], knobs: Knobs) -> Any:
    """Return what a consumer does without being told."""
    if name in words and (known := words[name].by_itself):
        return known(knobs)
    if name not in CATALOGUE or CATALOGUE[name].always_said:
        return _NO_DEFAULT
    return CATALOGUE[name].default


def _to_tell(best: BestConfig) -> Iterator[str]:
    if best.script is None:
        return iter(best.knobs)
    changed = {*best.script["turned"], *best.script["changes"]}
    set_by: Mapping[str, Iterable[str]] = best.script.get("set_by", {})
    return (name for name in best.knobs if {name, *set_by.get(name, ())} & changed)


def on_cpu(best: BestConfig) -> bool:
    """Return whether it was measured where there was no CUDA device."""
    environment: Mapping[str, Any] = best.provenance.get("environment", {})
    return "devices" in environment and not environment["devices"]


def nodes(best: BestConfig) -> int:
    """Return on how many nodes it was measured."""
    return 1 + len(best.provenance.get("environment", {}).get("others", ()))


def nccl(best: BestConfig) -> tuple[int, ...] | None:
    """Return the version of NCCL that it was measured with; None where there was none."""
    told = str(best.provenance.get("environment", {}).get("nccl") or "")
    return tuple(int(part) for part in told.split(".") if part.isdigit()) or None


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{"a.b": 1}` as `{"a": {"b": 1}}`."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        *sections, last = name.split(".")
        inner = found
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return found


def as_json(content: Mapping[str, Any]) -> str:
    """Return a file of JSON."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
