"""Study over a training script: knobs that it sets, knobs from outside, and present values."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from autotune.config import (
    arguments,
    commands,
    fields,
    mistakes,
    option_words,
    proportion,
    python_options,
)
from autotune.config.keeping import COUNTED, derived, of_derived
from autotune.config.sections import ResourcesSpec, WorkloadSpec
from autotune.worker.protocol import PYTHON, TORCHRUN
from autotune.worker.survey_result import SETTINGS
from search_spaces import CATALOGUE
from search_spaces.catalogue import not_from_outside
from search_spaces.constraints import global_batch
from search_spaces.knob import written

_KINDS = ("name", "script", "module", "command")
_FLAG = re.compile(r"-{1,2}[^\s=]+=?|/-{1,2}[^\s=]+|[^\s=$-][^\s=]*=|\$[A-Za-z_][A-Za-z0-9_]*")
_FILE = re.compile(rf"[^-$].*({'|'.join(map(re.escape, SETTINGS))})", re.IGNORECASE)
_FIELD = re.compile(r"[^\s.]+(\.[^\s.]+)*")


def of_workload(workload: WorkloadSpec) -> mistakes.Problems:
    """Return the mistakes in the section by itself."""
    kinds = [kind for kind in _KINDS if getattr(workload, kind) is not None]
    if not kinds:
        return {("workload", "name"): f"is missing; give one of {', '.join(_KINDS)}"}
    if len(kinds) > 1:
        return {("workload", kinds[1]): f"does not go with {kinds[0]}; give one of them"}
    if workload.command is not None:
        return commands.of_workload(workload) | _of_flags(workload)
    problems: mistakes.Problems = {}
    if workload.throughput is not None:
        problems["workload", "throughput"] = "is for commands only; take it out"
    if workload.name is not None:
        return problems | _of_factory(workload)
    problems |= _of_launch(workload)
    if isinstance(workload.args, dict) and workload.args:
        text = "must be a list, an argument of the script each, as they are today"
        problems["workload", "args"] = text
    for place, argument in enumerate(workload.args if isinstance(workload.args, list) else []):
        if not isinstance(argument, str):
            shown = mistakes.in_yaml(argument)
            text = f"must be a text as the script is given it, got {shown}; put it in quotes"
            problems["workload", "args", place] = text
    return problems | _of_flags(workload)


def _of_flags(workload: WorkloadSpec) -> mistakes.Problems:
    problems = proportion.of_workload(workload, of_flag) | option_words.of_workload(workload)
    for knob, flag in workload.flags.items():
        wrong = of_flag(flag) if workload.command is None else of_field(flag)
        if problem := mistakes.unknown_knob(knob) or wrong:
            problems["workload", "flags", knob] = problem
    for place, knob in enumerate(() if workload.command else workload.over_all_ranks):
        if knob not in workload.flags or knob not in COUNTED:
            shown = mistakes.in_yaml(knob)
            problems["workload", "over_all_ranks", place] = (
                f"must be {' or '.join(COUNTED)}, if workload.flags have it; got {shown}"
            )
    return problems


def _of_launch(workload: WorkloadSpec) -> mistakes.Problems:
    """Return the mistakes in the options of the interpreter."""
    if not workload.python_options:
        return {}
    if workload.launch != PYTHON:
        text = (
            "is for `launch: python`: other launchers start interpreters with options of their own"
        )
        return {("workload", "python_options"): text}
    if problem := python_options.refused(workload.python_options):
        return {("workload", "python_options"): problem}
    return {}


def launch_of(workload: WorkloadSpec, workers: int | None) -> str:
    """Return the launcher of a script's ranks.

    Args:
        workload: of a script.
        workers: ranks; None: as many as the machine has devices.
    """
    return workload.launch or (PYTHON if workers == 1 else TORCHRUN)


def options_of(workload: WorkloadSpec, workers: int | None) -> list[str]:
    """Return the options of the interpreter that runs the user's code; `workers`: ranks, if known."""
    if workload.command is not None or launch_of(workload, workers) == PYTHON:
        return workload.python_options
    return list(python_options.OF_LAUNCHERS)


