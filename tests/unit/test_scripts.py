"""Scripts in study.yaml, their arguments, and the user's own job: what needs no rank."""

import dataclasses
import os
import shlex
import subprocess
import sys
import venv
from collections import UserDict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import autotune
from autotune.config import StudySpec, arguments, load
from autotune.config.scripts import ScriptWorkload
from autotune.config.secrets_withheld import as_stored
from autotune.errors import BadInput, SpecError
from autotune.export.best import BestConfig
from autotune.export.tuned_job import script_job, script_of
from autotune.runs.study_setup import resources
from autotune.worker import inject
from autotune.worker.inject.batch_samples import samples, samples_given, samples_returned
from autotune.worker.inject.changes import DDP, SHARDING
from autotune.worker.inject.job_order import IN_RANK, VARIABLE, Order, runs
from autotune.worker.inject.speed_report import ADDRESS
from autotune.worker.protocol import Script
from autotune.worker.python_command import Program
from search_spaces import defaults
from tests.support.steering import write_study

SCRIPT = {
    "script": "train.py",
    "args": ["--batch-size", "16", "--bf16"],
    "flags": {"micro_batch": "--batch-size"},
}


@pytest.mark.parametrize(
    ("given", "flag", "value", "expected"),
    [
        (["--n", "1"], "--n", 2, ["--n", "2"]),
        (["--n=1", "x"], "--n", 2, ["--n=2", "x"]),
        (["-n1", "x"], "-n", 2, ["-n2", "x"]),
        (["--n", "1", "--n", "3"], "--n", 2, ["--n", "2", "--n", "2"]),
        (["x"], "--n", 2, ["x", "--n", "2"]),
        (["--nn", "1"], "--n", 2, ["--nn", "1", "--n", "2"]),
        (["data.n=1", "m.n=1"], "data.n=", 2, ["data.n=2", "m.n=1"]),
        ([], "data.n=", 2, ["data.n=2"]),
        (["--on", "x"], "--on", False, ["x"]),
        (["x"], "--on", True, ["x", "--on"]),
        (["--on"], "--on", True, ["--on"]),
        (["--on=true"], "--on", False, ["--on=false"]),
        (["--on", "False", "x"], "--on", True, ["--on", "True", "x"]),
        (["--on=false"], "--on", True, ["--on=true"]),
        (["--on", "no", "x"], "--on", True, ["--on", "yes", "x"]),
        (["--on", "0"], "--on", True, ["--on", "1"]),
        (["--on=OFF"], "--on", True, ["--on=ON"]),
        (["m.on=Yes"], "m.on=", False, ["m.on=No"]),
        (["m.on=True"], "m.on=", False, ["m.on=False"]),
        (["m.on=True"], "m.on=", "full", ["m.on=full"]),
        (["--on", "--b"], "--on", "False", ["--on", "False", "--b"]),
        (["--on", "--", "x"], "--on", "False", ["--on", "False", "--", "x"]),
        (["--on", "--b", "--on", "True"], "--on", "no", ["--on", "no", "--b", "--on", "no"]),
        (["--n", "-1", "x"], "--n", 2, ["--n", "2", "x"]),
        (["--to", "-O3", "x"], "--to", "-O2", ["--to", "-O2", "x"]),
        (["x", "$(touch y)", "a\nb"], "$N", 2, ["x", "$(touch y)", "a\nb"]),
        (["x"], "--on/--off", True, ["x", "--on"]),
        (["--on", "x"], "--on/--off", True, ["--on", "x"]),
        (["--on", "x"], "--on/--off", False, ["x", "--off"]),
        (["--off", "--", "x"], "--on/--off", True, ["--on", "--", "x"]),
        (["x"], "/--off", False, ["x", "--off"]),
        (["--off", "x"], "/--off", True, ["x"]),
    ],
)
def test_arguments_are_changed_where_they_are(
    given: list[str], flag: str, value: object, expected: list[str]
) -> None:
    assert list(arguments.changed(given, {"k": flag}, {"k": value})) == expected


def test_variables_are_no_arguments() -> None:
    assert arguments.variables({"a": "$A_B", "b": "--b"}, {"a": True, "b": 1}) == {"A_B": "true"}


