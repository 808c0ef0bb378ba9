"""Knobs of a study's own, and its constraints: validation, and present values."""

import itertools
import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from autotune.config import arguments, mistakes
from autotune.config.document import shown
from autotune.config.sections import OwnKnobSpec
from search_spaces import CATALOGUE
from search_spaces.constraints import asked_by, asked_of
from search_spaces.expressions import FUNCTIONS, Expression, Mixed, Unreadable, parse
from search_spaces.knob import KnobValue, written

BY_STUDY = ("world_size", "global_batch_size")
"""Names in constraints that are no knobs."""
_RECORDED = ("throughput", "trial_seconds", "state")
"""Columns of a replay table."""
_TAKEN = frozenset({*BY_STUDY, *FUNCTIONS, *_RECORDED, "true", "false"})
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_MOST_TRIED = 20_000
"""Combinations of the values in a constraint that are tried: a tenth of a second."""
_FEW_TRIED = 200
"""Combinations tried for errors alone: the values of a knob are much of a kind."""


Knobs = Mapping[str, OwnKnobSpec]


def kind(value: object) -> str:
    """Return the kind of a value: number, text or boolean."""
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"


# Present values


def present_values(
    knobs: Knobs, given: Sequence[str], variables: Mapping[str, str], baseline: Mapping[str, Any]
) -> dict[str, KnobValue]:
    """Return present values of knobs, from the script's arguments, the baseline or a default.

    Args:
        given: arguments of the script.
        variables: of its environment, as the study sets them.
        baseline: as the study gives it.
    """
    present: dict[str, KnobValue] = {
        name: False for name, knob in knobs.items() if _is_switch(knob)
    }
    present |= {n: knob.default for n, knob in knobs.items() if knob.default is not None}
    present |= {name: baseline[name] for name in knobs if name in baseline}
    present |= of_arguments(knobs, given, variables)
    return {name: present[name] for name in knobs if name in present}


def of_arguments(
    knobs: Knobs, given: Sequence[str], variables: Mapping[str, str]
) -> dict[str, KnobValue]:
    """Return the values of knobs in the script's arguments or its environment."""
    found = {name: _given_value(knob, given, variables) for name, knob in knobs.items()}
    return {name: value for name, value in found.items() if value is not None}


def _given_value(
    knob: OwnKnobSpec, given: Sequence[str], variables: Mapping[str, str]
) -> KnobValue | None:
    wanted, text = kind(knob.values[0]), _text(knob, given, variables)
    is_boolean = wanted == "boolean"
    value = arguments.present_truth(knob.flag or "", text) if is_boolean else _parsed(wanted, text)
    # The word behind a switch is an argument of its own.
    return True if value is None and _is_switch(knob) and knob.flag in given else value


def _is_switch(knob: OwnKnobSpec) -> bool:
    flag = knob.flag or ""
    return arguments.may_be_switch(flag) and kind(knob.values[0]) == "boolean"


def _is_field(flag: str | None) -> bool:
    """Return whether a flag is a field of a file, whose value is in the baseline already."""
    return arguments.FIELD in (flag or "")


def _text(knob: OwnKnobSpec, given: Sequence[str], variables: Mapping[str, str]) -> str | None:
    if knob.flag is None or _is_field(knob.flag):
        return None
    return arguments.present(given, variables, knob.flag)


def _parsed(wanted: str, text: str | None) -> KnobValue | None:
    """Parse a value of this kind, a number or a text; return None if there is none."""
    return text if wanted == "text" else arguments.number(text)


# Validation


def of_knobs(knobs: Knobs, of_flag: Callable[[str, str | None], str]) -> mistakes.Problems:
    """Return mistakes: names that are taken, values of several kinds, invalid flags.

    Args:
        of_flag: returns the mistake in the flag of a knob, by its name and its flag.
    """
    problems: mistakes.Problems = {}
    for name, knob in knobs.items():
        if problem := _of_name(name):
            problems["knobs", name] = problem
        elif problem := of_flag(name, knob.flag):
            problems["knobs", name, "flag"] = problem
        else:
            problems |= _of_values(name, knob)
    return problems


def _of_name(name: str) -> str:
    if name in CATALOGUE:
        return (
            "is a knob of the catalogue: say its values under search_space and its argument under "
            "workload.flags, or choose another name"
        )
    if name in _TAKEN or keyword.iskeyword(name):
        return "is a word with a meaning of its own here; choose another name"
    if not _NAME.fullmatch(name):
        return "must be letters, digits and underscores, the first one a letter"
    return ""


def _of_values(name: str, knob: OwnKnobSpec) -> mistakes.Problems:
    problems: mistakes.Problems = {}
    path = ("knobs", name, "values")
    if not knob.values:
        return {path: "has no values; give a list with at least one"}
    first = knob.values[0]
    for index, value in enumerate(knob.values):
        if kind(value) != kind(first):
            problems[*path, index] = _of_kind(first, value)
        elif value in knob.values[:index]:
            problems[*path, index] = f"has {mistakes.in_yaml(value)} twice"
    if knob.default is not None and kind(knob.default) != kind(first):
        problems["knobs", name, "default"] = _of_kind(first, knob.default)
    return problems


