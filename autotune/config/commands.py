"""Study over a command without a script of torch: placeholders of its knobs, and its throughput."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from autotune.config import mistakes
from autotune.config.keeping import of_derived
from autotune.config.sections import ThroughputSpec, WorkloadSpec
from search_spaces import CATALOGUE
from search_spaces.knob import written

FOLDER = "folder"
"""Placeholder that is no knob: a folder of the trial's own."""
_BRACES = re.compile(r"(\{\{)|(\}\})|\{([^{}]*)\}|([{}])")
_OF_SCRIPTS = (
    *("args", "words", "over_all_ranks", "in_proportion", "samples"),
    *("launch", "python_options"),
)


def placeholders(text: str) -> list[str]:
    """Return the names in braces, in their order."""
    return [found[3] for found in _BRACES.finditer(text) if found[3] is not None]


def filled(text: str, values: Mapping[str, Any]) -> str:
    """Return the text with a value for each placeholder; `{{` and `}}` are braces."""

    def of(found: re.Match[str]) -> str:
        return written(values[found[3]]) if found[3] is not None else found[0][0]

    return _BRACES.sub(of, text)


def argv(command: Sequence[str], knobs: Mapping[str, Any], folder: str) -> tuple[str, ...]:
    """Return the command with a configuration.

    Args:
        command: as the study gives it.
        knobs: a value for every knob.
        folder: for what it writes.
    """
    return tuple(filled(word, {**knobs, FOLDER: folder}) for word in command)


# Validation


def of_workload(workload: WorkloadSpec) -> mistakes.Problems:
    """Return the mistakes in the section by itself."""
    problems: mistakes.Problems = {
        ("workload", field): "is for scripts only; take it out"
        for field in _OF_SCRIPTS
        if getattr(workload, field)
    }
    for place, word in enumerate(workload.command or ()):
        if any(found[4] for found in _BRACES.finditer(word)):
            text = "has a brace alone; placeholders are {knob}, and braces are {{ and }}"
            problems["workload", "command", place] = text
    return problems | _of_throughput(workload.throughput)


def _of_throughput(throughput: ThroughputSpec | None) -> mistakes.Problems:
    if throughput is None:
        return {}
    path = ("workload", "throughput")
    if (throughput.json_lines is None) == (throughput.pattern is None):
        return {path: "must be either json_lines or pattern"}
    if throughput.pattern is not None and (problem := _of_pattern(throughput.pattern)):
        return {(*path, "pattern"): problem}
    file = throughput.json_lines
    if file is not None and (
        set(placeholders(file)) != {FOLDER} or any(found[4] for found in _BRACES.finditer(file))
    ):
        shown = mistakes.in_yaml(file)
        return {
            (
                *path,
                "json_lines",
            ): f"must be a file in {{folder}}, which each trial has anew; got {shown}"
        }
    return {}


def _of_pattern(pattern: str) -> str | None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        return f"is no regular expression: {error}"
    return None if groups == 1 else f"must have one group, the number; it has {groups}"


def of_knobs(
    workload: WorkloadSpec,
    space: Mapping[str, Sequence[Any]],
    own: Collection[str],
    baseline: Mapping[str, Any],
    *,
    fields: Collection[str],
    fixed_batch: bool,
) -> mistakes.Problems:
    """Return mistakes: placeholders without a value, knobs without effect, unknown present values.

    Args:
        workload: of a command, correct by itself.
        space: values to try, those of the study's own knobs as well.
        own: names of the study's own knobs, whose present values are known.
        baseline: as the study gives it.
        fields: names of knobs that are fields of files.
        fixed_batch: whether only configurations with the baseline's global batch compete.
    """
    command = workload.command or []
    problems: mistakes.Problems = {}
    for place, word in enumerate(command):
        for name in placeholders(word):
            if problem := _of_placeholder(name, own, baseline):
                problems["workload", "command", place] = problem
    taken = {name for word in command for name in placeholders(word)} | {*fields}
    for name in space:
        if name not in taken:
            section = "knobs" if name in own else "search_space"
            text = f"nothing in workload.command takes it; write {{{name}}} there"
            problems[section, name] = text
    if workload.keeps_global_batch:
        of_batch = of_derived(taken, space, baseline, fixed_batch=fixed_batch)
    else:
        of_batch = dict(_of_batch(space, taken, baseline, fixed_batch=fixed_batch))
    return {**of_batch, **problems}


def _of_placeholder(name: str, own: Collection[str], baseline: Mapping[str, Any]) -> str | None:
    if name == FOLDER or name in own:
        return None
    if name not in CATALOGUE:
        hint = mistakes.did_you_mean(name, [FOLDER, *own, *CATALOGUE])
        return f"no such knob: {mistakes.in_yaml(name)}{hint}; {{folder}} and knobs stand in braces"
    if name not in baseline:
        return f"takes {name}, whose present value is not known; say it under baseline"
    return None


def _of_batch(
    space: Mapping[str, Sequence[Any]],
    taken: Collection[str],
    baseline: Mapping[str, Any],
    *,
    fixed_batch: bool,
) -> Iterator[tuple[mistakes.FieldPath, str]]:
    sizes = space.get("micro_batch", ())
    if mistakes.LARGEST in sizes:
        place = list(sizes).index(mistakes.LARGEST)
        text = "is not looked for in a command, which fills its devices by itself; give numbers"
        yield ("search_space", "micro_batch", place), text
    several = {*sizes, baseline["micro_batch"]} if "micro_batch" in baseline else {*sizes}
    if fixed_batch and sizes and len(several) > 1 and "accumulation_steps" not in taken:
        yield (
            ("objective", "global_batch"),
            "stays only if the command accumulates more where micro_batch is less: have "
            "workload.command take {accumulation_steps}, say `keeps_global_batch: true` under workload "
            "if it does that by itself, or say `global_batch: free`",
        )
