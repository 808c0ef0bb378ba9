"""Knobs in the words of a script's own options: in study.yaml, in a trial, under `autotune run`."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.config import StudySpec, load
from autotune.errors import SpecError
from autotune.export.best import BestConfig, read
from autotune.export.tuned_job import script_job, script_of
from autotune.export.writing import as_text, document_of
from search_spaces import defaults
from tests.support.steering import write_study

WORKLOAD = {
    "script": "train.py",
    "args": ["--dtype", "float32", "--pin"],
    "flags": {
        "precision": "--dtype",
        "compile": "--compile/--no-compile",
        "activation_checkpointing": "--ckpt",
        "pin_memory": "--pin",
    },
    "words": {
        "precision": {"fp32": "float32", "bf16": "bfloat16"},
        "compile": {"none": False, "default": True},
        "activation_checkpointing": {0: False, 1: True},
        "pin_memory": {False: False, True: True},
    },
}
SPACE = {
    "precision": ["fp32", "bf16"],
    "compile": ["none", "default"],
    "activation_checkpointing": [0, 1],
}
BASELINE = {"compile": "none", "activation_checkpointing": 0}


def study(folder: Path, **changes: Any) -> StudySpec:
    fields = {"workload": WORKLOAD, "search_space": SPACE, "baseline": BASELINE, **changes}
    return load(write_study(folder, **fields))


def test_present_values_are_read_in_the_words_of_options(tmp_path: Path) -> None:
    told = study(tmp_path).workload.present({})
    assert told == {"precision": "fp32", "pin_memory": True}
    typed = {**WORKLOAD, "args": ["--dtype", "bfloat16", "--no-compile", "--ckpt", "x"]}
    told = study(tmp_path, workload=typed, baseline={}).workload.present({})
    assert told["precision"] == "bf16"
    assert told["compile"] == "none"
    assert told["activation_checkpointing"] == 1


def test_words_are_kept_as_they_are_stored(tmp_path: Path) -> None:
    spec = study(tmp_path)
    assert StudySpec.model_validate(spec.model_dump(mode="json")) == spec


def test_trial_is_given_the_words(tmp_path: Path) -> None:
    spec = study(tmp_path)
    knobs = {**spec.full_baseline(), "precision": "bf16", "compile": "default"}
    recipe = spec.workload.recipe(knobs, spec.study_knobs, 1)
    assert recipe.turned == {"precision": "bfloat16", "compile": True}
    assert recipe.changes == ()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"words": {"compile": {"none": False}}}, "words.compile: have none for default"),
        ({"words": {"compile": {"fast": True}}}, "words.compile.fast: is no value of compile"),
        ({"words": {"micro_batch": {8: "a"}}}, "words.micro_batch: is not among flags"),
        ({"args": ["--dtype", "bfloat16"], "words": {"precision": {"bf16": "bfloat16"}}}, "fp32"),
    ],
)
def test_words_that_are_lacking_or_unknown_are_refused(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(SpecError) as refused:
        study(tmp_path, workload={**WORKLOAD, **changes})
    assert told in str(refused.value)


def test_field_of_a_file_is_read_in_its_words(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("dtype: bfloat16\ncompile: true\n")
    fields = {"precision": "train.yaml::dtype", "compile": "train.yaml::compile"}
    words = {name: WORKLOAD["words"][name] for name in fields}
    workload = {"script": "train.py", "flags": fields, "words": words}
    space = {name: SPACE[name] for name in fields}
    spec = study(tmp_path, workload=workload, search_space=space, baseline={})
    assert spec.baseline == {"precision": "bf16", "compile": "default"}


# The job


def best(folder: Path) -> BestConfig:
    spec = study(folder)
    knobs = {**spec.full_baseline(), "precision": "bf16", "compile": "default"}
    script = script_of(spec, knobs, folder, 1)
    own = {name: knobs[name] for name in (*SPACE, "pin_memory")}
    return BestConfig(own, 1, {}, script=script)


@pytest.mark.parametrize(
    ("given", "expected", "changes"),
    [
        (
            ["--dtype", "float32"],
            ["--dtype", "bfloat16", "--compile"],
            ("precision: --dtype float32 -> bfloat16", "compile: (not given) -> --compile"),
        ),
        (
            ["--no-compile"],
            ["--dtype", "bfloat16", "--compile"],
            (
                "precision: --dtype (not given) -> bfloat16",
                "compile: --no-compile -> --compile",
            ),
        ),
        (["--dtype=bfloat16", "--compile"], ["--dtype=bfloat16", "--compile"], ()),
    ],
)
def test_job_is_given_the_words_and_each_change_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
    expected: list[str],
    changes: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    job = script_job(best(tmp_path), ["python", "train.py", *given], {})
    assert list(job.command) == ["python", "train.py", *expected]
    assert job.changes == changes


@pytest.mark.parametrize(
    ("now", "changes"),
    [("False", ("pin_memory: --pin False -> True",)), ("True", ()), ("on", ())],
)
def test_boolean_is_told_as_the_job_is_given_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: str, changes: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = study(tmp_path, search_space={"pin_memory": [False, True]}, baseline={})
    knobs = {**spec.full_baseline(), "pin_memory": True}
    script = script_of(spec, knobs, tmp_path, 1)
    assert script is not None
    config = BestConfig(knobs, 1, {}, script={**script, "turned": {"pin_memory": True}})
    assert script_job(config, ["python", "train.py", "--pin", now], {}).changes == changes


def test_switch_that_is_taken_away_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = study(tmp_path, search_space={"pin_memory": [False, True]}, baseline={})
    knobs = {**spec.full_baseline(), "pin_memory": False}
    config = BestConfig(knobs, 1, {}, script=script_of(spec, knobs, tmp_path, 1))
    job = script_job(config, ["python", "train.py", "--pin", "data"], {})
    assert list(job.command) == ["python", "train.py", "data"]
    assert job.changes == ("pin_memory: --pin -> (not given)",)


def test_file_of_a_script_has_the_knobs_of_its_study_alone(tmp_path: Path) -> None:
    config = best(tmp_path)
    content = {**document_of(config), "provenance": {}, "own": sorted(config.knobs)}
    text = as_text(content)
    assert set(yaml.safe_load(text)["knobs"]) == {*SPACE, "pin_memory"}
    assert "defaults" not in yaml.safe_load(text)
    assert text.endswith("# All that is not under knobs is as the script sets it.\n")
    (tmp_path / "best.yaml").write_text(text)
    again = read(tmp_path / "best.yaml")
    assert again.knobs == config.knobs
    assert again.ddp_arguments() == {}
    assert len(defaults()) > len(again)
