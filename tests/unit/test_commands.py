"""Commands in study.yaml, what they tell, and what is made of it: what needs no process."""

import functools
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.config import StudySpec, commands, load
from autotune.errors import BadInput, SpecError
from autotune.export.best import BestConfig
from autotune.export.formats import FORMATS
from autotune.export.formats.command_line import recommended
from autotune.export.tuned_job import script_job
from autotune.worker.protocol import BlockPlan
from autotune.worker.rank.command_run import Blocks
from autotune.worker.rank.readings import (
    FileLines,
    ProgressReport,
    UnreadableReport,
    parse_json,
    parse_match,
)
from tests.support.steering import write_study

COMMAND = {
    "command": ["./bench", "--bs={micro_batch}", "--tp", "{tp}", "{{x}}", "{folder}/m"],
    "throughput": {"json_lines": "{folder}/m"},
}
KNOBS = {"tp": {"values": [1, 2]}}
FIELDS: dict[str, Any] = {
    "search_space": {"micro_batch": [8, 16]},
    "knobs": KNOBS,
    "baseline": {"micro_batch": 8, "tp": 1},
    "objective": {"global_batch_size": "free"},
}


def study(folder: Path, workload: dict[str, Any] | None = None, **changes: Any) -> StudySpec:
    told = {**COMMAND, **(workload or {})}
    given = {name: value for name, value in told.items() if value is not None}
    return load(write_study(folder, workload=given, **{**FIELDS, **changes}))


def test_command_with_ranks_elsewhere_must_be_allowed_to_write(tmp_path: Path) -> None:
    command = {"command": ["srun", *COMMAND["command"]]}
    with pytest.raises(SpecError, match=r"workload.command: `srun` starts .*`may_write: true`"):
        study(tmp_path, command)
    spec = study(tmp_path, {**command, "may_write": True})
    stored = spec.model_dump(mode="json")
    stored["workload"]["may_write"] = False
    assert StudySpec.model_validate(stored).workload.label.startswith("srun"), "of before"


def test_placeholders_are_filled(tmp_path: Path) -> None:
    spec = study(tmp_path)
    assert isinstance(spec.workload, commands.CommandWorkload)
    knobs = {**spec.full_baseline(), "tp": 2}
    found = commands.argv(spec.workload.command, knobs, "/f{x}")
    assert found == ("./bench", "--bs=8", "--tp", "2", "{x}", "/f{x}/m")


@pytest.mark.parametrize(
    ("workload", "changes", "problem"),
    [
        ({"command": ["x{tp}{micro_batch}", "{tpp}"]}, {}, "workload.command[1]: no such knob: 'tpp'"),
        ({"command": ["x", "{tp"]}, {}, "workload.command[1]: has a brace alone"),
        (
            {"command": ["{micro_batch}", "{tp}", 'x {"lr": 1} ${HOME}']},
            {},
            """workload.command[2]: no such knob: '"lr": 1'; {folder} and knobs stand in braces; """
            "write {{ and }} for braces of the command's own",
        ),
        ({"command": ["{micro_batch}", "{tp}{tp!r}"]}, {}, "workload.command[1]: no such knob"),
        ({"command": []}, {}, "workload.command: "),
        ({"command": ["x", 8]}, {}, "workload.command[1]: "),
        ({"command": ["x", "{tp}"]}, {}, "search_space.micro_batch: nothing in workload.command takes"),
        ({"command": ["x", "{micro_batch}"]}, {}, "knobs.tp: nothing in workload.command takes it"),
        ({"args": ["x"]}, {}, "workload.args: is for scripts only"),
        ({"samples": 2}, {}, "workload.samples: is for scripts only"),
        ({"script": "x.py"}, {}, "workload.command: does not go with script"),
        ({}, {"baseline": {"tp": 1}}, "workload.command[1]: takes micro_batch, whose present value"),
        ({}, {"baseline": {"micro_batch": 8}}, "knobs.tp: its present value is not known"),
        ({}, {"baseline": {"micro_batch": 8, "tp": "a"}}, "baseline.tp: must be a number"),
        ({}, {"knobs": {"tp": {"values": [1], "flag": "--tp"}}}, "knobs.tp.flag: is for scripts: a"),
        ({}, {"search_space": {"micro_batch": [8, "max"]}}, "search_space.micro_batch[1]: is not"),
        ({}, {"objective": {}}, "objective.global_batch_size: stays only if the command accumulates"),
        ({"throughput": {}}, {}, "workload.throughput: must be either json_lines or pattern"),
        ({"throughput": {"json_lines": "m"}}, {}, "throughput.json_lines: must be a file in {f"),
        ({"throughput": {"pattern": "(a"}}, {}, "throughput.pattern: is no regular expression: missing"),
        ({"throughput": {"pattern": "a"}}, {}, "throughput.pattern: must have one group, the number"),
    ],
)  # fmt: skip
def test_mistakes_are_located(
    tmp_path: Path, workload: dict[str, Any], changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SpecError) as caught:
        study(tmp_path, workload, **changes)
    (told,) = caught.value.problems
    assert problem in told
    assert re.match(r".*study\.yaml:[0-9]+: ", told)


def test_a_flag_is_still_asked_for_where_a_script_trains(tmp_path: Path) -> None:
    workload = {"script": "train.py", "command": None, "throughput": None}
    with pytest.raises(SpecError, match=r"knobs\.tp\.flag: is missing"):
        study(tmp_path, workload, search_space={}, baseline={"tp": 1})


