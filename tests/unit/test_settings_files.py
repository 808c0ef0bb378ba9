"""Fields of files that a script reads its settings from: read, changed, given to it, and told today."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from autotune.config import fields, load, settings
from autotune.errors import BadInput, SpecError
from autotune.export.best import BestConfig
from autotune.export.formats.command_line import argv, env
from autotune.export.tuned_job import script_job, script_of
from autotune.standalone import flags
from autotune.worker.inject import settings_copies
from autotune.worker.inject.job_order import VARIABLE, Order
from autotune.worker.protocol import FileCopy
from autotune.worker.survey_result import SurveyResult
from tests.support.steering import write_study

YAML = """\
# What we train with.
data: &data
  path: ../data   # beside this file
  workers: 2
training:
  batch_size: 16   # of a rank
  lr: 1e-4
  name: "8"
  amp: no
  warmup: 2.0
  resume: null
  stages: [{steps: 10}, {steps: 20}]
  "top.k": 5
evaluation:
  <<: *data
  batch_size: 16
shared: &n 3
again: *n
odd: !size 7
"""
TOML = """\
# batch_size = 1
[evaluation]
batch_size = 4

[training]
"batch_size" = 8 # of a rank
name = 'a b'
on = true
schedule = { steps = [10, 20, 30], lr = 0.1 }

[[stages]]
steps = 1