@pytest.mark.parametrize(
    ("given", "flag", "value"),
    [
        (["--n", "1"], "--n", "1"),
        (["--n=1", "--n", "2"], "--n", "2"),
        (["--n", "2", "--n=1"], "--n", "1"),
        (["n=3"], "n=", "3"),
        (["x"], "--n", None),
        (["--n"], "--n", None),
    ],
)
def test_arguments_are_read(given: list[str], flag: str, value: str | None) -> None:
    assert arguments.given(given, flag) == value


def test_number_behind_one_letter_is_its_value() -> None:
    words = ["-b16", "-vv", "-1", "-abc", "-b8x", "-xb8", "--b8"]
    assert list(arguments.typed(words)) == [("-b", 16)]


def study(folder: Path, workload: dict[str, Any], **changes: Any) -> Path:
    fields: dict[str, Any] = {
        "search_space": {"micro_batch": [8, 16], "bucket_cap_mb": [5, 25]},
        "baseline": {},
        "objective": {"global_batch_size": "free"},
    }
    return write_study(folder, workload=workload, **{**fields, **changes})


def test_the_baseline_is_what_the_arguments_say(tmp_path: Path) -> None:
    spec = load(study(tmp_path, SCRIPT))
    assert isinstance(spec.workload, ScriptWorkload)
    assert spec.full_baseline() == {**defaults(), "micro_batch": 16}


@pytest.mark.parametrize(
    ("knob", "text", "expected"),
    [
        ("micro_batch", "064", 64),
        ("micro_batch", "08", 8),
        ("micro_batch", "+8", 8),
        ("micro_batch", "1_024", 1024),
        ("bucket_cap_mb", "1e1", 10.0),
        ("pin_memory", "on", True),
        ("precision", "bf16", "bf16"),
    ],
)
def test_text_of_an_argument_is_what_a_script_reads_in_it(
    tmp_path: Path, knob: str, text: str, expected: object
) -> None:
    workload = {"script": "train.py", "args": [f"--a={text}"], "flags": {knob: "--a"}}
    spec = load(study(tmp_path, workload, search_space={knob: [expected]}))
    assert spec.full_baseline()[knob] == expected


@pytest.mark.parametrize("text", ["2024-99-99", "0x10", "1:30", "[8", "null", "nan"])
def test_text_that_is_no_number_is_no_batch(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError, match=r"args do not say what --batch-size is today"):
        load(study(tmp_path, {**SCRIPT, "args": [f"--batch-size={text}"]}))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--pin", "--lr", "1"], True),
        (["--lr", "1", "--pin"], True),
        (["--pin", "[x"], True),
        (["--pin", "False"], False),
        (["--pin", "off"], False),
        (["--pin", "0"], False),
        (["--pin=1"], True),
        (["--lr", "1"], False),
    ],
)
def test_what_follows_a_switch_is_no_value_of_it(
    tmp_path: Path, given: list[str], expected: bool
) -> None:
    workload = {"script": "train.py", "args": given, "flags": {"pin_memory": "--pin"}}
    spec = load(study(tmp_path, workload, search_space={"pin_memory": [False, True]}))
    assert spec.full_baseline()["pin_memory"] is expected


