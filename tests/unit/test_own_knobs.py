"""Knobs of a study's own and its constraints in study.yaml: what they are today, and what is wrong."""

from pathlib import Path
from typing import Any

import pytest

from autotune.config import StudySpec, arguments, load
from autotune.errors import SpecError
from tests.support.steering import write_study

TP: dict[str, Any] = {"values": [1, 2, 4, 8], "flag": "--tensor-model-parallel-size"}
PP: dict[str, Any] = {
    "values": [1, 2, 4],
    "flag": "--pipeline-model-parallel-size",
    "default": 1,
}
NUMBER = {"values": [4, 8], "flag": "--n"}
ARGS = ["--tensor-model-parallel-size", "2", "--lr", "slow"]
OWN: dict[str, Any] = {
    "workload": {"script": "pretrain.py", "args": ARGS},
    "resources": {"workers": 8},
    "search_space": {},
    "baseline": {},
    "knobs": {"tp": TP, "pp": PP},
    "constraints": ["tp * pp <= world_size"],
}


def study(folder: Path, **changes: Any) -> StudySpec:
    return load(write_study(folder, **{**OWN, **changes}))


def test_they_are_searched_with_the_others(tmp_path: Path) -> None:
    spec = study(tmp_path, search_space={"bucket_cap_mb": [5, 25]})
    assert spec.values() == {"bucket_cap_mb": [5, 25], "tp": [1, 2, 4, 8], "pp": [1, 2, 4]}
    baseline = spec.full_baseline()
    assert (baseline["tp"], baseline["pp"], baseline["bucket_cap_mb"]) == (2, 1, 25)
    assert StudySpec.model_validate(spec.model_dump(mode="json")) == spec, "as it is stored"


def test_alone_they_are_the_whole_space(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "name: a\nworkload: {script: train.py}\n"
        "knobs: {depth: {values: [1, 2], flag: depth=, default: 1}}\n"
    )
    assert load(path).values() == {"depth": [1, 2]}


def test_they_reach_the_script_by_their_flags(tmp_path: Path) -> None:
    spec = study(tmp_path)
    baseline = spec.full_baseline()
    recipe = spec.workload.recipe({**baseline, "tp": 4, "pp": 2}, spec.study_knobs, 8)
    assert recipe.turned == {"tp": 4, "pp": 2}
    assert not recipe.changes
    assert arguments.changed(spec.workload.arguments, recipe.flags, recipe.turned) == (
        *("--tensor-model-parallel-size", "4", "--lr", "slow"),
        *("--pipeline-model-parallel-size", "2"),
    )


@pytest.mark.parametrize(
    ("knob", "changes", "expected"),
    [
        ({"values": [1, 2], "flag": "--n"}, {"args": ["--n", "3"]}, 3),
        ({"values": [1, 2], "flag": "--n"}, {"args": ["--n=0.5"]}, 0.5),
        ({"values": [1, 2], "flag": "--n", "default": 1}, {"args": ["--n", "2"]}, 2),
        ({"values": [1, 2], "flag": "--n", "default": 1}, {"baseline": {"own": 2}}, 2),
        ({"values": [1, 2], "flag": "m.n="}, {"args": ["m.n=1", "m.n=2"]}, 2),
        ({"values": ["1", "2"], "flag": "--n"}, {"args": ["--n", "2"]}, "2"),
        ({"values": ["none", "full"], "flag": "--n", "default": "none"}, {}, "none"),
        ({"values": [False, True], "flag": "--on"}, {"args": ["x"]}, False),
        ({"values": [False, True], "flag": "--on"}, {"args": ["--on", "x"]}, True),
        ({"values": [False, True], "flag": "--on"}, {"args": ["--on", "False"]}, False),
        ({"values": [False, True], "flag": "--on"}, {"args": ["--on", "no"]}, False),
        ({"values": [False, True], "flag": "m.on="}, {"args": ["m.on=True"]}, True),
        ({"values": [False, True], "flag": "--on="}, {"args": ["--on=True"]}, True),
        ({"values": [False, True], "flag": "--on=", "default": True}, {}, True),
        ({"values": [1, 8], "flag": "$LANES"}, {"env": {"LANES": "8"}}, 8),
    ],
)
def test_todays_value_is_the_scripts(
    tmp_path: Path, knob: dict[str, Any], changes: dict[str, Any], expected: object
) -> None:
    workload = {"script": "train.py", "args": changes.pop("args", [])}
    spec = study(tmp_path, workload=workload, knobs={"own": knob}, constraints=[], **changes)
    found = spec.full_baseline()["own"]
    assert (found, type(found)) == (expected, type(expected))