[[stages]]
steps = 2
"""


@pytest.mark.parametrize(
    ("field", "value", "before", "after"),
    [
        ("training.batch_size", 32, "  batch_size: 16   # of a", "  batch_size: 32   # of a"),
        ("training.lr", 0.5, "lr: 1e-4", "lr: 0.5"),
        ("training.lr", 1e-05, "lr: 1e-4", "lr: 1.0e-05"),
        ("training.name", 9, 'name: "8"', 'name: "9"'),
        ("training.name", "off", 'name: "8"', 'name: "off"'),
        ("training.name", "fast", 'name: "8"', "name: fast"),
        ("training.amp", True, "amp: no", "amp: true"),
        ("training.warmup", 3, "warmup: 2.0", "warmup: 3.0"),
        ("training.resume", "a: b", "resume: null", 'resume: "a: b"'),
        ("training.stages.1.steps", 5, "{steps: 20}", "{steps: 5}"),
        ("training.top.k", 6, '"top.k": 5', '"top.k": 6'),
        ("odd", 8, "odd: !size 7", "odd: !size 8"),
    ],
)
def test_yaml_keeps_all_else(field: str, value: Any, before: str, after: str) -> None:
    found = settings.changed(YAML, ".yaml", field, value)
    assert found == YAML.replace(before, after, 1)


@pytest.mark.parametrize(
    ("field", "value", "before", "after"),
    [
        ("training.batch_size", 32, '"batch_size" = 8 #', '"batch_size" = 32 #'),
        ("evaluation.batch_size", 8, "batch_size = 4", "batch_size = 8"),
        ("training.name", 'x"y', "'a b'", '"x\\"y"'),
        ("training.on", False, "on = true", "on = false"),
        ("training.schedule.lr", 1, "lr = 0.1", "lr = 1.0"),
        ("training.schedule.steps.1", 5, "[10, 20, 30]", "[10, 5, 30]"),
        ("stages.1.steps", 7, "steps = 2\n", "steps = 7\n"),
    ],
)
def test_toml_keeps_all_else(field: str, value: Any, before: str, after: str) -> None:
    found = settings.changed(TOML, ".toml", field, value)
    assert found == TOML.replace(before, after, 1)


def test_json_keeps_order_and_kinds() -> None:
    text = '{\t"z": {"batch": 8, "lr": 1.0}, "a": [1, null]}'
    found = settings.changed(text, ".json", "z.batch", 16)
    assert json.loads(found) == {"z": {"batch": 16, "lr": 1.0}, "a": [1, None]}
    assert found.index('"z"') < found.index('"a"')


@pytest.mark.parametrize(
    ("suffix", "text", "field", "told"),
    [
        (".yaml", YAML, "batch_size", "no field batch_size; did you mean training.batch_size or"),
        (".yaml", YAML, "training", "training is no single value; name a field in it"),
        (".yaml", YAML, "shared", "cannot be changed without changing something else"),
        (".yaml", YAML, "again", "cannot be changed without changing something else"),
        (".yaml", YAML, "evaluation.workers", "write its value out there"),
        (".yaml", "a: [1", "a", "line 1: not valid YAML"),
        (".json", "{", "a", "line 1: not valid JSON"),
        (".toml", "a = ", "a", "not valid TOML"),
        (".ini", "[a]", "a", "only fields of .yaml, .yml, .json, .toml"),
        (".yaml", "", "a", "there is no field a"),
    ],
)
def test_what_cannot_be_changed_says_why(suffix: str, text: str, field: str, told: str) -> None:
    with pytest.raises(settings.Unusable) as refused:
        settings.changed(text, suffix, field, 1)
    assert told in str(refused.value)


def given(folder: Path, words: list[str], flags_: dict[str, str], **knobs: Any) -> fields.Given:
    return fields.given(
        words,
        flags_,
        knobs,
        variables={"CONFIG": "train.toml"},
        workdir=folder,
        folder=folder / "copies",
    )


def test_a_script_is_given_copies(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(YAML)
    (tmp_path / "train.toml").write_text(TOML)
    named = {
        "micro_batch": "--config::training.batch_size",
        "lr": "--config::training.lr",
        "accumulation_steps": "$CONFIG::training.batch_size",
        "seed": "--seed",
    }
    found = given(
        tmp_path,
        ["--config", "train.yaml", "x"],
        named,
        micro_batch=32,
        lr=0.5,
        accumulation_steps=3,
        seed=1,
    )
    first, second = found.copies
    assert found.arguments == ("--config", first.path, "x", "--seed", "1")
    assert found.variables == {"CONFIG": second.path}
    assert settings.read(first.text, ".yaml", "training.batch_size") == 32
    assert settings.read(first.text, ".yaml", "training.lr") == 0.5
    assert tomllib.loads(second.text)["training"]["batch_size"] == 3
    assert [Path(copy.path).name for copy in found.copies] == ["train.yaml", "train.toml"]
    assert not any(copy.stands_in for copy in found.copies)


@pytest.mark.parametrize("form", [("--config", "{}"), ("--config={}",), ("config={}",)])
def test_other_files_behind_the_same_argument_stay(tmp_path: Path, form: tuple[str, ...]) -> None:
    (tmp_path / "exp.yaml").write_text(YAML)
    words = [word.format(file) for file in ("base.yaml", "exp.yaml") for word in form]
    holder = "config=" if form == ("config={}",) else "--config"
    found = given(tmp_path, words, {"micro_batch": f"{holder}::training.batch_size"}, micro_batch=1)
    (copy,) = found.copies
    assert copy.file == "exp.yaml"
    assert found.arguments == tuple(word.replace("exp.yaml", copy.path) for word in words)


def test_a_file_by_its_own_name_is_stood_in_for(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(YAML)
    found = given(
        tmp_path, ["x"], {"micro_batch": "train.yaml::training.batch_size"}, micro_batch=1
    )
    assert found.arguments == ("x",)
    assert [(copy.file, copy.stands_in) for copy in found.copies] == [("train.yaml", True)]


def test_nothing_is_copied_where_nothing_changes(tmp_path: Path) -> None:
    assert given(tmp_path, ["x"], {"micro_batch": "none.yaml::a"}) == fields.Given(("x",), {}, ())


SCRIPT: dict[str, Any] = {
    "script": "train.py",
    "args": ["--config", "train.yaml"],
    "flags": {"micro_batch": "--config::training.batch_size"},
}


def study(folder: Path, **changes: Any) -> Path:
    (folder / "train.yaml").write_text(YAML)
    usual: dict[str, Any] = {
        "workload": SCRIPT,
        "search_space": {"micro_batch": [8, 16]},
        "baseline": {},
        "knobs": {"warmup": {"values": [1.0, 2.0], "flag": "train.yaml::training.warmup"}},
    }
    return write_study(folder, **{**usual, **changes})


def test_the_file_says_what_it_is_today(tmp_path: Path) -> None:
    baseline = load(study(tmp_path)).full_baseline()
    assert (baseline["micro_batch"], baseline["warmup"]) == (16, 2.0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"workload": {**SCRIPT, "args": []}}, "micro_batch: the arguments have no --config"),
        (
            {"workload": {**SCRIPT, "args": ["--config", "none.yaml"]}},
            "none.yaml cannot be read: No such file",
        ),
        (
            {"workload": {**SCRIPT, "flags": {"micro_batch": "--config::batch_size"}}},
            "train.yaml: there is no field batch_size; did you mean training.batch_size",
        ),
        (
            {"workload": {**SCRIPT, "flags": {"micro_batch": "$CONFIG::a"}}},
            "the environment has no $CONFIG: have it name the file",
        ),
        (
            {"workload": {**SCRIPT, "flags": {"micro_batch": "train.ini::a"}}},
            "must have --flag, --flag=, key=, $VARIABLE or a file of .yaml",
        ),
        (
            {"workload": {**SCRIPT, "flags": {"micro_batch": "train.yaml::a..b"}}},
            "must have a.field after `::`",
        ),
        (
            {"workload": {**SCRIPT, "flags": {"micro_batch": "--config::training.resume"}}},
            "is null today, and micro_batch must be",
        ),
        ({"baseline": {"micro_batch": 8}}, "is 8, but --config::training.batch_size is 16 today"),
        (
            {"knobs": {"own": {"values": [1, 2], "flag": "train.yaml::training.name"}}},
            "is '8' today, and the values are each a number",
        ),
    ],
)
def test_what_a_file_does_not_say_is_told_with_its_place(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(SpecError) as refused:
        load(study(tmp_path, **changes))
    assert told in str(refused.value)
    assert "study.yaml:" in str(refused.value)


def test_what_the_user_says_it_comes_to(tmp_path: Path) -> None:
    workload = {**SCRIPT, "flags": {"micro_batch": "--config::training.resume"}}
    spec = load(study(tmp_path, workload=workload, baseline={"micro_batch": 8}))
    assert spec.full_baseline()["micro_batch"] == 8


def best(folder: Path, chosen: dict[str, Any]) -> BestConfig:
    spec = load(study(folder))
    knobs = {**spec.full_baseline(), **chosen}
    script = script_of(spec, knobs, folder, 2)
    return BestConfig(knobs=knobs, world_size=2, throughput={}, script=script)


def test_the_job_is_run_with_the_same_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = best(tmp_path, {"micro_batch": 8, "warmup": 1.0})
    job = script_job(config, ["python", "train.py", "--config", "train.yaml"], {})
    path = Path(job.command[3])
    assert path.is_relative_to(tmp_path / ".autotune")
    assert settings.read(path.read_text(), ".yaml", "training.batch_size") == 8
    order = Order.from_text(job.environment[VARIABLE])
    by_name = {copy.file: copy for copy in order.copies}
    standing_in = by_name[str(tmp_path / "train.yaml")]
    assert [copy.stands_in for copy in order.copies] == [False, True]
    assert Path(standing_in.path).read_text() == YAML.replace("warmup: 2.0", "warmup: 1.0")
    assert (tmp_path / "train.yaml").read_text() == YAML
    with pytest.raises(BadInput, match="have no --config"):
        script_job(config, ["python", "train.py"], {})


def test_copy_that_stands_in_does_not_reach_a_python_without_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["python", "-E", "train.py", "--config", "train.yaml"]
    with pytest.raises(BadInput, match="leave out PYTHONPATH"):
        script_job(best(tmp_path, {"warmup": 1.0}), command, {})
    job = script_job(best(tmp_path, {"micro_batch": 8}), command, {})
    assert job.command[-1] != "train.yaml", "named by an argument"


def ran(config: BestConfig, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a job with a configuration, to its end."""
    job = script_job(config, command, {"PYTHONPATH": str(Path(__file__).parents[2])})
    return subprocess.run(
        job.command,
        env={**os.environ, **job.environment},
        capture_output=True,
        text=True,
        check=True,
    )


