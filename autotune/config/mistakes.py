"""Mistakes in a study file, in words a user can act on: allowed values, and the given one."""

import difflib
import json
import types
import typing
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ValidationError

from autotune.config.document import shown
from search_spaces import CATALOGUE, preset_names
from search_spaces.batch import global_batch_size, refused_global_batch

FieldPath = tuple[str | int, ...]
Problems = dict[FieldPath, str]
"""Place -> mistake; one for each place."""

LARGEST = "max"
"""Value of micro_batch that stands for the largest that fits in memory."""
_LONGEST_WORD = 100
_ALLOWED: dict[FieldPath, str] = {
    ("resources", "workers"): "a whole number from 1 to 65536, or auto",
    ("objective", "global_batch_size"): "fixed, free or a whole number from 1",
    ("workload", "args", "dict_type"): "a mapping of keyword arguments; lists are for scripts",
    ("workload", "args", "list_type"): "a list, an argument of the script each, as they are today",
}
"""Words for what a field may be, by its place, or by its place and the kind of pydantic's error."""
_MEMBERS_OF_UNIONS = ("str", "int", "float", "bool", "constrained-int")


class Inconsistent(Exception):
    """Mistakes that a validator has located by itself; the exception passes through pydantic."""

    def __init__(self, problems: Problems) -> None:
        super().__init__(str(problems))
        self.problems = problems


# Mistakes in several fields


def of_search_space(
    space: str | Mapping[str, Sequence[Any]],
    own: Container[str] = (),
    *,
    may_be_empty: bool = False,
) -> Problems:
    """Return mistakes: unknown presets and knobs, values outside a knob's domain, repeated values.

    Args:
        own: names of the study's own knobs, whose values stand elsewhere.
        may_be_empty: whether something else is searched.
    """
    if isinstance(space, str):
        return {} if space in preset_names() else {("search_space",): _no_space(space)}
    if not space and not may_be_empty:
        return {("search_space",): "names no knob; give at least one with values to try"}
    problems: Problems = {}
    for name, values in space.items():
        path = ("search_space", name)
        if name in own:
            problems[path] = (
                "is a knob of your own, whose values are those under knobs; take it out"
            )
        elif problem := unknown_knob(name):
            problems[path] = problem
        elif not values:
            problems[path] = "has no values; give a list with at least one"
        else:
            problems.update(_of_values(name, values))
    return problems


def _of_values(name: str, values: Sequence[Any]) -> Problems:
    problems: Problems = {}
    seen = set()
    for index, value in enumerate(values):
        path = ("search_space", name, index)
        is_largest = name == "micro_batch" and value == LARGEST
        problem = "" if is_largest else CATALOGUE[name].domain.problem(value)
        if problem:
            also = f", or {LARGEST}" if name == "micro_batch" else ""
            problems[path] = f"{problem}{also}, got {in_yaml(value)}"
        elif value in seen:
            problems[path] = f"has {in_yaml(value)} twice"
        seen.add(value)
    return problems


def of_baseline(baseline: Mapping[str, Any], own: Container[str] = ()) -> Problems:
    """Return mistakes: unknown knobs, values outside a domain; `own`: names of the study's own knobs."""
    problems: Problems = {}
    for name, value in baseline.items():
        if name in own:
            continue
        problem = unknown_knob(name)
        if not problem and (wrong := CATALOGUE[name].domain.problem(value)):
            problem = f"{wrong}, got {in_yaml(value)}"
        if problem:
            problems[("baseline", name)] = problem
    return problems


def of_variables(env: Container[str], knobs: Iterable[str]) -> Problems:
    """Return mistakes: variables of `env` that a knob of the study sets as well.

    Ranks would have the study's value.
    """
    problems: Problems = {}
    for name in knobs:
        known = CATALOGUE[name].variables if name in CATALOGUE else ()
        for variable in known:
            if variable in env:
                text = f"is what the knob {name} of this study sets as well: take one of them out"
                problems["env", variable] = text
    return problems


def of_global_batch(
    fixed: int, workers: int, baseline: Mapping[str, Any], *, baseline_given: bool
) -> Problems:
    """Return mistakes: a fixed global batch that is impossible, or that the baseline does not have.

    Args:
        fixed: global batch of the study.
        baseline: a value for every knob.
        baseline_given: whether the file has a baseline to point at.
    """
    if refused := refused_global_batch(fixed, workers):
        return {("objective", "global_batch_size"): refused}
    actual = global_batch_size(baseline, workers)
    if actual == fixed:
        return {}
    text = (
        f"has a global batch of {actual} (micro_batch x accumulation_steps x workers), but "
        f"objective.global_batch_size fixes it at {fixed}; make them agree"
    )
    if baseline_given:
        return {("baseline",): text}
    return {("objective", "global_batch_size"): f"the baseline {text}"}


# Mistakes in single fields


def of_fields(error: ValidationError, data: Any, model: type[BaseModel]) -> Problems:
    """Return pydantic's findings, each mistake once: it reports one per member of a union.

    Args:
        error: of validating `data` against `model`.
    """
    problems: Problems = {}
    for detail in error.errors(include_url=False, include_context=False):
        path = _own_path(detail["loc"], data)
        problems[path] = _explain(detail, path, model)
    outer = {path[:length] for path in problems for length in range(len(path))}
    return {path: text for path, text in problems.items() if path not in outer}


