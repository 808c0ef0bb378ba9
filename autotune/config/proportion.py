"""Knobs that several settings of a script make up, all changed by the same factor."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from autotune.config import mistakes
from autotune.config.keeping import COUNTED

Parts = Mapping[str, Mapping[str, int]]
"""Knob -> its settings, each with its present value."""


def problems(
    several: Parts, elsewhere: Collection[str], of_flag: Callable[[str], str | None]
) -> mistakes.Problems:
    """Return the mistakes in `in_proportion` by itself.

    Args:
        several: the field.
        elsewhere: knobs in other fields of the workload.
        of_flag: returns the mistake in a setting.
    """
    problems: mistakes.Problems = {}
    for knob, parts in several.items():
        path = ("workload", "in_proportion", knob)
        if knob not in COUNTED:
            problems[path] = f"must be {' or '.join(COUNTED)}"
        elif knob in elsewhere:
            problems[path] = "is among flags or over_all_ranks as well; leave it here alone"
        elif not parts:
            problems[path] = "has no settings; give each with its value of today"
        for setting in parts:
            if wrong := of_flag(setting):
                problems[(*path, setting)] = wrong
    return problems


def of_baseline(several: Parts, baseline: Mapping[str, Any]) -> mistakes.Problems:
    """Return knobs whose present value is not given."""
    return {
        ("workload", "in_proportion", knob): f"then say under baseline what {knob} is today"
        for knob in several
        if knob not in baseline
    }


def turned(
    several: Parts, baseline: Mapping[str, Any], differing: Mapping[str, Any]
) -> dict[str, int]:
    """Return the value of every setting that makes up a knob which differs from the baseline.

    Args:
        several: knobs that several settings make up.
        baseline: a value for every knob.
        differing: knobs that have another value.
    """
    return {
        setting: today * int(differing[knob]) // int(baseline[knob])
        for knob, parts in several.items()
        if knob in differing
        for setting, today in parts.items()
    }


def rules(several: Parts, baseline: Mapping[str, Any]) -> Iterator[str]:
    """Yield constraints under which every setting is a whole number."""
    for knob, parts in several.items():
        size = granule(int(baseline[knob]), parts.values())
        if size > 1:
            yield f"{knob} % {size} == 0"


def granule(whole: int, parts: Iterable[int]) -> int:
    """Return the number of which a knob must be a multiple for whole numbers in all its settings.

    Args:
        whole: the knob's present value.
        parts: present values of its settings.
    """
    return math.lcm(*(whole // math.gcd(whole, part) for part in parts))