@pytest.mark.parametrize(
    ("workload", "changes", "told"),
    [
        ({}, {}, "workload.name: is missing; give one of name, script, module, command"),
        ({"script": "a.py", "module": "b"}, {}, "workload.module: does not go with script"),
        ({"script": "a.py", "args": {"x": 1}}, {}, "workload.args: must be a list"),
        (
            {"name": "gpt", "flags": {"micro_batch": "--b"}},
            {},
            "workload.flags: is for scripts only",
        ),
        ({**SCRIPT, "flags": {"micro": "--b"}}, {}, "no such knob; did you mean 'micro_batch'"),
        (
            {**SCRIPT, "flags": {"micro_batch": "b; rm"}},
            {},
            "must be --flag, --flag=, key= or $VARIABLE",
        ),
        ({**SCRIPT, "flags": {}}, {}, "search_space.micro_batch: cannot be changed from outside"),
        ({**SCRIPT, "args": []}, {}, "workload.args do not say what --batch-size is today"),
        (
            {**SCRIPT, "args": ["--batch-size 8"]},
            {},
            "'--batch-size 8' is one word to the script; write '--batch-size', '8'",
        ),
        (
            {**SCRIPT, "args": ["--batch-size 8"]},
            {"baseline": {"micro_batch": 8}},
            "flags.micro_batch: '--batch-size 8' is one word to the script; write",
        ),
        (SCRIPT, {"baseline": {"micro_batch": 8}}, "is 8, but workload.args say 16"),
        (
            {"script": "train.py", "flags": {"pin_memory": "$PIN"}},
            {"search_space": {"pin_memory": [False, True]}},
            "env does not say what $PIN is today",
        ),
        (
            {"script": "train.py", "flags": {"pin_memory": "$PIN"}},
            {"search_space": {"pin_memory": [False, True]}, "env": {"PIN": "1"}},
            "env does not say what $PIN is today",
        ),
        (
            {"script": "train.py", "flags": {"micro_batch": "$BS"}},
            {"baseline": {"micro_batch": 8}, "env": {"BS": "16"}},
            "baseline.micro_batch: is 8, but env says 16; make them agree",
        ),
        (
            {"script": "train.py", "flags": {"pin_memory": "data.pin="}},
            {"search_space": {"pin_memory": [False, True]}},
            "workload.args do not say what data.pin= is today",
        ),
        (SCRIPT, {"search_space": {"precision": ["fp32", "fp16"]}}, "cannot be fp16 from outside"),
        (
            SCRIPT,
            {"search_space": {"precision": ["fp32", "bf16"]}, "baseline": {"precision": "bf16"}},
            "cannot be changed from outside a script that has bf16 by itself",
        ),
        (
            SCRIPT,
            {"objective": {"global_batch_size": "fixed"}},
            "objective.global_batch_size: stays only if the script accumulates more",
        ),
        (
            SCRIPT,
            {"objective": {"global_batch_size": "fixed"}, "search_space": {"micro_batch": [8]}},
            "objective.global_batch_size: stays only if the script accumulates more",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, workload: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(SpecError) as refused:
        load(study(tmp_path, workload, **changes))
    assert told in str(refused.value)
    assert "study.yaml:" in str(refused.value)


def test_present_value_is_that_of_the_variable(tmp_path: Path) -> None:
    workload = {"script": "train.py", "flags": {"micro_batch": "$BS", "pin_memory": "$PIN"}}
    changes = {"env": {"BS": "16", "PIN": "True"}, "objective": {"global_batch_size": "free"}}
    spec = load(study(tmp_path, workload, search_space={"micro_batch": [16, 32]}, **changes))
    assert spec.full_baseline()["micro_batch"] == 16
    assert spec.full_baseline()["pin_memory"] is True


def test_stored_study_whose_variable_says_otherwise_is_read() -> None:
    stored = {
        "name": "a",
        "workload": {"script": "train.py", "flags": {"micro_batch": "$BS"}},
        "search_space": {"micro_batch": [8, 32]},
        "baseline": {"micro_batch": 8},
        "objective": {"global_batch_size": "free"},
        "env": {"BS": "16"},
    }
    assert as_stored(stored).full_baseline()["micro_batch"] == 8


TRAIN, MODULE, TORCHRUN = (
    Program("train.py"),
    Program("pkg.train", is_module=True),
    Program("torchrun"),
)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "train.py", "-m", "x"], [TRAIN]),
        (["python", "-u", "-X", "dev", "src/train.py"], [TRAIN]),
        (["python", "-um"], []),
        (["python", "-m", "pkg.train", "--x"], [MODULE]),
        (["python", "-W", "ignore", "-m", "pkg.train"], [MODULE]),
        (["python", "/bin/torchrun", "train.py"], [TORCHRUN]),
        (["python", "-c", "train.py"], []),
        (["python"], []),
    ],
)
def test_what_a_command_runs(command: list[str], expected: list[Program]) -> None:
    assert [one for one in (TRAIN, MODULE, TORCHRUN) if runs(command, one)] == expected


def best(**script: Any) -> BestConfig:
    told = {
        "target": "src/train.py",
        "is_module": False,
        "flags": {"micro_batch": "--b", "accumulation_steps": "$STEPS"},
        "turned": {"micro_batch": 32, "accumulation_steps": 2},
        "changes": ["bucket_cap_mb"],
        "digest": None,
    }
    found = {**defaults(), "bucket_cap_mb": 5}
    return BestConfig(found, 2, {}, script={**told, **script} if script is not None else None)


