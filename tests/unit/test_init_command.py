"""`autotune init -- COMMAND` where no script of torch is in it: a study with TODOs, not an error."""

from pathlib import Path

import pytest

from autotune.config import StudySpec, load
from autotune.errors import BadInput, SpecError
from autotune.standalone.starter import write_of_command
from autotune.standalone.survey import Allowed

FILLED = {
    "throughput: TODO": 'throughput: {pattern: "([0-9.]+) samples/s"}',
    "workers: TODO": "workers: 2",
    "knobs: TODO": "knobs: {tp: {values: [1, 2]}}",
    "baseline: {}": "baseline: {tp: 1}",
}


def filled(path: Path, **more: str) -> StudySpec:
    text = path.read_text()
    for todo, said in {**FILLED, **more}.items():
        text = text.replace(todo, said)
    path.write_text(text)
    return load(path)


def written(folder: Path, *command: str) -> Path:
    path = folder / "study.yaml"
    assert "marked TODO" in write_of_command(path, command).seen
    return path


def test_options_are_knobs_by_their_names(tmp_path: Path) -> None:
    odd = [
        "printf",
        "-np",
        "2",
        "./bench",
        "--batch-size=8",
        "--eval-batch",
        "9",
        "{x}",
        "ü: #$(id)",
    ]
    spec = filled(written(tmp_path, *odd))
    assert spec.workload.command == [
        *("printf", "-np", "2", "./bench", "--batch-size={micro_batch}", "--eval-batch", "9"),
        *("{{x}}", "ü: #$(id)"),
    ]
    assert spec.search_space == {"micro_batch": [4, 8, 16]}
    assert spec.baseline == {"micro_batch": 8}
    assert spec.objective.global_batch_size == "free"


def test_command_with_ranks_elsewhere_must_be_allowed_to_write(tmp_path: Path) -> None:
    path, command = tmp_path / "study.yaml", ["env", "docker", "--bs", "1"]
    with pytest.raises(BadInput, match=r"`docker` starts processes outside.*--may-write"):
        write_of_command(path, command)
    assert not path.exists()
    write_of_command(path, command, allowed=Allowed(may_write=True))
    assert filled(path).workload.may_write


def test_what_accumulates_keeps_the_global_batch(tmp_path: Path) -> None:
    spec = filled(written(tmp_path, "printf", "--bs", "1", "--grad-accum", "4"))
    assert spec.workload.command == [
        "printf",
        "--bs",
        "{micro_batch}",
        "--grad-accum",
        "{accumulation_steps}",
    ]
    assert spec.search_space == {"micro_batch": [1, 2], "accumulation_steps": [2, 4, 8]}
    assert spec.objective.global_batch_size == "fixed"


def test_command_that_fixes_its_global_batch_keeps_it(tmp_path: Path) -> None:
    command = ["litgpt", "--train.micro_batch_size", "2", "--train.global_batch_size", "16"]
    path = written(tmp_path, "printf", *command)
    with pytest.raises(SpecError, match=r"baseline\.accumulation_steps: must be"):
        load(path)
    spec = filled(path, **{"accumulation_steps: TODO": "accumulation_steps: 4"})
    assert spec.workload.keeps_global_batch
    assert spec.global_batch_size(2) == 16


def test_what_is_left_to_do_is_named_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "make", "train")
    with pytest.raises(SpecError) as refused:
        load(path)
    for field in ("workload.throughput", "resources.workers", "knobs"):
        assert f" {field}: must be" in str(refused.value)
    assert str(refused.value).count("TODO") == 3
    spec = filled(path, **{'- "train"': '- "train"\n    - "TP={tp}"'})
    assert spec.values() == {"tp": [1, 2]}


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no program trochrun"):
        write_of_command(tmp_path / "study.yaml", ["trochrun", "train"])
    assert not (tmp_path / "study.yaml").exists()