JOB = """
import os, torch
os.chdir("/")
print(open({file!r}).read().splitlines()[9])
weight = torch.nn.Parameter(torch.zeros(1))
weight.sum().backward()
torch.optim.SGD([weight], lr=0.1).step()
"""


def test_a_job_reads_the_copy_and_is_told_of_what_it_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = best(tmp_path, {"micro_batch": 8, "warmup": 1.0})
    (tmp_path / "train.py").write_text(JOB.format(file=str(tmp_path / "train.yaml")))
    command = [sys.executable, "train.py", "--config", "train.yaml"]
    found = ran(config, command)
    assert found.stdout == "  warmup: 1.0\n"
    assert f"autotune: {tmp_path / 'train.yaml'}: has not been read" in found.stderr, "of --config"
    assert found.stderr.count("autotune:") == 1


INCLUDING = """
import sys, torch, yaml
from pathlib import Path

class Loader(yaml.SafeLoader):
    pass

def include(loader, node):
    with open(Path(loader.name).parent / node.value) as file:
        return yaml.load(file, Loader)

Loader.add_constructor("!include", include)
with open(sys.argv[-1]) as file:
    config = yaml.load(file, Loader)
print([config["bs"], config["model"], config["data"]])
Path(sys.argv[-1]).with_name("models.yaml").read_text()
weight = torch.nn.Parameter(torch.zeros(1))
weight.sum().backward()
torch.optim.SGD([weight], lr=0.1).step()
"""