def test_the_users_own_command_is_what_was_tuned() -> None:
    command = ["torchrun", "--nproc-per-node", "2", "src/train.py", "--b", "8", "--b=9"]
    job = script_job(best(), command, {"PYTHONPATH": "/mine"})
    assert job.command == (
        "torchrun",
        "--nproc-per-node",
        "2",
        "src/train.py",
        "--b",
        "32",
        "--b=32",
    )
    assert job.environment["STEPS"] == "2"
    assert job.environment["PYTHONPATH"].endswith(os.pathsep + "/mine")
    order = Order.from_text(job.environment["AUTOTUNE_RUN"])
    assert (order.script.name, order.script.changes) == ("train.py", ("bucket_cap_mb",))
    assert order.knobs["bucket_cap_mb"] == 5


def test_variables_of_the_study_are_the_jobs_too() -> None:
    config = best(env={"NCCL_DEBUG": "WARN", "MODE": "fast"})
    job = script_job(config, ["python", "src/train.py"], {"MODE": "slow"})
    assert job.environment["NCCL_DEBUG"] == "WARN"
    assert "MODE" not in job.environment
    assert "MODE is slow, and was fast in the trials" in job.differences


def test_what_looks_secret_is_in_no_best_yaml(tmp_path: Path) -> None:
    workload = {"script": "train.py"}
    env = {"NCCL_DEBUG": "WARN", "HF_TOKEN": "hf_x"}
    spec = StudySpec(name="a", workload=workload, search_space={"bucket_cap_mb": [5, 25]}, env=env)
    found = script_of(spec, {**spec.full_baseline(), "bucket_cap_mb": 5}, tmp_path, 2)
    assert found is not None
    assert found["env"] == {"NCCL_DEBUG": "WARN"}


def test_the_allocator_keeps_what_the_job_tells_it() -> None:
    config = dataclasses.replace(best(), knobs={**best().knobs, "expandable_segments": True})
    own = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:False"}
    found = script_job(config, ["python", "src/train.py"], own).environment[
        "PYTORCH_CUDA_ALLOC_CONF"
    ]
    assert found == "max_split_size_mb:128,expandable_segments:True"