def _of_kind(first: KnobValue, value: object) -> str:
    return f"must be a {kind(first)} like the other values, got {mistakes.in_yaml(value)}"


def of_present_values(
    knobs: Knobs, given: Sequence[str], variables: Mapping[str, str], baseline: Mapping[str, Any]
) -> mistakes.Problems:
    """Return mistakes: present values that are unknown, of another kind, or contradictory."""
    problems: mistakes.Problems = {}
    present = of_arguments(knobs, given, variables)
    for name, knob in knobs.items():
        stated, text = baseline.get(name), _text(knob, given, variables)
        if stated is not None and kind(stated) != kind(knob.values[0]):
            problems["baseline", name] = _of_kind(knob.values[0], stated)
        elif text is not None and name not in present:
            problems["knobs", name, "values"] = (
                f"are each a {kind(knob.values[0])}, but {knob.flag} is {mistakes.in_yaml(text)} today"
            )
        elif stated is not None and name in present and present[name] != stated:
            problems["baseline", name] = (
                f"is {mistakes.in_yaml(stated)}, but {knob.flag} is "
                f"{mistakes.in_yaml(present[name])} today; make them agree"
            )
        elif _is_switch(knob) and name not in present and (stated or knob.default):
            problems["knobs", name] = (
                f"is true today without {knob.flag}, which nothing takes back by leaving it out; write "
                f"{knob.flag}=true into workload.args if the script takes that"
            )
        elif name not in present_values({name: knob}, given, variables, baseline):
            problems["knobs", name] = _of_unknown(knob, given)
    return problems


def _of_unknown(knob: OwnKnobSpec, given: Sequence[str]) -> str:
    if knob.flag is None or _is_field(knob.flag):
        return "its present value is not known; say it under baseline"
    if joined := arguments.in_one_word(given, knob.flag):
        return f"its present value is not known: {joined}"
    if arguments.stands_alone(given, knob.flag):
        return (
            f"{knob.flag} stands alone in workload.args: for a switch write values: [false, true]"
        )
    return (
        f"{knob.flag} is not among workload.args, so that its present value is not known; add it "
        "there, or say here by `default` what the script takes without it"
    )


def of_constraints(
    texts: Sequence[str],
    values: Mapping[str, Sequence[KnobValue]],
    baseline: Mapping[str, KnobValue],
    world_size: int | None,
    *,
    batch_known: bool,
) -> mistakes.Problems:
    """Return mistakes in constraints.

    They cannot be read, have unknown names, or are satisfied by no configuration or not by the
    baseline.

    Args:
        texts: as the study gives them.
        values: to be tried, of the study's own knobs as well.
        baseline: a value for every knob, of the study's own as well.
        world_size: ranks; None: only the machine decides.
        batch_known: whether the script's micro_batch is known.
    """
    problems: mistakes.Problems = {}
    for index, text in enumerate(texts):
        try:
            rule = parse(text)
        except Unreadable as wrong:
            problems["constraints", index] = f"column {wrong.column}: {wrong}"
            continue
        problem = _of_names(rule, baseline, batch_known=batch_known)
        problem = problem or _of_outcome(rule, values, baseline, world_size)
        if problem:
            problems["constraints", index] = problem
    return problems


def _of_names(rule: Expression, baseline: Mapping[str, Any], *, batch_known: bool) -> str:
    known = [*baseline, *BY_STUDY]
    for name, column in rule.columns.items():
        if name not in known:
            hint = mistakes.did_you_mean(name, known)
            return f"column {column}: no such knob: {shown(name)}{hint}; texts stand in quotes"
    if "global_batch_size" in rule.names and not batch_known:
        return (
            "global_batch_size is not known of this script: say under workload.flags by which argument "
            "micro_batch is turned, or under baseline what it is"
        )
    return ""


def _of_outcome(
    rule: Expression,
    values: Mapping[str, Sequence[KnobValue]],
    baseline: Mapping[str, KnobValue],
    world_size: int | None,
) -> str:
    asked = asked_of(baseline, world_size or 1)
    try:
        holds = rule.holds(asked)
        for tried in itertools.islice(_tried(rule, values, baseline, world_size or 1), _FEW_TRIED):
            rule.holds(tried)
    except Mixed as mixed:
        return f"makes no sense for all values: {mixed}"
    if holds or (world_size is None and {*BY_STUDY} & {*rule.names}):
        return ""
    present = ", ".join(f"{name}={written(asked[name])}" for name in rule.names)
    if not any(map(rule.holds, _tried(rule, values, baseline, world_size or 1))):
        return f"no configuration satisfies it; the baseline has {present}"
    return f"the baseline does not satisfy it: {present}"


def _tried(
    rule: Expression,
    values: Mapping[str, Sequence[KnobValue]],
    baseline: Mapping[str, KnobValue],
    world_size: int,
) -> Iterator[Mapping[str, KnobValue]]:
    """Yield the names' values in every combination of values; the first ones of too many."""
    asked = asked_by(rule, baseline)
    numbers = {n: [v for v in given if v != mistakes.LARGEST] for n, given in values.items()}
    several = {name: given for name, given in numbers.items() if name in asked and given}
    for chosen in itertools.islice(itertools.product(*several.values()), _MOST_TRIED):
        yield asked_of({**baseline, **dict(zip(several, chosen, strict=True))}, world_size)