def test_knob_may_have_the_name_of_a_measurement(tmp_path: Path) -> None:
    """Stored studies may have such a knob, and their files are read when they go on."""
    spec = study(
        tmp_path, knobs={"rate": {"values": [1, 2], "flag": "--rate", "default": 1}}, constraints=[]
    )
    assert spec.full_baseline()["rate"] == 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"workload": "gpt"}, "knobs: are arguments of a script"),
        ({"knobs": {"micro_batch": TP}}, "knobs.micro_batch: is a knob of the catalogue"),
        ({"knobs": {"world_size": TP}}, "knobs.world_size: is a word with a meaning"),
        ({"knobs": {"throughput": TP}}, "knobs.throughput: is a word with a meaning"),
        ({"knobs": {"class": TP}}, "knobs.class: is a word with a meaning"),
        ({"knobs": {"a-b": TP}}, "knobs.a-b: must be letters, digits and underscores"),
        ({"knobs": {"tp": {**TP, "values": []}}}, "knobs.tp.values: has no values"),
        ({"knobs": {"tp": {**TP, "values": [1, 1]}}}, "knobs.tp.values[1]: has 1 twice"),
        ({"knobs": {"tp": {**TP, "values": [1, "a"]}}}, "values[1]: must be a number like the"),
        ({"knobs": {"tp": {**TP, "values": [True, 1]}}}, "values[1]: must be a boolean like the"),
        (
            {"knobs": {"tp": {**TP, "values": [1, [2]]}}},
            "values[1]: must be a number, a text, true",
        ),
        ({"knobs": {"tp": {**TP, "values": 4}}}, "knobs.tp.values: must be list, got 4"),
        ({"knobs": {"tp": {**TP, "default": "a"}}}, "knobs.tp.default: must be a number like"),
        (
            {"knobs": {"tp": {**TP, "flag": "b; rm"}}},
            "knobs.tp.flag: must be --flag, --flag=, key= or",
        ),
        ({"knobs": {"tp": {"values": [1]}}}, "knobs.tp.flag: is missing"),
        ({"knobs": {"tp": {**TP, "flg": 1}}}, "knobs.tp.flg: no such field; did you mean 'flag'"),
        ({"knobs": {"tp": 4}}, "knobs.tp: must be a mapping, got 4"),
        ({"knobs": {"tp": {**TP, "flag": "--x"}}}, "knobs.tp: --x is not among workload.args"),
        (
            {"knobs": {"tp": {**TP, "values": ["a"], "flag": "--lr"}}, "baseline": {"tp": 1}},
            "a text",
        ),
        ({"knobs": {"on": {"values": [1, 2], "flag": "--lr"}}}, "--lr is 'slow' today"),
        (
            {
                "workload": {"script": "train.py", "args": ["--on"]},
                "knobs": {"on": {"values": ["on", "off"], "flag": "--on"}},
            },
            "knobs.on: --on stands alone in workload.args: for a switch write values: [false, true]",
        ),
        (
            {"workload": {"script": "train.py", "args": ["--n 8"]}, "knobs": {"n": NUMBER}},
            "knobs.n: its present value is not known: '--n 8' is one word to the script; write "
            "'--n', '8'",
        ),
        (
            {
                "workload": {"script": "train.py", "args": ["--n 8"]},
                "knobs": {"n": {**NUMBER, "default": 4}},
            },
            "knobs.n.flag: '--n 8' is one word to the script; write '--n', '8'",
        ),
        (
            {"knobs": {"on": {"values": [True, False], "flag": "$ON"}}, "env": {"ON": "1"}},
            "are each a boolean, but $ON is '1' today",
        ),
        (
            {"knobs": {"on": {"values": [True, False], "flag": "--on", "default": True}}},
            "knobs.on: is true today without --on, which nothing takes back",
        ),
        ({"baseline": {"tp": 4}}, "baseline.tp: is 4, but --tensor-model-parallel-size is 2 today"),
        ({"baseline": {"tpp": 4}}, "baseline.tpp: no such knob"),
        ({"search_space": {"tp": [1]}}, "search_space.tp: is a knob of your own"),
        (
            {"constraints": ["tp * tpp <= 8"]},
            "constraints[0]: column 6: no such knob: tpp; did you",
        ),
        ({"constraints": ["tp < 9", "tp ** 2"]}, "constraints[1]: column 1: holds what is not"),
        ({"constraints": ["tp < 'a'"]}, "constraints[0]: makes no sense for all values"),
        ({"constraints": ["tp > world_size"]}, "[0]: no configuration satisfies it; the baseline"),
        ({"constraints": ["tp == 4"]}, "constraints[0]: the baseline does not satisfy it: tp=2"),
        (
            {"constraints": ["global_batch_size == 64"]},
            "constraints[0]: global_batch_size is not known of",
        ),
        ({"constraints": [3]}, "constraints[0]: must be string"),
    ],
)
def test_mistakes_are_told_with_their_lines(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    if "knobs" in changes:
        changes = {"constraints": [], **changes}
    with pytest.raises(SpecError) as refused:
        study(tmp_path, **changes)
    assert told in str(refused.value)
    assert len(refused.value.problems) == 1
    line = int(str(refused.value).split("study.yaml:")[1].split(":")[0])
    assert line > 1


def test_what_only_the_machine_knows_is_left_to_it(tmp_path: Path) -> None:
    """How many ranks there are, here."""
    spec = study(tmp_path, resources={"workers": "auto"}, constraints=["tp * pp == world_size"])
    assert spec.constraints == ["tp * pp == world_size"]


@pytest.mark.parametrize(
    ("workload", "flag", "told"),
    [
        (
            {"flags": {"micro_batch": "--bs"}},
            "--bs=",
            "knobs.batch.flag: is what micro_batch is turned by as well; leave one of them",
        ),
        ({"flags": {"micro_batch": "--bs"}}, "--bs/--no", "knobs.batch.flag: is what micro_batch"),
        (
            {"flags": {"micro_batch": "--bs", "accumulation_steps": "--bs"}},
            "--other",
            "workload.flags.micro_batch: is what accumulation_steps is turned by as well",
        ),
        (
            {"in_proportion": {"micro_batch": {"--a": 3, "--bs": 8}}},
            "--bs",
            "workload.in_proportion.micro_batch.--bs: is what batch is turned by as well",
        ),
    ],
)
def test_setting_turns_one_knob(
    tmp_path: Path, workload: dict[str, Any], flag: str, told: str
) -> None:
    switch = "/" in flag
    knob = {"values": [False, True] if switch else [8, 16], "flag": flag, "default": False}
    with pytest.raises(SpecError) as refused:
        study(
            tmp_path,
            workload={"script": "train.py", "args": ["--bs=8"], **workload},
            knobs={"batch": knob if switch else {**knob, "default": 8}},
            baseline={"micro_batch": 8, "accumulation_steps": 8, "batch": False if switch else 8},
            constraints=[],
        )
    assert told in str(refused.value)


def test_field_of_a_command_turns_one_knob(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"bs": 8}')
    knobs = {"batch": {"values": [8, 16], "flag": "a.json::bs"}}
    workload = {"command": ["bench", "a.json"], "flags": {"micro_batch": "a.json::bs"}}
    with pytest.raises(SpecError, match=r"knobs\.batch\.flag: is what micro_batch is turned by"):
        study(tmp_path, workload=workload, knobs=knobs, constraints=[])
