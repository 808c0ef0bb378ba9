"""Settings of a script that hang together: batch sizes that it derives, knobs that several make up.

A script or command that keeps its global batch by itself is given either the micro-batch or the
accumulation, and derives the other. Several settings that make up a knob change by the same factor.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from autotune.config import mistakes
from search_spaces.batch import BATCH_KNOBS, Parts, granule, other_batch_knob


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
    mapped = [name for name in BATCH_KNOBS if name in taken]
    if not fixed_batch:
        return {
            field: "does not go with `global_batch_size: free`: such a script holds it; take one out"
        }
    if len(mapped) != 1:
        count = "none" if not mapped else "both"
        return {
            field: "is for a script that is told one of micro_batch and accumulation_steps and derives "
            f"the other; {count} of them is mapped"
        }
    derived = other_batch_knob(mapped[0])
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


def proportion_problems(
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
        if knob not in BATCH_KNOBS:
            problems[path] = f"must be {' or '.join(BATCH_KNOBS)}"
        elif knob in elsewhere:
            problems[path] = "is among flags or global_flags as well; leave it here alone"
        elif not parts:
            problems[path] = "has no settings; give each with its present value"
        for setting in parts:
            if wrong := of_flag(setting):
                problems[(*path, setting)] = wrong
    return problems


def proportion_of_baseline(several: Parts, baseline: Mapping[str, Any]) -> mistakes.Problems:
    """Return knobs whose present value is not given."""
    return {
        ("workload", "in_proportion", knob): f"then say under baseline what {knob} is today"
        for knob in several
        if knob not in baseline
    }


def proportion_rules(several: Parts, baseline: Mapping[str, Any]) -> Iterator[str]:
    """Yield constraints under which every setting is a whole number."""
    for knob, parts in several.items():
        size = granule(int(baseline[knob]), parts.values())
        if size > 1:
            yield f"{knob} % {size} == 0"
