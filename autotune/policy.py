"""Numbers that decide: fields of frozen policies, each with its unit, its meaning and its source.

Each package that decides has its policies in a module `policy`; what several of them read is in that of
the lowest. The tables at the end of docs/measurement-appendix.md are made from them
(tests/unit/test_policies.py).
"""

import dataclasses
from typing import Any


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
