"""Scripts that keep their global batch, and knobs that several settings make up: what a study says of
them, and how a configuration reaches them."""

from pathlib import Path
from typing import Any

import pytest

from autotune.analysis.provenance import attempts_of
from autotune.config import StudySpec, arguments, load
from autotune.errors import SpecError
from autotune.search.space import Space
from search_spaces import Facts
from search_spaces.batch import split_otherwise
from tests.support.steering import write_study
from tests.support.trials import trial

KEEPING = {
    "script": "train.py",
    "args": ["--device-batch-size=32"],
    "flags": {"micro_batch": "--device-batch-size"},
    "keeps_global_batch": True,
}
BASELINE = {"micro_batch": 32, "accumulation_steps": 2}


def study(folder: Path, workload: dict[str, Any], **changes: Any) -> StudySpec:
    given = {
        "search_space": {"micro_batch": [8, 16, 32, 64]},
        "baseline": BASELINE,
        "objective": {},
        **changes,
    }
    return load(write_study(folder, workload=workload, **given))


def test_only_what_the_script_is_told_reaches_it(tmp_path: Path) -> None:
    spec = study(tmp_path, KEEPING)
    baseline = spec.full_baseline()
    split = split_otherwise(baseline, "micro_batch", 16)
    assert split is not None
    recipe = spec.workload.recipe(split, spec.study_knobs, 2)
    assert (recipe.turned, recipe.changes) == ({"micro_batch": 16}, ())
    words = arguments.changed(spec.workload.arguments, recipe.flags, recipe.turned)
    assert words == ("--device-batch-size=16",)


def test_script_knows_what_it_has_to_derive_otherwise_than_today(tmp_path: Path) -> None:
    spec = study(tmp_path, KEEPING)
    baseline = spec.full_baseline()
    split = split_otherwise(baseline, "micro_batch", 16)
    assert split is not None
    requests = [
        spec.workload.request(trial(tmp_path, knobs=one, script=None), spec.study_knobs)
        for one in (baseline, split)
    ]
    assert [one.script.derived for one in requests if one.script] == ["", "accumulation_steps"]


@pytest.mark.parametrize("keeps", [True, False])
def test_attempts_know_whether_the_script_keeps_its_batch(tmp_path: Path, *, keeps: bool) -> None:
    objective = {"global_batch_size": "fixed" if keeps else "free"}
    spec = study(tmp_path, {**KEEPING, "keeps_global_batch": keeps}, objective=objective)
    assert attempts_of([], spec).complete().keeps_batch is keeps


def test_every_configuration_has_the_global_batch_of_the_baseline(tmp_path: Path) -> None:
    spec = study(tmp_path, KEEPING)
    facts = Facts("cpu", 2, global_batch_size=spec.global_batch_size(2))
    space = Space(spec.values(), spec.full_baseline(), facts)
    assert space.splits is not None
    assert space.splits.steps == {64: 1, 32: 2, 16: 4, 8: 8}


def test_script_that_is_told_its_accumulation_derives_its_micro_batch(tmp_path: Path) -> None:
    workload = {
        "script": "train.py",
        "args": ["--accum", "2"],
        "flags": {"accumulation_steps": "--accum"},
        "keeps_global_batch": True,
    }
    spec = study(tmp_path, workload, search_space={"accumulation_steps": [1, 2, 4]})
    assert spec.global_batch_size(1) == 64


def test_split_without_whole_steps_is_none() -> None:
    assert split_otherwise(BASELINE, "micro_batch", 24) is None
    assert split_otherwise(BASELINE, "accumulation_steps", 4) == {
        "micro_batch": 16,
        "accumulation_steps": 4,
    }


