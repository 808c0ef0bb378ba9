"""Present values of knobs in the files that a script reads, as a part of the baseline."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.config import arguments, fields, mistakes, option_words, own_knobs, workload_kinds
from autotune.config.workload_spec import StudyKnobs, WorkloadSpec
from search_spaces import CATALOGUE
from search_spaces.knob import written


def with_files(
    data: dict[str, Any], folders: Sequence[Path]
) -> tuple[dict[str, Any], mistakes.Problems]:
    """Return the study with values of files in its baseline, and mistakes in these values.

    Args:
        data: of a study file, with or without mistakes.
        folders: in which the files are looked for, the first one that has it.
    """
    workload, problems = _mapping(data.get("workload")), mistakes.Problems()
    baseline = dict(_mapping(data.get("baseline")))
    words = [word for word in _list(workload.get("args")) if isinstance(word, str)]
    words = words or [word for word in _list(workload.get("command")) if isinstance(word, str)]
    # A number there is a mistake by itself, which is told as well.
    variables = {name: str(value) for name, value in _mapping(data.get("env")).items()}
    for path, name, flag in _of_files(data):
        known = name in CATALOGUE or name in _mapping(data.get("knobs"))
        if not known or name in _list(workload.get("global_flags")):
            continue
        present, why_not = fields.present(flag, words, variables, folders)
        if why_not:
            problems[path] = why_not
            continue
        present = _meant(workload, name, present)
        if wrong := _misfit(data, name, present):
            # The user may know the script's interpretation of a value: `auto` is 8.
            if name not in baseline:
                problems[path] = f"{flag} is {mistakes.in_yaml(present)} today, {wrong}"
        elif baseline.setdefault(name, present) != present:
            problems["baseline", name] = (
                f"is {mistakes.in_yaml(baseline[name])}, but {flag} is {mistakes.in_yaml(present)} "
                "today; make them agree"
            )
    return ({**data, "baseline": baseline} if baseline else data), problems


def of_numbers(
    workload: WorkloadSpec, knobs: StudyKnobs, folders: Sequence[Path]
) -> mistakes.Problems:
    """Return numbers of the study that the present values of settings contradict.

    Args:
        folders: as in `with_files`; without any no files are read.
    """
    problems: mistakes.Problems = {}
    for stated in workload.stated(knobs):
        text = _present(stated.setting, workload.arguments, knobs.variables, folders)
        number = arguments.number(text)
        if number is not None and number != stated.number:
            source = _source(stated.setting)
            problems[stated.place] = f"{stated.text}, but {source} {text}; make them agree"
    return problems


def _present(
    setting: str, given: Sequence[str], variables: Mapping[str, str], folders: Sequence[Path]
) -> str | None:
    if not _is_field(setting):
        return arguments.present(given, variables, setting)
    present = fields.present(setting, given, variables, folders)[0] if folders else None
    return None if present is None else str(present)


def _source(setting: str) -> str:
    """Return the subject and the verb of a sentence on what a setting is today."""
    if _is_field(setting):
        return f"{setting} is"
    return "env says" if arguments.is_variable(setting) else "workload.args say"


def _of_files(data: Mapping[str, Any]) -> Iterator[tuple[mistakes.FieldPath, str, str]]:
    """Yield knobs that are a field of a file: place in the study, name, field."""
    workload = _mapping(data.get("workload"))
    problem = workload_kinds.kind_of(workload).flag_problem
    for name, flag in _mapping(workload.get("flags")).items():
        if _is_field(flag) and not problem(flag):
            yield ("workload", "flags", name), name, flag
    for name, knob in _mapping(data.get("knobs")).items():
        flag = _mapping(knob).get("flag")
        if _is_field(flag) and not problem(str(flag)):
            yield ("knobs", name, "flag"), name, str(flag)


def _meant(workload: Mapping[str, Any], name: str, present: Any) -> Any:
    """Return the knob's value for the script's word; where none is known, the word."""
    words = _mapping(_mapping(workload.get("words")).get(name))
    if not words or name not in CATALOGUE:
        return present
    texts = {written(value): word for value, word in words.items()}
    known = option_words.meant(texts, name, present)
    return present if known is None else known


def _is_field(flag: Any) -> bool:
    return isinstance(flag, str) and fields.parted(flag) is not None


def _misfit(data: Mapping[str, Any], name: str, present: Any) -> str:
    """Return why a value is none of the knob's; empty if it is one."""
    if name in CATALOGUE:
        problem = CATALOGUE[name].domain.problem(present)
        return f"and {name} {problem}; say under baseline what that comes to" if problem else ""
    values = _list(_mapping(_mapping(data.get("knobs")).get(name)).get("values"))
    if not isinstance(present, bool | int | float | str):
        return "which no knob can be; say under baseline what that comes to"
    if values and own_knobs.kind(values[0]) != own_knobs.kind(present):
        return f"and the values are each a {own_knobs.kind(values[0])}"
    return ""


def _mapping(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []
