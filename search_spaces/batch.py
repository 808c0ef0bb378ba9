"""Batch of an optimizer step: its samples, and their split into micro-batches and accumulation."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from search_spaces.knob import Knobs

MICRO_BATCH, ACCUMULATION = "micro_batch", "accumulation_steps"
BATCH_KNOBS = (MICRO_BATCH, ACCUMULATION)
"""Knobs that make up the samples of a step."""
Parts = Mapping[str, Mapping[str, int]]
"""Knob of the batch -> the settings that make it up, each with its present value."""


def global_batch_size(knobs: Knobs, world_size: int) -> int:
    """Return the samples over all ranks per optimizer step."""
    return int(knobs[MICRO_BATCH]) * int(knobs[ACCUMULATION]) * world_size


def refused_global_batch(wanted: int, world_size: int) -> str:
    """Return why so many ranks cannot train this global batch, with advice; empty if they can."""
    if wanted < world_size:
        return (
            f"a global batch of {wanted} leaves {world_size - wanted} of {world_size} ranks without "
            f"a sample; use at least {world_size} (and far more for throughput), or fewer workers"
        )
    if wanted % world_size:
        below = wanted - wanted % world_size
        return (
            f"a global batch of {wanted} cannot be split evenly over {world_size} ranks; "
            f"use {below} or {below + world_size}"
        )
    return ""


def other_batch_knob(name: str) -> str:
    """Return the accumulation for the micro-batch, and the reverse."""
    return MICRO_BATCH if name == ACCUMULATION else ACCUMULATION


def split_otherwise(baseline: Knobs, name: str, value: Any) -> dict[str, Any] | None:
    """Return the baseline with another micro-batch or accumulation, and as many samples per step.

    The result is None where no configuration has so many.

    Args:
        baseline: a value for every knob.
        name: micro_batch or accumulation_steps.
    """
    steps, rest = divmod(global_batch_size(baseline, 1), int(value))
    if rest or not steps:
        return None
    return {**baseline, name: value, other_batch_knob(name): steps}


def is_other_split(knobs: Knobs, baseline: Knobs) -> bool:
    """Return whether a configuration splits the baseline's global batch in another way."""
    other = knobs[ACCUMULATION] != baseline[ACCUMULATION]
    return other and global_batch_size(knobs, 1) == global_batch_size(baseline, 1)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number above 0, the largest first."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)}, reverse=True)


def in_proportion(
    several: Parts, baseline: Mapping[str, Any], differing: Mapping[str, Any]
) -> dict[str, int]:
    """Return the value of every setting that makes up a knob which differs from the baseline.

    Args:
        several: knobs that several settings make up.
        baseline: a value for every knob.
        differing: knobs that have another value.
    """
    return {
        setting: present * int(differing[knob]) // int(baseline[knob])
        for knob, parts in several.items()
        if knob in differing
        for setting, present in parts.items()
    }


def granule(whole: int, parts: Iterable[int]) -> int:
    """Return the number of which a knob must be a multiple for whole numbers in all its settings.

    Args:
        whole: the knob's present value.
        parts: present values of its settings.
    """
    return math.lcm(*(whole // math.gcd(whole, part) for part in parts))