def _explain(detail: Any, path: FieldPath, model: type[BaseModel]) -> str:
    kind, given = detail["type"], detail.get("input")
    if kind == "extra_forbidden":
        return no_such_field(str(path[-1]), _fields_at(path[:-1], model, detail["loc"]))
    if kind == "missing":
        return "is missing"
    if path == ("search_space",):
        return _no_space(given)
    if path[:1] == ("knobs",) and path[2:3] in (("values",), ("default",)) and kind != "list_type":
        return f"must be a number, a text, true or false, got {in_yaml(given)}"
    if path[:1] in (("search_space",), ("baseline",)) and len(path) > 1:
        return _of_knob(str(path[1]), given)
    if allowed := _ALLOWED.get((*path, kind)) or _ALLOWED.get(path):
        return f"must be {allowed}, got {in_yaml(given)}"
    if kind in ("model_type", "dict_type"):
        is_required = len(path) == 1 and model.model_fields[str(path[0])].is_required()
        return f"must be a mapping, got {in_yaml(given)}{'' if is_required else _if_empty(given)}"
    return _reworded(detail["msg"].removeprefix("Value error, "), kind, given)


def _reworded(message: str, kind: str, given: Any) -> str:
    """Return pydantic's message in autotune's words; other messages unchanged."""
    text = message.removeprefix("Input should be ").removeprefix("a valid ")
    if text == message:
        return text if "got" in text else f"{text}, got {in_yaml(given)}"
    if kind == "string_type":
        text += " (in quotes if it looks like a number or true/false)"
    return f"must be {text}, got {in_yaml(given)}"


def _of_knob(name: str, given: Any) -> str:
    if problem := unknown_knob(name):
        return problem
    return f"must be {CATALOGUE[name].domain.describe()}, got {in_yaml(given)}"


def _own_path(loc: tuple[int | str, ...], data: Any) -> FieldPath:
    """Return the error's location without pydantic's names of union members."""
    path: list[str | int] = []
    for part in loc:
        inside = isinstance(data, dict) and part in data
        item = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if inside or item:
            path.append(part)
            data = data[part]
        elif isinstance(data, dict) and not _names_a_member(part):
            path.append(part)  # a missing field
            break
    return tuple(path)


def _names_a_member(part: int | str) -> bool:
    return str(part) in _MEMBERS_OF_UNIONS or "[" in str(part)


def tag_of(kind: type[BaseModel]) -> str:
    """Return the name of a member of a union of models, as it stands in pydantic's locations."""
    return f"[{kind.__name__}]"


def _fields_at(path: FieldPath, model: type[BaseModel], loc: Collection[int | str]) -> list[str]:
    """Return the names of the fields that are allowed at a path; `loc`: pydantic's location of it."""
    inside_mapping = False
    for part in path:
        if inside_mapping:
            inside_mapping = False  # the part is a name of the user's
            continue
        annotation = model.model_fields[str(part)].annotation
        if typing.get_origin(annotation) is dict:
            annotation, inside_mapping = typing.get_args(annotation)[1], True
        models = list(_models_of(annotation))
        model = next((one for one in models if tag_of(one) in loc), models[0])
    return list(model.model_fields)


def _models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models among the members of a union, or the annotation itself."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    for option in typing.get_args(annotation) if is_union else (annotation,):
        bare = typing.get_args(option)[0] if typing.get_origin(option) is Annotated else option
        if isinstance(bare, type) and issubclass(bare, BaseModel):
            yield bare


# Texts


def dotted(path: FieldPath) -> str:
    """Return a field's place in its usual form: search_space.micro_batch[2]."""
    text = ""
    for part in path:
        name = shown(str(part)) or "''"
        text += f"[{part}]" if isinstance(part, int) else f".{name}" if text else name
    return text or "study"


def in_yaml(value: Any) -> str:
    """Return a value as YAML writes it, shortened to part of a line."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return repr(shown(value))
    if isinstance(value, dict | list):
        return shown(json.dumps(value, default=str, ensure_ascii=False))
    return shown(repr(value))


def no_such_field(name: str, allowed: Collection[str]) -> str:
    """Return the message for an unknown field."""
    return f"no such field{did_you_mean(name, allowed)}; allowed: {', '.join(allowed)}"


def unknown_knob(name: str) -> str:
    """Return the message for an unknown knob; empty for a known one."""
    if name in CATALOGUE:
        return ""
    return (
        f"no such knob{did_you_mean(name, CATALOGUE)}; `autotune knobs` lists all {len(CATALOGUE)}"
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the nearest known word, or nothing."""
    if len(word) > _LONGEST_WORD:
        return ""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _no_space(given: Any) -> str:
    close = did_you_mean(given, preset_names()) if isinstance(given, str) else ""
    allowed = f"a preset ({', '.join(preset_names())}) or a mapping of knobs to values"
    return f"must be {allowed}, got {in_yaml(given)}{close}{_if_empty(given)}"


def _if_empty(given: Any) -> str:
    """Return advice on a section without fields, as where all its lines are comments."""
    return "; take it out if nothing stands in it" if given is None else ""
