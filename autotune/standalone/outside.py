"""Search by trial for knobs that act on the root module of a script, without an option of it.

They are in force in a run of a few steps, and kept if each has acted on the module that the loss
comes from.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autotune.errors import BadInput, first_line
from autotune.standalone.own_options import SearchTime
from autotune.standalone.script_runs import RunScript
from autotune.worker.survey_result import SurveyResult
from search_spaces import CATALOGUE, Facts
from search_spaces.constraints import unmet_needs
from search_spaces.knob import BLOCKS, FLOAT8_LAYERS, KnobValue, written

_FLOAT8, _PRECISION = "float8", "precision"
_ALONE = (_FLOAT8, "compile", "compile_scope")
"""Knobs that are not tried with others: they need a library, or take long."""
Values = dict[str, list[KnobValue]]


@dataclass(frozen=True)
class Outside:
    """Result of the search.

    Attributes:
        values: knob -> values to try, the present one first.
        doubts: why other knobs do not act, a line each.
    """

    values: Values = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


def candidates(seen: SurveyResult, facts: Facts) -> Values:
    """Return the knobs that may act on a script, with the values that this machine allows.

    Args:
        seen: training of the unchanged command.
        facts: of this machine.
    """
    found: Values = {}
    for name, values in _candidates(seen, facts):
        allowed = [value for value in values if not any(unmet_needs({name: value}, facts))]
        if len(allowed) > 1:
            found[name] = allowed
    return found


def _candidates(seen: SurveyResult, facts: Facts) -> Iterator[tuple[str, list[KnobValue]]]:
    own, on_gpu = seen.own, facts.device == "cuda"
    if own.get("precision") == "fp32" and not seen.scaled:
        yield "precision", ["fp32", "tf32", "bf16"]
    if own.get("channels_last") is False and not seen.sharded:
        yield "channels_last", [False, True]
    if on_gpu and BLOCKS in seen.targets and "activation_checkpointing" not in own:
        yield "activation_checkpointing", [0, 1]
    if on_gpu and FLOAT8_LAYERS in seen.targets and not seen.sharded:
        yield "float8", ["none", "tensorwise", "rowwise"]
    if own.get("compile", "none") == "none":
        yield "compile", ["none", "default"]
        if BLOCKS in seen.targets and not seen.sharded:
            yield "compile_scope", ["model", "blocks"]


def find_outside(run: RunScript, wanted: Values, searching: SearchTime) -> Outside:
    """Try a value of each knob; compile in a run of its own, as it takes longest.

    Args:
        run: runs the script.
        wanted: result of `candidates`, without knobs that an option turns.
        searching: its time, which is for knobs that are tried alone.
    """
    quick = {name: values for name, values in wanted.items() if name not in _ALONE}
    found = _try_together(run, quick) if quick else Outside()
    beside = {_PRECISION: "bf16"} if _PRECISION in found.values else {}
    for name in ("compile", _FLOAT8):
        if name not in wanted:
            continue
        if late := searching.late(name):
            found = Outside(found.values, (*found.doubts, late))
            continue
        one = _try_together(run, {name: wanted[name]}, beside if name == _FLOAT8 else {})
        found = Outside(found.values | one.values, (*found.doubts, *one.doubts))
    scope = {"compile_scope": wanted["compile_scope"]} if "compile_scope" in wanted else {}
    return Outside(found.values | scope, found.doubts) if "compile" in found.values else found


def _try_together(
    run: RunScript, several: Values, beside: Mapping[str, KnobValue] | None = None
) -> Outside:
    """Try knobs in one run, and each by itself if the script fails with them.

    Args:
        run: runs the script.
        several: knobs to try.
        beside: other knobs that are in force in it.
    """
    chosen = {name: _tried(name, values) for name, values in several.items()}
    try:
        idle = run({**(beside or {}), **chosen}).idle
    except BadInput as error:
        if len(several) > 1:
            alone = [_try_together(run, {name: values}) for name, values in several.items()]
            values = {name: values for one in alone for name, values in one.values.items()}
            return Outside(values, tuple(doubt for one in alone for doubt in one.doubts))
        ((name, value),) = chosen.items()
        return Outside(
            doubts=(f"{name}: from outside {written(value)} fails: {first_line(error)}",)
        )
    acting = {name: values for name, values in several.items() if name not in idle}
    without = several.keys() - acting.keys()
    return Outside(acting, tuple(f"{name}: it has found nothing to act on" for name in without))


def _tried(name: str, values: list[KnobValue]) -> KnobValue:
    """Return the value that an expert would try first, else the first that is not the present one."""
    promising = CATALOGUE[name].promising
    return promising if promising in values[1:] and promising is not None else values[1]
