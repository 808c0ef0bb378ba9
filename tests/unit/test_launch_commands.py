"""A launch command taken apart by the parser of its launcher."""

import pytest

from autotune.cli.running import _path_and_command
from autotune.config.document import parse
from autotune.errors import BadInput
from autotune.standalone.command import Launched, taken_apart
from autotune.standalone.scripted import _text


@pytest.mark.parametrize(
    ("command", "launched"),
    [
        ("torchrun --nproc-per-node 8 train.py --lr 1", ("train.py", False, ("--lr", "1"), 8)),
        ("torchrun --nnodes 2 --nproc_per_node=4 a/b.py", ("a/b.py", False, (), 8)),
        ("torchrun --nnodes 1:4 --nproc-per-node 2 a.py -m", ("a.py", False, ("-m",), 8)),
        ("torchrun --nproc-per-node gpu -m pkg.train --x", ("pkg.train", True, ("--x",), None)),
        ("python -m torch.distributed.run --nproc-per-node 2 a.py", ("a.py", False, (), 2)),
        ("python3.11 -u -X dev train.py --a", ("train.py", False, ("--a",), 1)),
        ("python -m pkg.train key=1", ("pkg.train", True, ("key=1",), 1)),
        ("./train.py --a", ("./train.py", False, ("--a",), 1)),
        ("uv run torchrun --nproc-per-node 2 a.py", ("a.py", False, (), 2)),
        ("accelerate launch --num_processes 2 a.py --b", ("a.py", False, ("--b",), 2)),
        ("deepspeed --num_gpus 4 a.py --steps", ("a.py", False, ("--steps",), 4)),
        ("deepspeed --include localhost:0,1 a.py", ("a.py", False, (), 2)),
    ],
)
def test_what_a_command_launches(command, launched):
    assert taken_apart(command.split()) == Launched(*launched)


def test_arguments_are_kept_as_they_are():
    odd = ["--text", "a\nb", "$(id)", "'\"", "--", "-x", ""]
    assert taken_apart(["python", "train.py", *odd]).args == tuple(odd)


def test_variables_that_a_command_sets_are_set():
    found = taken_apart(["env", "A=1", "B=x=y", "python", "train.py", "C=2"])
    assert found.env == {"A": "1", "B": "x=y"}
    assert found.args == ("C=2",)
    mixed = ["accelerate", "launch", "--num_processes", "1", "--mixed_precision", "bf16", "a.py"]
    assert taken_apart(mixed).env == {"ACCELERATE_MIXED_PRECISION": "bf16"}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("make train", "no training script"),
        ("torchrun --nproc-per-nod 2", "torchrun does not take that"),
        ("accelerate test", "only `accelerate launch`"),
        (
            "deepspeed --exclude localhost:0 a.py",
            "deepspeed is told --exclude localhost:0: how many",
        ),
        ("deepspeed --include a@b:0,1 a.py", "deepspeed is told --include a@b:0,1: how many"),
        ("python -c pass", "no script"),
    ],
)
def test_what_is_no_launch_of_a_script_is_told(command, told):
    with pytest.raises(BadInput, match=told):
        taken_apart(command.split())


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ([], ("study.yaml", [])),
        (["my-study"], ("my-study", [])),
        (["a.yml"], ("a.yml", [])),
        (["./train.py"], ("study.yaml", ["./train.py"])),
        (["python", "train.py"], ("study.yaml", ["python", "train.py"])),
        (["a.yaml", "python", "train.py"], ("a.yaml", ["python", "train.py"])),
    ],
)
def test_a_study_file_and_a_command_are_told_apart(words, taken):
    path, command = _path_and_command(words)
    assert (str(path), command) == taken


@pytest.mark.parametrize(
    "word",
    [
        *(".5", ".1e3", ".inf", ".nan", ".", "..", "./a.py", "../b", "/c", "a.b", "yes", "~", "1"),
        *("ü", "💥", "a: b", "#", "", "- x", "'", '"', "a\nb", "\\"),
    ],
)
def test_words_are_read_again_as_they_were_written(word):
    assert parse(f"args: [{_text(word)}]", "a.yaml").data["args"] == [word]


ACCELERATE = "distributed_type: {kind}\nmixed_precision: {precision}\nnum_processes: 4\n"


def test_what_accelerate_reads_in_its_file_counts(tmp_path):
    file = tmp_path / "accelerate.yaml"
    file.write_text(ACCELERATE.format(kind="MULTI_GPU", precision="bf16"))
    command = ["accelerate", "launch", "--config_file", str(file), "a.py"]
    found = taken_apart(command)
    assert (found.workers, found.env) == (4, {"ACCELERATE_MIXED_PRECISION": "bf16"})
    told = taken_apart([*command[:-1], "--num_processes", "2", "--mixed_precision", "no", "a.py"])
    assert (told.workers, told.env) == (2, {"ACCELERATE_MIXED_PRECISION": "no"})


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [
        ("", "FSDP", "distributed_type: FSDP"),
        ("", "DEEPSPEED", "distributed_type: DEEPSPEED"),
        ("--use_fsdp", "NO", "--use_fsdp"),
        ("--dynamo_backend inductor", "NO", "dynamo_backend: inductor"),
    ],
)
def test_what_torchrun_would_not_do_is_refused(words, kind, told, tmp_path):
    file = tmp_path / "accelerate.yaml"
    file.write_text(ACCELERATE.format(kind=kind, precision="no"))
    with pytest.raises(BadInput, match=told):
        taken_apart(["accelerate", "launch", "--config_file", str(file), *words.split(), "a.py"])