@pytest.mark.parametrize("file", ["conf/exp/train.yaml", "{}/conf/exp/train.yaml"])
def test_what_a_settings_file_includes_is_found_from_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = file.format(tmp_path)
    Path(file).parent.mkdir(parents=True)
    text = "bs: 8\nmodel: !include models.yaml\ndata: !include ../data.yaml\n"
    Path(file).write_text(text)
    Path("conf/exp/models.yaml").write_text("width: 4\n")
    Path("conf/data.yaml").write_text("path: x\n")
    Path("train.py").write_text(INCLUDING)
    workload = {
        "script": "train.py",
        "args": ["--config", file],
        "flags": {"micro_batch": f"{file}::bs"},
    }
    spec = load(
        write_study(
            tmp_path,
            workload=workload,
            baseline={},
            search_space={"micro_batch": [8, 16]},
            objective={"global_batch_size": "free"},
        )
    )
    knobs = {**spec.full_baseline(), "micro_batch": 16}
    config = BestConfig(
        knobs=knobs, world_size=1, throughput={}, script=script_of(spec, knobs, tmp_path, 1)
    )
    command = [sys.executable, "train.py", "--config", file]
    found = ran(config, command)
    assert found.stdout == "[16, {'width': 4}, {'path': 'x'}]\n"
    assert not found.stderr
    assert Path(file).read_text() == text
    assert sorted(path.name for path in Path(file).parent.iterdir()) == [
        "models.yaml",
        "train.yaml",
    ]


def test_formats_list_what_they_cannot_say(tmp_path: Path) -> None:
    config = best(tmp_path, {"micro_batch": 8, "warmup": 1.0})
    for said in (argv(config), env(config)):
        assert (said.text, said.unsaid) == ("", {"micro_batch": 8, "warmup": 1.0})