def test_the_allocator_keeps_what_the_study_tells_it() -> None:
    config = best(env={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"})
    config = dataclasses.replace(config, knobs={**config.knobs, "expandable_segments": True})
    found = script_job(config, ["python", "src/train.py"], {}).environment
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:128,expandable_segments:True"


def test_arguments_for_all_ranks_are_told_to_be_for_as_many() -> None:
    config = best(global_flags={"flags": ["--b"], "ranks": 8})
    job = script_job(config, ["python", "src/train.py"], {})
    assert "--b counts what all ranks have together: here for the 8" in "; ".join(job.differences)


def test_another_command_is_refused() -> None:
    with pytest.raises(BadInput, match=r"the command does not run train\.py"):
        script_job(best(), ["torchrun", "other.py"], {})


def test_a_changed_script_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    job = script_job(best(digest="0" * 64), ["python", str(tmp_path / "train.py")], {})
    assert job.differences == (f"{tmp_path}/train.py has changed since it was tuned",)


@dataclass
class Batch:
    """Batch of a data set that has a class of its own for it."""

    inputs: torch.Tensor
    targets: torch.Tensor


class Graph:
    """Sample of a data set that has a class of its own for each."""

    def __len__(self) -> int:
        return 9


class Pair(NamedTuple):
    source: Any
    target: Any


class Pictures(NamedTuple):
    pixels: torch.Tensor
    shape: tuple[int, int]


class Ragged:
    """Batch of rows of different lengths."""

    @property
    def shape(self) -> tuple[int, ...]:
        raise RuntimeError("a ragged batch has none")


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.zeros(4, 3), 4),
        (torch.zeros(4, 3, dtype=torch.long), 4),
        ([torch.zeros(5, 2), torch.zeros(5)], 5),
        ({"input_ids": torch.ones(2, 8, dtype=torch.long), "mask": torch.ones(2, 8)}, 2),
        (("text", {"x": (torch.zeros(3),)}), 3),
        (["a", "b"], 2),
        (torch.tensor(1.0), 1),
        (([torch.zeros(3, 8, 8)] * 5, [{"boxes": torch.zeros(n, 4)} for n in range(5)]), 5),
        (([torch.zeros(3, 8, 8)], [{"boxes": torch.zeros(2, 4)}]), 1),
        (([torch.zeros(3, 8, 9), torch.zeros(3, 7, 7)], torch.zeros(2)), 2),
        ([{"ids": torch.zeros(9)}, {"ids": torch.zeros(9)}], 2),
        ([{"data": torch.zeros(8, 3)}], 8),
        ([torch.zeros(5), torch.zeros(7), torch.zeros(6)], 3),
        ([torch.zeros(1, 50, dtype=torch.long), torch.zeros(4)], 1),
        ({"x": [[1, 2], [3, 4], [5, 6]]}, 3),
        ([[1, 2, 3], [4, 5, 6]], 2),
        (Batch(torch.zeros(6, 3), torch.zeros(6)), 6),
        ([torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)]), torch.zeros(2)], 2),
        ({"x": torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)])}, 2),
        (pack_sequence([torch.zeros(3), torch.zeros(2)]), 2),
        ([np.zeros((4, 2)), np.zeros(4)], 4),
        ((np.zeros((4, 2)), [1, 2, 3, 4]), 4),
        ([np.zeros(3), np.zeros(5)], 2),
        ([np.float32(3)] * 5, 5),
        ([Graph()] * 3, 3),
        (([Graph()] * 3, [0, 1, 0]), 3),
        (([Graph()] * 3, torch.zeros(3)), 3),
        (([Graph()] * 3, torch.zeros(2, 4)), 2),
        ({"graphs": [Graph()] * 3, "names": ["a", "b"]}, 0),
        (UserDict(input_ids=[[1, 2], [3, 4], [5, 6]]), 3),
        (Pair([1, 2, 3], [4, 5, 6]), 3),
        (Pair("a", "b"), 0),
        (Pictures(torch.zeros(8, 3), (224, 224)), 8),
        ((Pictures(torch.zeros(8, 3), (224, 224)), torch.zeros(8)), 8),
        (Ragged(), 0),
        (["a", None, "c"], 3),
        ([1, 2.0], 2),
        (("text", 3), 0),
        ({"x": "text"}, 0),
        ("text", 0),
        (b"text", 0),
        ([None] * 3, 0),
        (None, 0),
        (3, 0),
        ([], 0),
        ({}, 0),
        (Graph(), 0),
    ],
)
def test_samples_of_a_batch(batch: Any, expected: int) -> None:
    assert samples(batch) == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ([np.zeros((8, 5))] * 4, {}, 8),
        ([[Graph()] * 8], {}, 8),
        ([[Graph()] * 8, ["a", "b"]], {}, 0),
        ([["a", "b", "c"]], {"longest": 512, "pads": True}, 3),
        (["a"], {}, 0),
        ([torch.zeros(4, 2), None], {"mask": torch.zeros(4)}, 4),
        ([], {"batch": Batch(torch.zeros(6, 3), torch.zeros(6))}, 6),
        ([UserDict(input_ids=torch.zeros(2, 8))], {}, 2),
        ([Graph()], {}, 0),
        ([Graph(), torch.zeros(4)], {}, 4),
        ([], {}, 0),
    ],
)
def test_samples_that_a_model_is_given(
    args: list[Any], kwargs: dict[str, Any], expected: int
) -> None:
    assert samples_given(args, kwargs) == expected


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (torch.tensor(1.0), 0),
        ((torch.tensor(1.0), torch.zeros(7, 2)), 7),
        ({"loss": torch.tensor(1.0), "logits": torch.zeros(7, 2)}, 7),
        (Graph(), 0),
    ],
)
def test_samples_that_a_model_returns(result: Any, expected: int) -> None:
    assert samples_returned(result) == expected


def test_what_all_ranks_have_together_is_told_the_script_so():
    workload = {
        **SCRIPT,
        "flags": {"micro_batch": "--batch", "accumulation_steps": "--steps="},
        "global_flags": ["accumulation_steps"],
    }
    given = {"micro_batch": 4, "accumulation_steps": 2}
    spec = StudySpec.model_validate(
        {
            "name": "a",
            "workload": {**workload, "args": ["--batch", "4", "--steps=16"]},
            "search_space": {"micro_batch": [4, 8], "accumulation_steps": [1, 2]},
            "baseline": given,
        }
    )
    baseline = spec.full_baseline()
    assert baseline["accumulation_steps"] == 2, "of one rank, as the study says"
    chosen = {**baseline, "micro_batch": 8, "accumulation_steps": 1}
    told = spec.workload.recipe(chosen, spec.study_knobs, 8)
    assert told.turned == {"micro_batch": 8, "accumulation_steps": 8}


