"""Knobs of the root module that `init` tries from outside, and what it makes of the runs."""

from collections.abc import Mapping
from typing import Any

import pytest

from autotune.errors import BadInput
from autotune.standalone.outside import Outside, candidates, find_outside
from autotune.standalone.own_options import SearchTime
from autotune.worker.survey_result import SurveyResult
from search_spaces import Facts

CPU = Facts("cpu", 1)
HOPPER = Facts("cuda", 1, capability=(9, 0))
_PLAIN: dict[str, Any] = {"precision": "fp32", "compile": "none", "channels_last": False}
_TARGETS = ("blocks", "float8 layers")
LONG = 1000.0


def seen(own: Mapping[str, Any] = _PLAIN, **changes: Any) -> SurveyResult:
    return SurveyResult(steps=4, own=dict(own), **{"targets": _TARGETS, **changes})


def test_processors_are_offered_formats_layouts_and_compilation() -> None:
    assert candidates(seen(), CPU) == {
        "precision": ["fp32", "bf16"],
        "channels_last": [False, True],
        "compile": ["none", "default"],
        "compile_scope": ["model", "blocks"],
    }


def test_devices_are_offered_what_needs_them_as_well() -> None:
    found = candidates(seen(), HOPPER)
    assert found["precision"] == ["fp32", "tf32", "bf16"]
    assert found["activation_checkpointing"] == [0, 1]
    assert found["float8"] == ["none", "tensorwise", "rowwise"]
    assert "float8" not in candidates(seen(), Facts("cuda", 1, capability=(8, 0)))


@pytest.mark.parametrize(
    ("training", "missing"),
    [
        (seen({**_PLAIN, "precision": "bf16"}), {"precision"}),
        (seen(scaled=True), {"precision"}),
        (seen({**_PLAIN, "compile": "on"}), {"compile", "compile_scope"}),
        (seen({**_PLAIN, "channels_last": True}), {"channels_last"}),
        (seen(sharded=True), {"channels_last", "compile_scope"}),
        (seen(targets=()), {"compile_scope"}),
    ],
)
def test_what_a_script_does_by_itself_or_cannot_is_not_tried(
    training: SurveyResult, missing: set[str]
) -> None:
    assert candidates(seen(), CPU).keys() - candidates(training, CPU).keys() == missing


class Script:
    """A script that fails with some knobs, and in which others find nothing to act on."""

    def __init__(self, *, fails: tuple[str, ...] = (), idle: tuple[str, ...] = ()) -> None:
        self.runs: list[dict[str, Any]] = []
        self._fails = fails
        self._idle = idle

    def __call__(self, knobs: Mapping[str, Any]) -> SurveyResult:
        self.runs.append(dict(knobs))
        if failing := [name for name in self._fails if name in knobs]:
            raise BadInput(f"ERROR: {failing[0]}\nand more")
        return SurveyResult(steps=4, idle=tuple(name for name in self._idle if name in knobs))


WANTED = candidates(seen(), CPU)


def test_compile_is_tried_after_everything_else_at_once() -> None:
    script = Script()
    assert find_outside(script, WANTED, SearchTime(LONG)) == Outside(WANTED)
    assert script.runs == [{"precision": "bf16", "channels_last": True}, {"compile": "default"}]


def test_knob_without_effect_is_left_out_with_the_reason() -> None:
    found = find_outside(Script(idle=("channels_last",)), WANTED, SearchTime(LONG))
    assert found.values == {n: v for n, v in WANTED.items() if n != "channels_last"}
    assert found.doubts == ("channels_last: it has found nothing to act on",)


def test_knobs_are_tried_alone_where_the_script_fails_with_all() -> None:
    script = Script(fails=("precision",))
    found = find_outside(script, WANTED, SearchTime(LONG))
    assert "channels_last" in found.values and "precision" not in found.values
    assert found.doubts == ("precision: from outside bf16 fails: ERROR: precision",)
    assert script.runs[1:3] == [{"precision": "bf16"}, {"channels_last": True}]


def test_scope_of_compilation_needs_compilation() -> None:
    found = find_outside(Script(fails=("compile",)), WANTED, SearchTime(LONG))
    assert not {"compile", "compile_scope"} & found.values.keys()


def test_nothing_long_begins_late() -> None:
    script = Script()
    found = find_outside(script, WANTED, SearchTime(-1.0))
    assert found.doubts == ("compile: not tried, as init took too long",)
    assert script.runs == [{"precision": "bf16", "channels_last": True}]


def test_compilation_that_would_end_late_is_not_begun() -> None:
    script = Script()
    find_outside(script, WANTED, SearchTime(60.0, usual=30.0))
    assert script.runs == [{"precision": "bf16", "channels_last": True}]


def test_float8_is_tried_alone_and_beside_bf16() -> None:
    script = Script(fails=("float8",))
    found = find_outside(script, candidates(seen(), HOPPER), SearchTime(LONG))
    assert script.runs[-1] == {"precision": "bf16", "float8": "tensorwise"}
    assert "float8" not in found.values and "activation_checkpointing" in found.values