def test_settings_in_files_are_tried_by_what_names_them() -> None:
    found = flags.fields("train.yaml", YAML, ["-v", "--config", "./train.yaml"], {})
    seen = SurveyResult(steps=1, micro_batch=16, accumulation_steps=1, options=tuple(found))
    assert [trial.option.flag for trial in flags.candidates(seen)["micro_batch"]][:2] == [
        "--config::training.batch_size",
        "train.yaml::training.batch_size",
    ], "evaluation has a batch size of its own"
    hydra = flags.fields("c.json", '{"bs": 4}', ["config=c.json"], {"C": "c.json"})
    assert [option.flag for option in hydra] == ["config=::bs", "$C::bs", "c.json::bs"]


def test_an_argument_names_the_last_of_its_files() -> None:
    words = ["fit", "--config", "base.yaml", "--config", "exp.yaml"]
    base, exp = (
        [one.flag for one in flags.fields(file, "bs: 4", words, {})]
        for file in ("base.yaml", "./exp.yaml")
    )
    assert base == ["base.yaml::bs"]
    assert exp == ["--config::bs", "./exp.yaml::bs"]


READER = """
import io, json, os, sys
from pathlib import Path
from autotune.worker.inject.settings_copies import SettingsCopies
from autotune.worker.protocol import FileCopy
held = [FileCopy("a/c.json", sys.argv[1], "", True), FileCopy("-", sys.argv[2], "")]
copies = SettingsCopies(held)
copies.begin()
before = copies.unread()
Path("a/c.json").exists()
read = [open("a/c.json").read(), Path("a/c.json").absolute().read_text()]
with io.open(os.fsencode("a/../a/c.json"), mode="rb") as file:
    read.append(file.read().decode())
with open("a/c.json", opener=lambda path, flags: os.open(path, flags)) as file:
    read += [file.read(), file.name]
os.chdir("b")
read.append(open("c.json").read())
os.chdir("..")
between = copies.unread()
Path(sys.argv[2]).read_text()
Path("a/c.json").write_text("mine")
print(json.dumps([before, read, between, copies.unread()]))
"""


def test_whoever_opens_the_file_gets_the_copy(tmp_path: Path) -> None:
    for name in ("a/c.json", "b/c.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    first, second = tmp_path / "of" / "first.json", tmp_path / "of" / "second.json"
    for path in (first, second):
        settings_copies.write(FileCopy("", str(path), f"copy of {path.name}"))
    found = subprocess.run(
        [sys.executable, "-c", READER, str(first), str(second)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    before, read, between, after = json.loads(found.stdout)
    assert before == ["-", "a/c.json"]
    assert read == ["copy of first.json"] * 4 + ["a/c.json", "b/c.json"]
    assert between == ["-"]
    assert after == []
    assert (tmp_path / "a/c.json").read_text() == "mine", "what is written goes where it belongs"
    assert first.read_text() == "copy of first.json"
    assert not [path for path in first.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--config", f"{'x' * 300}.yaml"], "cannot be read: File name too long"),
        (["--config", "a.yaml/b.yaml"], "a.yaml/b.yaml cannot be read: "),
        (["--config="], "cannot be read: Is a directory"),
    ],
)
def test_file_that_cannot_be_looked_at_is_told_with_its_line(
    tmp_path: Path, args: list[str], told: str
) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    workload = {"script": "train.py", "args": args, "flags": {"micro_batch": "--config::a.b"}}
    study = write_study(
        tmp_path, workload=workload, baseline={}, search_space={"freeze_gc": [True]}
    )
    with pytest.raises(
        SpecError, match=r"study\.yaml:\d+: workload\.flags.micro_batch: "
    ) as refused:
        load(study)
    assert told in str(refused.value)


def test_variable_that_is_no_text_is_told_with_its_line(tmp_path: Path) -> None:
    workload = {"script": "train.py", "flags": {"micro_batch": "$CONFIG::a.b"}}
    study = write_study(tmp_path, workload=workload, baseline={}, env={"CONFIG": 123})
    with pytest.raises(SpecError, match=r"study\.yaml:\d+: env\.CONFIG: must be string"):
        load(study)
