"""Effect of every knob on the device: its values against the default, interleaved, on a workload."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from typing import Any

from knobs import CASES

from autotune.measurement.estimate import paired_ratio
from gpu.bench import Bench, Figures, Run, in_turn, rates
from search_spaces import CATALOGUE, infeasible
from search_spaces.knob import Choice, written

_AT_A_TIME = 6
"""Values between two measurements of the default: so many share them, and so many are lost at most."""
_FIRST = (
    "precision",
    "compile",
    "attention",
    "optimizer_kernels",
    "qkv_streams",
    "stream_prefetch",
    "pin_memory",
    "expandable_segments",
    "log_interval",
    "channels_last",
    "parallelism",
)
"""Knobs that are likely to say most; the others follow in the order of the catalogue."""
_OF_TRANSFORMER = _FIRST[:9]
_ELSEWHERE = {"mlp": "gpt"}
"""Small workloads of the CPU -> where their knobs are tried on a device."""
_SCALED = ("micro_batch", "precision")
"""Set by the workload here, whatever stood beside the knob on the CPU."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Values that are compared with one default.

    Attributes:
        work: name of the workload.
        beside: what both have besides the configuration of the workload.
        values: (knob, value).
    """

    work: str
    beside: dict[str, Any]
    values: tuple[tuple[str, Any], ...]


def groups() -> list[Group]:
    """All of them, most valuable first; each small enough for a part of its own."""
    found: dict[str, Group] = {}
    names = sorted(CATALOGUE, key=lambda n: _FIRST.index(n) if n in _FIRST else len(_FIRST))
    for work, name in [
        *((_ELSEWHERE.get(CASES[n].workload, CASES[n].workload), n) for n in names),
        *(("transformer", n) for n in _OF_TRANSFORMER),
    ]:
        beside = {k: v for k, v in CASES[name].beside.items() if k not in _SCALED}
        if name == "precision":
            beside["precision"] = CATALOGUE[name].default
        place = json.dumps([work, beside])
        before = found.get(place, Group(work, beside, ()))
        added = tuple((name, value) for value in _values(name))
        found[place] = dataclasses.replace(before, values=before.values + added)
    return [part for group in found.values() for part in _cut(group)]


def _values(name: str) -> Iterator[Any]:
    """Return the values of a knob: the one that was tried on the CPU first, then all other choices."""
    case, knob = CASES[name].value, CATALOGUE[name]
    yield case
    if isinstance(knob.domain, Choice) and not isinstance(knob.default, bool):
        yield from (v for v in knob.domain.values if v not in (case, knob.default))


def _cut(group: Group) -> Iterator[Group]:
    for start in range(0, len(group.values), _AT_A_TIME):
        values = group.values[start : start + _AT_A_TIME]
        yield dataclasses.replace(group, values=values)


def title(group: Group) -> str:
    """Name of the part: unique, and the same in every session."""
    beside = "".join(f", {name}={written(value)}" for name, value in group.beside.items())
    shown = ", ".join(f"{name}={written(value)}" for name, value in group.values)
    return f"knobs on {group.work}{beside}: {shown}"


RANKS = (0, 1, 2)


def rank(group: Group) -> int:
    """Return the place of a comparison in the order of the measurements.

    It is 0 for what is likely to say most, on the GPT; 1 for the same on other workloads, and for
    what images need; 2 for the rest.
    """
    if group.work != "gpt":
        return 1
    return 0 if any(name in _FIRST for name, _ in group.values) else 2


def measure(bench: Bench, group: Group) -> Figures:
    """Each value and the default twice, round by round."""
    values = group.values[: bench.scale.values]
    with bench.trials() as trials:
        base = trials.knobs(group.work, **group.beside)
        left_out, chosen = {}, {"default": base, "default again": base}
        for name, value in values:
            knobs = {**base, name: value}
            if value == base[name]:
                continue
            if problems := infeasible(knobs, trials.facts):
                left_out[_shown(name, value)] = problems[0]
            else:
                chosen[_shown(name, value)] = knobs
        if len(chosen) == 2:
            return {"left_out": left_out, "gains": {}}

        def run(knobs: dict[str, Any]) -> Run:
            return trials.timed(group.work, knobs)

        makers = {name: (lambda k=knobs: run(k)) for name, knobs in chosen.items()}
        found = in_turn(bench.scale.rounds, bench.left, makers)
    return {
        **found,
        "left_out": left_out,
        "beside": {**bench.scale.works[group.work].knobs, **group.beside},
        "gains": {
            name: gain(found["runs"][name], found["runs"]["default"])
            for name in chosen
            if name != "default"
        },
    }


def gain(runs: list[Figures], against: list[Figures]) -> Figures | None:
    """Ratio of rates over the rounds in which both were measured; None for fewer than two."""
    pairs = [(a, b) for a, b in zip(rates(runs), rates(against), strict=False) if a and b]
    if len(pairs) < 2:
        return None
    return dataclasses.asdict(paired_ratio(*zip(*pairs, strict=True)))


def effects(parts: dict[str, Figures]) -> dict[str, Figures]:
    """Per knob what docs/knobs.md shows of it, as autotune.views.catalogue reads it.

    Args:
        parts: figures of parts by title.
    """
    found: dict[str, Figures] = {}
    for group, (name, value) in itertools.chain.from_iterable(
        ((g, pair) for pair in g.values) for g in groups()
    ):
        figures = parts.get(title(group), {})
        measured = figures.get("gains", {}).get(_shown(name, value))
        if measured and name not in found:
            found[name] = {
                "value": value,
                "workload": group.work,
                "beside": {k: v for k, v in figures["beside"].items() if k != name},
                "gain": measured,
                "equals": figures["gains"]["default again"],
            }
    return {name: found[name] for name in CATALOGUE if name in found}


def _shown(name: str, value: Any) -> str:
    return f"{name}={written(value)}"