def test_a_script_says_its_throughput_by_itself(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"workload\.throughput: is for commands only"):
        study(tmp_path, {"script": "train.py", "command": None}, search_space={})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"samples": 4, "seconds": 2}', ProgressReport(4, seconds=2)),
        ('{"samples": 4, "throughput": 9, "loss": 0.5}', ProgressReport(4, loss=0.5)),
        ('{"throughput": 9}', ProgressReport(rate=9)),
        ('{"epoch": 1}', None),
    ],
)
def test_lines_of_json_are_read(line: str, told: ProgressReport | None) -> None:
    assert parse_json(line, tokens=False) == told


@pytest.mark.parametrize(
    "line", ["x", "[1]", '{"samples": "4"}', '{"samples": 0}', '{"throughput": true}', '{"tokens": 1}']
)  # fmt: skip
def test_lines_that_are_no_reports_are_told(line: str) -> None:
    with pytest.raises(UnreadableReport, match=re.escape(repr(line))):
        parse_json(line, tokens=False)


def test_rates_are_matched() -> None:
    reading = functools.partial(parse_match, pattern=re.compile(r"(\S+) it/s"))
    assert reading("at 2.5e1 it/s") == ProgressReport(rate=25)
    assert reading("nothing") is None
    with pytest.raises(UnreadableReport, match="finds no number above 0: 'at nan it/s'"):
        reading("at nan it/s")


def test_reports_are_put_together_to_blocks() -> None:
    blocks = Blocks(BlockPlan(seconds=1.0))
    assert not blocks.take([ProgressReport(8)], 100.0), "it only starts the clock"
    (first,) = blocks.take([ProgressReport(8)], 100.5)
    assert (first.reports, first.amount, first.seconds) == (1, 8, 0.5)
    assert not blocks.take([ProgressReport(8)], 101.0)
    second, third = blocks.take(
        [ProgressReport(rate=8), ProgressReport(rate=8), ProgressReport(8, seconds=3)], 102.5
    )
    assert (second.reports, second.amount, second.seconds) == (2, 12, 1.0)
    assert (third.reports, third.amount, third.seconds) == (2, 12, 3.5)


def test_a_part_of_a_line_is_no_line(tmp_path: Path) -> None:
    lines = FileLines(tmp_path / "m")
    assert not list(lines.read())
    with (tmp_path / "m").open("w") as file:
        file.write("a\nb")
        file.flush()
        assert list(lines.read()) == ["a"]
        file.write("c\n\n")
        file.flush()
        assert list(lines.read()) == ["bc"]


def test_reporting_does_nothing_outside_a_study_and_loads_nothing() -> None:
    text = (
        "import sys, autotune; from autotune import report; report(samples=1); autotune.report(1)\n"
        "assert not {'torch', 'yaml', 'pydantic'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", text], check=True)


def test_no_public_name_is_that_of_a_module() -> None:
    """Importing the module would put it in the place of the function."""
    modules = {module.name for module in pkgutil.iter_modules(autotune.__path__)}
    assert not modules & {*autotune.__all__}


def best(tmp_path: Path) -> BestConfig:
    spec = study(tmp_path)
    knobs = {**spec.full_baseline(), "tp": 2}
    return BestConfig(knobs, 2, {}, script=spec.workload.entry(knobs, spec.study_knobs, 2))


def test_the_command_is_recommended_whole(tmp_path: Path) -> None:
    found = best(tmp_path)
    assert recommended(found) == ("./bench", "--bs=8", "--tp", "2", "{x}", "./m")
    assert FORMATS["argv"](found).text == "./bench --bs=8 --tp 2 '{x}' ./m\n"
    assert FORMATS["argv"](found).unsaid == {}
    assert FORMATS["deepspeed"](found).unsaid == {"tp": 2}
    with pytest.raises(BadInput, match="leave out `--`"):
        script_job(found, ["./bench"], {})
    with pytest.raises(BadInput, match="give your launch command after"):
        recommended(BestConfig({}, 2, {}))


def test_a_field_of_a_file_that_a_command_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text('{"train": {"bs": 8}, "tp": 1}')
    workload = {
        "command": ["./bench", "--config", "a.json", "a.json"],
        "throughput": {"pattern": "(x)"},
        "flags": {"micro_batch": "a.json::train.bs"},
    }
    knobs = {"tp": {"values": [1, 2], "flag": "a.json::tp"}}
    spec = study(tmp_path, workload, knobs=knobs, baseline={})
    baseline = spec.full_baseline()
    assert (baseline["micro_batch"], baseline["tp"]) == (8, 1)
    chosen = {**baseline, "micro_batch": 16, "tp": 2}
    found = recommended(
        BestConfig(chosen, 2, {}, script=spec.workload.entry(chosen, spec.study_knobs, 2))
    )
    assert found[:2] == ("./bench", "--config")
    assert found[2] == found[3]
    assert json.loads(Path(found[2]).read_text()) == {"train": {"bs": 16}, "tp": 2}
    named = {**workload, "flags": {"micro_batch": "--config::train.bs"}}
    spec = study(tmp_path, named, knobs={}, baseline={})
    chosen = {**spec.full_baseline(), "micro_batch": 16}
    found = recommended(
        BestConfig(chosen, 2, {}, script=spec.workload.entry(chosen, spec.study_knobs, 2))
    )
    assert json.loads(Path(found[2]).read_text())["train"] == {"bs": 16}
    assert found[3] == "a.json", "only the argument that the study names"


@pytest.mark.parametrize("flag", ["--bs", "$CONFIG::a"])
def test_other_flags_are_no_business_of_commands(tmp_path: Path, flag: str) -> None:
    with pytest.raises(SpecError, match="micro_batch: must be a field of a file that the comm"):
        study(tmp_path, {"flags": {"micro_batch": flag}})
