"""Numbers that decide: fields of frozen policies, each with its unit, its meaning and its source.

Each package that decides has its policies in a module `policy`. The tables at the end of
docs/measurement-appendix.md are made from them (tests/unit/test_policies.py).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple


class Number(NamedTuple):
    """Number of a policy, as it is shown."""

    name: str
    value: Any
    unit: str
    meaning: str
    source: str


def measured(value: Any, unit: str, meaning: str, how: str) -> Any:
    """Return the field of a number that a measurement gave."""
    return _field(value, unit, meaning, f"measured: {how}")


def literature(value: Any, unit: str, meaning: str, where: str) -> Any:
    """Return the field of a number that a publication gives."""
    return _field(value, unit, meaning, f"literature: {where}")


def judgement(value: Any, unit: str, meaning: str, why: str = "") -> Any:
    """Return the field of a number that experience or a choice gives."""
    return _field(value, unit, meaning, f"judgement: {why}" if why else "judgement")


def _field(value: Any, unit: str, meaning: str, source: str) -> Any:
    told = {"unit": unit, "meaning": meaning, "source": source}
    return dataclasses.field(default=value, metadata=told)


def numbers(policy: Any) -> Iterator[Number]:
    """Yield the numbers of a policy."""
    for one in dataclasses.fields(policy):
        told = one.metadata
        value = getattr(policy, one.name)
        yield Number(one.name, value, told["unit"], told["meaning"], told["source"])


def table(policy: Any) -> str:
    """Return the numbers of a policy as a table of Markdown."""
    head = ["| number | value | unit | meaning | source |", "|---|---|---|---|---|"]
    rows = [
        f"| `{one.name}` | {_shown(one.value)} | {one.unit} | {one.meaning} | {one.source} |"
        for one in numbers(policy)
    ]
    return "\n".join([*head, *rows])


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
