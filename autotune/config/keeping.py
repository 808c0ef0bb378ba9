"""Scripts and commands that keep their global batch by themselves.

They are given either the micro-batch or the accumulation, and derive the other.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from autotune.config import mistakes
from search_spaces.constraints import global_batch

COUNTED = ("micro_batch", "accumulation_steps")
"""Knobs that make up the samples of a step."""


def of_derived(
    taken: Collection[str],
    space: Mapping[str, Sequence[Any]],
    baseline: Mapping[str, Any],
    *,
    fixed_batch: bool,
) -> mistakes.Problems:
    """Return contradictions to `keeps_global_batch`.

    Args:
        taken: knobs that the script or command is given.
        space: values to try.
        baseline: as the study gives it.
        fixed_batch: whether only configurations with the baseline's global batch compete.
    """
    field = ("workload", "keeps_global_batch")
    mapped = [name for name in COUNTED if name in taken]
    if not fixed_batch:
        return {
            field: "does not go with `global_batch: free`: such a script holds it; take one out"
        }
    if len(mapped) != 1:
        count = "none" if not mapped else "both"
        return {
            field: "is for a script that is told one of micro_batch and accumulation_steps and derives "
            f"the other; {count} of them is mapped"
        }
    derived = next(name for name in COUNTED if name not in mapped)
    problems = _of_values(space, derived, mapped[0])
    if derived not in baseline:
        problems[field] = f"then say under baseline what {derived} is today"
    return problems


def _of_values(space: Mapping[str, Sequence[Any]], derived: str, mapped: str) -> mistakes.Problems:
    """Return mistakes in the values to try, where the script derives one knob from the other."""
    problems: mistakes.Problems = {}
    if derived in space:
        problems["search_space", derived] = (
            f"is derived from {mapped} by the script (keeps_global_batch); take it out"
        )
    if mistakes.LARGEST in space.get("micro_batch", ()):
        place = list(space["micro_batch"]).index(mistakes.LARGEST)
        problems["search_space", "micro_batch", place] = (
            "is not looked for in a script that keeps its global batch; give numbers"
        )
    return problems


def split_otherwise(baseline: Mapping[str, Any], name: str, value: Any) -> dict[str, Any] | None:
    """Return the baseline with another micro-batch or accumulation, and as many samples per step.

    The result is None where no configuration has so many.

    Args:
        baseline: a value for every knob.
        name: micro_batch or accumulation_steps.
        value: new value of the knob.
    """
    other = next(knob for knob in COUNTED if knob != name)
    steps, rest = divmod(global_batch(baseline, 1), int(value))
    return None if rest or not steps else {**baseline, name: value, other: steps}