@pytest.mark.parametrize(
    ("workload", "changes", "told"),
    [
        (
            {},
            {"objective": {"global_batch_size": "free"}},
            "does not go with `global_batch_size: free`",
        ),
        ({}, {"baseline": {"micro_batch": 32}}, "say under baseline what accumulation_steps is"),
        (
            {},
            {"search_space": {"micro_batch": [8, 32], "accumulation_steps": [2, 4]}},
            "search_space.accumulation_steps: is derived from micro_batch",
        ),
        ({}, {"search_space": {"micro_batch": ["max"]}}, "is not looked for in a script"),
        ({"flags": {}}, {"search_space": {"freeze_gc": [True]}}, "none of them is mapped"),
        (
            {"flags": {**KEEPING["flags"], "accumulation_steps": "--accum"}},
            {"search_space": {"freeze_gc": [True]}},
            "both of them is mapped",
        ),
    ],
)
def test_contradiction_is_refused(
    tmp_path: Path, workload: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(SpecError) as refused:
        study(tmp_path, {**KEEPING, **workload}, **changes)
    assert told in str(refused.value)


TWO_LOADERS = {
    "script": "train.py",
    "args": ["--labeled-bs", "4", "--unlabeled-bs=12"],
    "flags": {"accumulation_steps": "--accum"},
    "in_proportion": {"micro_batch": {"--labeled-bs": 4, "--unlabeled-bs": 12}},
}


def test_settings_that_make_up_a_micro_batch_are_changed_by_its_factor(tmp_path: Path) -> None:
    own = {"micro_batch": 16, "accumulation_steps": 1}
    spec = study(tmp_path, TWO_LOADERS, baseline=own, search_space={"micro_batch": [8, 16]})
    baseline = spec.full_baseline()
    knobs = {**baseline, "micro_batch": 8, "accumulation_steps": 2}
    recipe = spec.workload.recipe(knobs, spec.study_knobs, 2)
    words = arguments.changed(spec.workload.arguments, recipe.flags, recipe.turned)
    assert words == ("--labeled-bs", "2", "--unlabeled-bs=6", "--accum", "2")
    assert recipe.changes == ()
    assert spec.rules == ("micro_batch % 4 == 0",)


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ({"flags": {"micro_batch": "--bs"}}, "is among flags or global_flags as well"),
        ({"in_proportion": {"precision": {"--p": 1}}}, "must be micro_batch or accumulation_steps"),
        ({"in_proportion": {"micro_batch": {}}}, "has no settings"),
        ({"in_proportion": {"micro_batch": {"a b": 1}}}, "must be --flag"),
    ],
)
def test_settings_that_cannot_make_up_a_knob_are_refused(
    tmp_path: Path, workload: dict[str, Any], told: str
) -> None:
    with pytest.raises(SpecError) as refused:
        study(tmp_path, {**TWO_LOADERS, **workload})
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("args", "setting", "changes", "told"),
    [
        (["--a", "6"], "--a", {}, "is 4, but workload.args say 6; make them agree"),
        ([], "$A", {"env": {"A": "6"}}, "is 4, but env says 6; make them agree"),
        ([], "a.yaml::a", {}, "is 4, but a.yaml::a is 6; make them agree"),
        (["--file", "a.yaml"], "--file::a", {}, "is 4, but --file::a is 6; make them agree"),
    ],
)
def test_part_of_a_knob_is_what_the_script_has_today(
    tmp_path: Path, args: list[str], setting: str, changes: dict[str, Any], told: str
) -> None:
    (tmp_path / "a.yaml").write_text("a: 6\n")
    workload = {**TWO_LOADERS, "args": args, "in_proportion": {"micro_batch": {setting: 4}}}
    with pytest.raises(SpecError) as refused:
        study(tmp_path, workload, search_space={"micro_batch": [16, 32]}, **changes)
    assert f"workload.in_proportion.micro_batch.{setting}: {told}" in str(refused.value)


@pytest.mark.parametrize("text", ["auto", "nan", "inf"])
def test_text_that_is_no_number_contradicts_no_part(tmp_path: Path, text: str) -> None:
    workload = {**TWO_LOADERS, "args": [f"--unlabeled-bs={text}"]}
    baseline = {"micro_batch": 16, "accumulation_steps": 1}
    assert study(tmp_path, workload, baseline=baseline, search_space={"micro_batch": [8, 16]})


def test_part_that_the_script_has_by_default_is_as_the_study_says(tmp_path: Path) -> None:
    workload = {**TWO_LOADERS, "args": ["--unlabeled-bs=12"]}
    baseline = {"micro_batch": 16, "accumulation_steps": 1}
    assert study(tmp_path, workload, baseline=baseline, search_space={"micro_batch": [8, 16]})


OVER_ALL = {
    "script": "train.py",
    "args": ["--bs", "64"],
    "flags": {"micro_batch": "--bs"},
    "global_flags": ["micro_batch"],
}
OF_ONE = {"baseline": {"micro_batch": 16}, "objective": {"global_batch_size": "free"}}


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ({}, "is 16, which is 32 over all ranks, but workload.args say 64; make them agree"),
        (
            {"flags": {"micro_batch": "a.yaml::bs"}},
            "is 16, which is 32 over all ranks, but a.yaml::bs is 64",
        ),
        ({"launch": "python"}, "is 16, which is 16 over all ranks, but workload.args say 64"),
    ],
)
def test_value_over_all_ranks_is_that_of_the_baseline(
    tmp_path: Path, workload: dict[str, Any], told: str
) -> None:
    (tmp_path / "a.yaml").write_text("bs: 64\n")
    workers = {"workers": 1 if "launch" in workload else 2}
    with pytest.raises(SpecError) as refused:
        study(tmp_path, {**OVER_ALL, **workload}, resources=workers, **OF_ONE)
    assert f"baseline.micro_batch: {told}" in str(refused.value)


def test_value_over_as_many_ranks_as_the_machine_decides_is_not_compared(tmp_path: Path) -> None:
    assert study(tmp_path, OVER_ALL, resources={"workers": "auto"}, **OF_ONE)
    assert study(tmp_path, OVER_ALL, resources={"workers": 4}, **OF_ONE)