def of_resources(
    workload: WorkloadSpec, resources: ResourcesSpec, launcher: str
) -> mistakes.Problems:
    """Return conflicts between resources and the launcher of ranks.

    Args:
        workload: correct by itself.
        resources: of a trial.
        launcher: of the study.
    """
    problems: mistakes.Problems = {}
    workers, nodes = resources.known_workers, resources.nodes or 1
    if workload.launch == PYTHON and workers not in (None, 1):
        problems["resources", "workers"] = (
            f"is {workers}, and `launch: python` starts one process; give 1, or the launcher that "
            "starts them under workload.launch"
        )
    elif nodes > 1 and launcher == "local":
        problems["resources", "nodes"] = (
            f"is {nodes}, and `launcher: local` has this machine alone; say `launcher: ray`"
        )
    elif workers and workers % nodes:
        problems["resources", "nodes"] = (
            f"is {nodes}, which {workers} workers cannot be spread over"
        )
    return problems


def _of_factory(workload: WorkloadSpec) -> mistakes.Problems:
    problems: mistakes.Problems = {}
    if isinstance(workload.args, list):
        problems["workload", "args"] = "must be a mapping, got a list; lists are for scripts"
    for field in (
        *("flags", "words", "over_all_ranks", "in_proportion", "keeps_global_batch", "samples"),
        *("may_write", "launch", "python_options"),
    ):
        if getattr(workload, field):
            problems["workload", field] = "is for scripts only; take it out"
    return problems


def of_flag(flag: str) -> str | None:
    """Return the mistake in the flag of a knob."""
    found = fields.parted(flag)
    if found is None:
        if _FLAG.fullmatch(flag):
            return None
        return (
            "must be --flag, --flag=, key= or $VARIABLE, or a field of a file, such as "
            f"config.yaml::a.field, got {mistakes.in_yaml(flag)}"
        )
    holder, field = found
    if not (_FLAG.fullmatch(holder.text) or _FILE.fullmatch(holder.text)):
        return (
            "must have --flag, --flag=, key=, $VARIABLE or a file of "
            f"{', '.join(SETTINGS)} before `::`, got {mistakes.in_yaml(flag)}"
        )
    if not _FIELD.fullmatch(field):
        return f"must have a.field after `::`, got {mistakes.in_yaml(flag)}"
    return None


def of_field(flag: str) -> str | None:
    """Return the mistake in the flag of a command's knob, which has no placeholder."""
    found = fields.parted(flag)
    if found and not found[0].text.startswith(arguments.ENVIRONMENT):
        return of_flag(flag)
    return (
        "must be a field of a file that the command names, such as --config::a.field or "
        f"config.json::a.field, got {mistakes.in_yaml(flag)}; else the command takes a knob where it "
        "stands in braces"
    )


def of_knobs(
    workload: WorkloadSpec,
    space: Mapping[str, Sequence[Any]],
    baseline: Mapping[str, Any],
    full_baseline: Mapping[str, Any],
    *,
    fixed_batch: bool,
) -> mistakes.Problems:
    """Return mistakes: knobs that nothing can set, and unknown present values.

    Args:
        workload: of a script, correct by itself.
        space: values to try.
        baseline: as the study gives it.
        full_baseline: a value for every knob.
        fixed_batch: whether only configurations with the baseline's global batch compete.
    """
    problems = proportion.of_baseline(workload, baseline)
    problems |= option_words.of_space(workload, space, full_baseline)
    present = of_arguments(workload)
    for name, values in space.items():
        flag = workload.settings_by_knob.get(name)
        if flag is None and name == derived(workload):
            continue  # of_derived refuses it
        if flag is None:
            why = not_from_outside(name, values, full_baseline[name])
            if why:
                text = f"{why}; say under workload.flags by which argument it is turned"
                problems["search_space", name] = text
        elif name in workload.over_all_ranks and name not in baseline:
            problems["workload", "over_all_ranks"] = (
                f"then say under baseline what {name} is for one rank today"
            )
        elif name not in present and name not in baseline:
            source = "it does not" if fields.parted(flag) else "workload.args do not"
            problems["workload", "flags", name] = (
                f"{source} say what {flag} is today; add it there, or say under baseline "
                f"what the script takes without it"
            )
    if workload.keeps_global_batch:
        problems |= of_derived(workload.settings_by_knob, space, baseline, fixed_batch=fixed_batch)
    else:
        problems |= _of_split(workload, space, full_baseline, fixed_batch=fixed_batch)
    for name in baseline:
        if name in present and present[name] != baseline[name]:
            problems["baseline", name] = (
                f"is {mistakes.in_yaml(baseline[name])}, but workload.args say "
                f"{mistakes.in_yaml(present[name])}; make them agree"
            )
    return problems