def test_what_is_added_stands_before_what_is_no_option():
    flags = {"micro_batch": "--batch", "accumulation_steps": "--steps=", "compile": "--compile"}
    knobs = {"micro_batch": 4, "accumulation_steps": 2, "compile": True}
    given = ("--lr", "1", "--", "-x", "--batch")
    assert arguments.changed(given, flags, knobs) == (
        *("--lr", "1", "--batch", "4", "--steps=2", "--compile"),
        *("--", "-x", "--batch"),
    )


def test_console_script_of_a_job_is_the_first_word() -> None:
    config = best(
        target="/env/bin/yolo", flags={"micro_batch": "batch="}, turned={"micro_batch": 32}
    )
    job = script_job(config, ["yolo", "train", "batch=16"], {})
    assert job.command == ("yolo", "train", "batch=32")
    assert runs(["python3", "/env/bin/yolo", "train"], Program("yolo"))


def test_python_that_looks_at_no_variable_is_refused_what_acts_from_outside() -> None:
    with pytest.raises(BadInput, match="leave out PYTHONPATH"):
        script_job(best(), ["python", "-uI", "src/train.py"], {})
    assert script_job(best(changes=[]), ["python", "-I", "src/train.py"], {}).command[1] == "-I"


@pytest.mark.parametrize(
    "before",
    ["env A=1 python -I", "nohup python3.11 -E -u", "timeout 10 /env/bin/python -X dev -S"],
)
def test_python_behind_another_program_is_looked_at_as_well(before: str) -> None:
    command = [*before.split(), "src/train.py"]
    with pytest.raises(BadInput, match="leave out PYTHONPATH"):
        script_job(best(), command, {})
    assert script_job(best(changes=[]), command, {}).command[: len(command)] == tuple(command)
    with pytest.raises(BadInput, match="leave out PYTHONPATH"):
        script_job(best(changes=[]), command, {}, watched=True)


def test_option_of_the_script_is_none_of_python() -> None:
    job = script_job(best(), ["python", "-u", "src/train.py", "-I"], {})
    assert job.command[:4] == ("python", "-u", "src/train.py", "-I")


@pytest.mark.parametrize(
    ("workers", "launch", "started"),
    [
        (1, None, "python"),
        (2, None, "torchrun"),
        (None, None, "torchrun"),
        (1, "torchrun", "torchrun"),
    ],
)
def test_what_starts_a_script_goes_by_its_ranks_unless_it_is_said(workers, launch, started) -> None:
    workload = ScriptWorkload(script="train.py", launch=launch)
    assert workload.launched_by(workers) == started


def test_plain_python_is_one_rank_whatever_the_machine_has(tmp_path: Path) -> None:
    workload = {"script": "train.py", "launch": "python", "python_options": ["-O"]}
    told = {"resources": {}, "search_space": {"cpu_threads": [0, 2]}, "baseline": {}}
    spec = load(write_study(tmp_path, workload=workload, **told))
    assert resources(spec).workers == 1


@pytest.mark.parametrize(
    ("workload", "asked", "shares"),
    [
        ({"script": "train.py"}, {"workers": 4}, True),
        ({"script": "train.py"}, {"workers": 4, "cpus_per_worker": 1}, False),
        ("gpt", {"workers": 4}, False),
    ],
)
def test_ranks_share_cpus_where_a_script_is_run_as_its_owner_runs_it(
    tmp_path: Path, workload: object, asked: dict[str, int], shares: bool
) -> None:
    space = {"search_space": {"cpu_threads": [0, 2]}, "baseline": {}}
    spec = load(write_study(tmp_path, workload=workload, resources=asked, **space))
    assert resources(spec).shares_cpus == shares


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A python for which autotune is not installed."""
    folder = tmp_path_factory.mktemp("other")
    venv.create(folder)
    return folder / "bin/python"


def run_order(
    python: Path, folder: Path, words: str, changes: list[str], variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run python as in a job that is to have these changes; this one has autotune."""
    knobs = {**defaults(), "attention": "flash3"}
    order = Order(Script("train.py", changes=tuple(changes)), knobs)
    paths = [str(Path(inject.__file__).parent / "site")]
    paths += [str(Path(autotune.__file__).parents[1])] * (python == Path(sys.executable))
    env = {"PYTHONPATH": os.pathsep.join(paths), VARIABLE: order.to_text()}
    return subprocess.run(
        [python, *shlex.split(words)],
        env=env | variables,
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("words", "changes", "variables", "lost"),
    [
        ("train.py --x", ["bucket_cap_mb"], {}, "changed from outside"),
        ("-u ./train.py train.py", ["bucket_cap_mb"], {"RANK": "0"}, "changed from outside"),
        ("train.py", ["bucket_cap_mb"], {"RANK": "1"}, ""),
        ("train.py", ["bucket_cap_mb"], {"RANK": "8", "LOCAL_RANK": "0"}, "changed from outside"),
        ("train.py", [], {}, ""),
        ("train.py", [], {ADDRESS: "a"}, "watched"),
        ("train.py", ["bucket_cap_mb"], {ADDRESS: "a"}, "changed from outside or watched"),
        ("other.py train.py", ["bucket_cap_mb"], {ADDRESS: "a"}, ""),
        ("-m other train.py", ["bucket_cap_mb"], {}, ""),
    ],
)
def test_job_of_a_python_without_autotune_says_that_nothing_acts(
    tmp_path: Path,
    other_python: Path,
    words: str,
    changes: list[str],
    variables: dict[str, str],
    lost: str,
) -> None:
    for name in ("train.py", "other.py"):
        (tmp_path / name).write_text("print('ran')")
    found = run_order(other_python, tmp_path, words, changes, variables)
    why = "No module named 'autotune'"
    told = f"{other_python} cannot import autotune ({why}): nothing is {lost}\n" if lost else ""
    assert (found.stdout, found.stderr) == ("ran\n", told)