def _of_split(
    workload: WorkloadSpec,
    space: Mapping[str, Sequence[Any]],
    full_baseline: Mapping[str, Any],
    *,
    fixed_batch: bool,
) -> mistakes.Problems:
    """Return a mistake if micro_batch varies under a fixed global batch without accumulation."""
    sizes = {*space.get("micro_batch", ()), full_baseline["micro_batch"]}
    if not fixed_batch or len(sizes) == 1 or "accumulation_steps" in workload.settings_by_knob:
        return {}
    return {
        (
            "objective",
            "global_batch",
        ): "stays only if the script accumulates more where micro_batch is "
        "less: say under workload.flags by which argument accumulation_steps is turned; or "
        "`workload: {keeps_global_batch: true}` if the script does that by itself; or "
        "`global_batch: free`"
    }


@dataclass(frozen=True)
class Recipe:
    """Configuration as a script takes it. Knobs at their baseline stay as they are.

    Attributes:
        target: the script's file, or the module behind -m.
        is_module: whether `target` is a module.
        flags: of the knobs that the script sets.
        turned: knobs that it sets to another value, each as its argument has it; settings that make
            up a
        knob together by their own names.
        changes: names of knobs that act from outside.
    """

    target: str
    is_module: bool
    flags: dict[str, str]
    turned: dict[str, Any]
    changes: tuple[str, ...]


def recipe(
    workload: WorkloadSpec,
    flags: Mapping[str, str],
    baseline: Mapping[str, Any],
    knobs: Mapping[str, Any],
    workers: int,
) -> Recipe:
    """Return a configuration as a script takes it.

    Args:
        workload: of a script.
        flags: of all knobs that it sets by itself, the study's own as well.
        baseline: a value for every knob.
        knobs: a value for every knob.
        workers: ranks.
    """
    differing = {name: value for name, value in knobs.items() if value != baseline[name]}
    turned = {
        name: value * workers
        if name in workload.over_all_ranks
        else option_words.said(workload, name, value)
        for name, value in differing.items()
        if name in flags and name not in workload.in_proportion
    }
    parts = proportion.turned(workload, baseline, differing)
    outside = differing.keys() - turned.keys() - {*workload.in_proportion, derived(workload)}
    return Recipe(
        target=workload.script or workload.module or "",
        is_module=workload.script is None,
        flags={**flags, **{setting: setting for setting in parts}},
        turned={**turned, **parts},
        changes=tuple(sorted(outside)),
    )


def samples_of_step(
    workload: WorkloadSpec, baseline: Mapping[str, Any], knobs: Mapping[str, Any]
) -> int | None:
    """Return the samples of one rank in a step of a configuration; None where the study has none.

    The study gives those of the baseline; a larger micro-batch has more.

    Args:
        workload: of a script.
        baseline: a value for every knob.
        knobs: a value for every knob.
    """
    if not workload.samples:
        return None
    return round(workload.samples * global_batch(knobs, 1) / global_batch(baseline, 1))


def samples_are_fixed(flags: Mapping[str, str]) -> bool:
    """Return whether the study's samples count even if a loader shows others.

    They do if the script sets no knob that changes the samples of a step.

    Args:
        flags: of the knobs that it sets.
    """
    return not {*COUNTED} & flags.keys()


def of_arguments(workload: WorkloadSpec) -> dict[str, Any]:
    """Return the values of a script's knobs in its arguments."""
    present: dict[str, Any] = {}
    for name, flag in workload.flags.items():
        text = arguments.given(workload.arguments, flag)
        if name not in CATALOGUE or name in workload.over_all_ranks or fields.parted(flag):
            continue
        if name in workload.words:
            words = workload.words[name]
            if any(word is True for word in words.values()):
                text = _of_switch(workload.arguments, flag, text)
            present[name] = option_words.meant(words, name, text)
            continue
        is_boolean = isinstance(CATALOGUE[name].default, bool)
        value = arguments.truth(text) if is_boolean else _value(text)
        if text is not None:
            present[name] = text if CATALOGUE[name].domain.problem(value) else value
        # The word behind a switch is an argument of its own.
        if is_boolean and value is None and arguments.may_be_switch(flag):
            present[name] = flag in workload.arguments
    return {n: v for n, v in present.items() if not CATALOGUE[n].domain.problem(v)}


def _of_switch(given: Sequence[str], flag: str, text: str | None) -> str | None:
    """Return `true` for a switch that is given, as the word behind it is an argument of its own."""
    is_switch = arguments.may_be_switch(flag) and flag in given
    return written(True) if is_switch and arguments.truth(text) is None else text


def _value(text: str | None) -> Any:
    try:
        return yaml.safe_load(text) if text else text
    except yaml.YAMLError:
        return text