@pytest.mark.parametrize(
    ("local_rank", "told"), [("0", "nothing is changed from outside; the job ends, as"), ("1", "")]
)
def test_ranks_without_autotune_end_where_others_may_exchange_otherwise(
    tmp_path: Path, other_python: Path, local_rank: str, told: str
) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    ranks = {"WORLD_SIZE": "16", "RANK": "8", "LOCAL_RANK": local_rank}
    for name in sorted(DDP | SHARDING):
        found = run_order(other_python, tmp_path, "train.py", [name], ranks)
        assert (found.returncode, found.stdout) == (1, "")
        assert told in found.stderr and bool(found.stderr) is bool(told)
    assert run_order(other_python, tmp_path, "train.py", ["freeze_gc"], ranks).stdout == "ran\n"


@pytest.mark.skipif(bool(find_spec("flash_attn_interface")), reason="there is FlashAttention 3")
@pytest.mark.long
def test_job_in_which_a_change_fails_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    python, names = Path(sys.executable), ["attention", "bucket_cap_mb"]
    alone = run_order(python, tmp_path, "train.py", names, {})
    assert (alone.returncode, alone.stdout) == (0, "ran\n")
    (told,) = alone.stderr.splitlines()
    assert told.startswith("autotune: attention=flash3 ")
    assert told.endswith(": not all is changed from outside")
    ranked = run_order(python, tmp_path, "train.py", names, {"WORLD_SIZE": "2"})
    assert (ranked.returncode, ranked.stdout) == (1, "")
    assert ranked.stderr.startswith(told)


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
@pytest.mark.long
def test_first_rank_says_for_all_what_is_idle(tmp_path: Path, rank: str, lines: int) -> None:
    step = "import torch; torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]).step()"
    (tmp_path / "train.py").write_text(step)
    found = run_order(Path(sys.executable), tmp_path, "train.py", ["bucket_cap_mb"], {"RANK": rank})
    assert found.stderr.count("bucket_cap_mb: has found nothing to act on") == lines
    assert len(found.stderr.splitlines()) == lines


@pytest.mark.parametrize(
    ("words", "changed"),
    [("--multiprocessing-fork", "True"), ("multiprocessing.resource_tracker", "False")],
)
def test_helper_that_inherits_the_variable_of_spawned_ranks_is_not_changed(
    tmp_path: Path, words: str, changed: str
) -> None:
    command = f"-c \"import sys; print('torch' in sys.modules)\" {words}"
    found = run_order(Path(sys.executable), tmp_path, command, ["bucket_cap_mb"], {IN_RANK: "1"})
    assert (found.stdout, found.stderr) == (f"{changed}\n", "")


def test_python_without_autotune_starts_in_a_job_as_ever(
    tmp_path: Path, other_python: Path
) -> None:
    found = subprocess.run(
        [other_python, "-c", "import sys; print('sitecustomize' in sys.modules)"],
        env={"PYTHONPATH": str(Path(inject.__file__).parent / "site")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (found.stdout, found.stderr) == ("True\n", "")
