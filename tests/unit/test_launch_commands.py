"""A launch command taken apart by the parser of its launcher."""

import os
import re
import sys

import pytest

from autotune.cli.running import _path_and_command
from autotune.config.document import parse
from autotune.errors import BadInput
from autotune.standalone import interpreters, rank_launchers
from autotune.standalone.init_script import _text
from autotune.standalone.launch_command import check_devices, taken_apart
from autotune.standalone.launched import NoScript
from autotune.worker import starters


@pytest.mark.parametrize(
    ("command", "launched"),
    [
        ("torchrun --nproc-per-node 8 train.py --lr 1", ("train.py", False, ("--lr", "1"), 8)),
        ("torchrun --nnodes 1:4 --nproc-per-node 2 a.py -m", ("a.py", False, ("-m",), 8)),
        ("torchrun --nproc-per-node gpu -m pkg.train --x", ("pkg.train", True, ("--x",), None)),
        ("python -m torch.distributed.run --nproc-per-node 2 a.py", ("a.py", False, (), 2)),
        ("python3.11 -u -X dev train.py --a", ("train.py", False, ("--a",), 1)),
        ("python -m pkg.train key=1", ("pkg.train", True, ("key=1",), 1)),
        ("python -Ompkg.train -m", ("pkg.train", True, ("-m",), 1)),
        ("./train.py --a", ("./train.py", False, ("--a",), 1)),
        ("nice -n 5 time -p python a.py -n", ("a.py", False, ("-n",), 1)),
        ("timeout -k 5 1h torchrun --nproc-per-node 2 a.py", ("a.py", False, (), 2)),
        ("uv run --with x torchrun --nproc-per-node 2 a.py", ("a.py", False, (), 2)),
        ("poetry run python a.py run", ("a.py", False, ("run",), 1)),
        ("srun -n 1 python a.py", ("a.py", False, (), 1)),
        ("srun --export=ALL --export all -n1 python a.py", ("a.py", False, (), 1)),
        ("deepspeed --num_gpus 4 a.py --steps", ("a.py", False, ("--steps",), 4)),
        ("deepspeed --include localhost:0,1 a.py", ("a.py", False, (), 2)),
    ],
)
def test_what_a_command_launches(command, launched):
    found = taken_apart(command.split())
    assert (found.target, found.is_module, found.args, found.workers) == launched


@pytest.mark.parametrize(
    "manager",
    [
        *("conda run -p ./env", "conda run -n env", "mamba run -n time", "pixi run -e env"),
        *(
            "conda run --prefix=/opt/env",
            "uv run --python python3.11",
            "uv run -p /usr/bin/python3",
        ),
    ],
)
def test_value_of_an_option_is_no_program(manager):
    found = taken_apart([*manager.split(), "python", "a.py"])
    assert (found.target, found.interpreter) == ("a.py", (*manager.split(), "python"))


@pytest.mark.parametrize(
    ("command", "launch", "options"),
    [
        ("python a.py", "python", ()),
        ("python -u -W error -Xdev -OO a.py", "python", ("-u", "-W", "error", "-Xdev", "-OO")),
        ("python -Ompkg", "python", ("-O",)),
        ("torchrun --nproc-per-node 1 a.py", "torchrun", ()),
        ("python -O -m torch.distributed.run a.py", "torchrun", ()),
        ("python -m torch.distributed.launch a.py", "torch.distributed.launch", ()),
        ("python -m torch.distributed.launch --use-env a.py", "torchrun", ()),
        ("deepspeed --num_gpus 2 a.py", "deepspeed", ()),
        ("accelerate launch --cpu a.py", "python", ()),
    ],
)
def test_how_a_command_starts_its_ranks(command, launch, options):
    found = taken_apart(command.split())
    assert (found.launch, found.options) == (launch, options)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nnodes 2 --nproc_per_node=4 a.py",
        "srun -N 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc-per-node 4 a.py",
        "srun -J nice -N 2 torchrun --nnodes 2 --nproc-per-node 4 a.py",
        "srun --job-name=/jobs/time -N 2 torchrun --nnodes 2 --nproc-per-node 4 a.py",
        "deepspeed --num_nodes 2 --num_gpus 4 a.py",
    ],
)
def test_nodes_of_a_command_are_kept(command):
    found = taken_apart(command.split())
    assert (found.workers, found.nodes, found.workers_per_node) == (8, 2, 4)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", (8, 2)),
        ("--num_gpus 2", (4, 2)),
        ("--num_nodes 1", (4, 1)),
        ("--include a", (4, 1)),
        ("--exclude a:0@b:3", (6, 2)),
    ],
)
def test_hosts_of_deepspeed_are_those_of_its_file(tmp_path, options, expected):
    hosts = tmp_path / "hosts"
    hosts.write_text("# ours\na slots=4\nb slots=4\n")
    words = ["deepspeed", "--hostfile", str(hosts), *options.split(), "a.py"]
    found = taken_apart(words)
    assert (found.workers, found.nodes) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a slots=4\nb slots=2\n", r"starts 2, 4 ranks on the hosts of .*: give --num_nodes"),
        ("a 4\n", r"deepspeed does not take .*: Hostfile contains a bad entry"),
    ],
)
def test_hosts_of_deepspeed_that_differ_are_refused(tmp_path, text, told):
    hosts = tmp_path / "hosts"
    hosts.write_text(text)
    with pytest.raises(BadInput, match=told):
        taken_apart(["deepspeed", "--hostfile", str(hosts), "a.py"])


def test_arguments_are_kept_as_they_are():
    odd = ["--text", "a\nb", "$(id)", "'\"", "--", "-x", ""]
    assert taken_apart(["python", "train.py", *odd]).args == tuple(odd)


def test_variables_that_a_command_sets_are_set():
    found = taken_apart(["env", "A=1", "B=x=y", "python", "train.py", "C=2"])
    assert found.env == {"A": "1", "B": "x=y"}
    assert found.args == ("C=2",)


def test_accelerate_on_the_cpu_is_one_process_with_its_settings_in_the_environment(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    words = "accelerate launch --cpu --num_processes 2 --num_machines 1 --mixed_precision bf16 a.py"
    found = taken_apart(words.split())
    assert (found.workers, found.launch) == (1, "python")
    assert found.env["ACCELERATE_USE_CPU"] == "True"
    assert found.env["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert found.env.keys() >= {"OMP_NUM_THREADS", "ACCELERATE_DYNAMO_BACKEND"}
    assert not found.env.keys() & {"RANK", "LOCAL_RANK", "PATH"}


def test_fabric_sets_its_variables_and_starts_ranks_as_torchrun(tmp_path):
    script = tmp_path / "a.py"
    script.touch()
    words = f"fabric run --accelerator cpu --devices 2 --strategy ddp {script} --batch-size 32"
    found = taken_apart(words.split())
    assert (found.workers, found.launch, found.args) == (2, "torchrun", ("--batch-size", "32"))
    assert found.env["LT_DEVICES"] == "2"
    assert found.env["LT_STRATEGY"] == "ddp"
    assert "LT_DEVICES" not in os.environ


@pytest.mark.parametrize("launcher", ["accelerate launch --cpu", "fabric run --accelerator cpu"])
def test_launcher_keeps_the_variables_of_the_command(launcher, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = tmp_path / "a.py"
    script.touch()
    found = taken_apart(["env", "OMP_NUM_THREADS=3", *launcher.split(), str(script)])
    assert found.env["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in os.environ


@pytest.mark.parametrize("launcher", ["torchrun", "python -m torch.distributed.run"])
def test_launcher_takes_its_arguments_from_variables_of_the_command(launcher):
    found = taken_apart(["env", "PET_NPROC_PER_NODE=8", *launcher.split(), "a.py"])
    assert found.workers == 8
    assert "PET_NPROC_PER_NODE" not in os.environ


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("mpirun -np 4 python train.py --bs 3", "torchrun --nproc-per-node 4 train.py --bs 3"),
        ("mpirun -n 1 python -m pkg", "python -m pkg"),
        ("mpiexec python train.py", "torchrun --nproc-per-node N train.py"),
        ("horovodrun -np 4 -H localhost:4 python a.py", "torchrun --nproc-per-node 4 a.py"),
        ("composer -n 2 a.py --x", "torchrun --nproc-per-node 2 a.py --x"),
        ("colossalai run --nproc_per_node 4 a.py", "torchrun --nproc-per-node 4 a.py"),
        ("srun -n4 python a.py", "torchrun --nproc-per-node 4 a.py"),
        (
            "srun --nodes=2 -n 8 --gres gpu:4 python a.py",
            "torchrun --nnodes 2 --nproc-per-node 4 a.py",
        ),
        (
            "srun -N 2 torchrun --nproc-per-node 4 a.py",
            "torchrun --nnodes 2 --nproc-per-node 4 a.py",
        ),
        ("taskset -c 0-3 python a.py", "taskset -c 0-3 autotune init -- python a.py"),
        ("docker run image python a.py --x", "python a.py --x"),
        ("sky launch a.py --x", "torchrun --nproc-per-node N a.py --x"),
        ("deepspeed --num_gpus 2 --no_local_rank a.py", "torchrun --nproc-per-node 2 a.py"),
    ],
)
def test_a_program_that_trials_cannot_follow_is_refused_with_what_to_type(command, instead):
    with pytest.raises(BadInput, match=re.escape(f"`{instead}`")) as caught:
        taken_apart(command.split())
    assert not isinstance(caught.value, NoScript)


def test_a_step_of_a_batch_job_has_the_tasks_of_the_job(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "8")
    with pytest.raises(BadInput, match=r"--nproc-per-node 8 a\.py"):
        taken_apart(["srun", "python", "a.py"])


@pytest.mark.parametrize("command", ["srun python a.py", "srun --ntasks-per-node=1 python a.py"])
def test_step_of_two_nodes_by_its_allocation_is_not_taken_for_one(monkeypatch, command):
    monkeypatch.setenv("SLURM_NNODES", "2")
    with pytest.raises(BadInput, match=r"--nnodes 2 --nproc-per-node 1 a\.py"):
        taken_apart(command.split())


def test_nodes_of_an_allocation_are_those_of_the_torchrun_behind_srun(monkeypatch):
    monkeypatch.setenv("SLURM_NNODES", "2")
    command = "srun --ntasks-per-node=1 torchrun --nnodes 2 --nproc-per-node 4 a.py"
    found = taken_apart(command.split())
    assert (found.workers, found.nodes) == (8, 2)


@pytest.mark.parametrize("option", ["-N 2-4", "--nodes=1-2", "--ntasks=all"])
def test_size_of_a_step_that_is_not_a_number_is_refused(option):
    with pytest.raises(BadInput, match=f"srun is told {option.split()[0]}"):
        taken_apart(["srun", *option.split(), "torchrun", "--nnodes", "2", "a.py"])


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("torchrun --nproc-per-nod 2", "torchrun does not take that"),
        ("torchrun --no-python ./a", "torchrun is told --no-python"),
        ("accelerate test", "only `accelerate launch`"),
        (
            "deepspeed --exclude localhost:0 a.py",
            "deepspeed is told --exclude localhost:0: how many",
        ),
        ("deepspeed --include a@b:0,1 a.py", "deepspeed is told --include a@b:0,1: how many"),
        ("python -c pass", "no script"),
        ("python -i a.py", "must not have -i"),
        ("env -u A python a.py", "env is told -u"),
        ("uv run --env-file .env python a.py", "uv is told --env-file"),
        ("uv --directory /p run python a.py", "uv is told --directory, "),
        ("poetry -C /p run python a.py", "poetry is told -C, "),
        ("conda run --cwd /p -n x python a.py", "conda is told --cwd"),
        ("srun -D /scratch python a.py", "cannot follow: change to that folder"),
        ("srun --chdir=/scratch python a.py", "srun is told --chdir=/scratch"),
        ("srun --export NONE python a.py", "cannot follow: say the variables under"),
        ("srun --export=ALL,A=1 python a.py", "srun is told --export=ALL,A=1"),
        ("srun --container-image=x.sqsh python a.py", "follow: run autotune in that container"),
    ],
)
def test_what_is_no_launch_of_a_script_is_told(command, told):
    with pytest.raises(BadInput, match=re.escape(told)):
        taken_apart(command.split())


def test_devices_that_a_command_chooses_are_none_of_a_study_and_known_to_a_job():
    found = taken_apart(
        ["env", "CUDA_VISIBLE_DEVICES=1", "torchrun", "--nproc-per-node", "2", "a.py"]
    )
    assert (found.workers, found.env) == (2, {"CUDA_VISIBLE_DEVICES": "1"})
    with pytest.raises(BadInput, match="CUDA_VISIBLE_DEVICES=1 autotune init"):
        check_devices(found)


@pytest.mark.parametrize("command", ["make train", "bash run.sh", "mpirun -np 4 ./bench"])
def test_a_command_without_a_script_is_one_of_its_own(command):
    with pytest.raises(NoScript):
        taken_apart(command.split())


def program(folder, name, first_lines):
    path = folder / name
    path.write_text(f"{first_lines}\nprint('trained')\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        (f"#!{sys.executable}", ()),
        ("#!/usr/bin/env python3", ()),
        (f"#!/usr/bin/env -S {sys.executable} -u", ("-u",)),
        (f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''", ()),
    ],
)
def test_a_console_script_is_a_script(lines, options, tmp_path, monkeypatch):
    tool = program(tmp_path, "yolo", lines)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = taken_apart(["yolo", "train", "batch=8"])
    assert (found.target, found.args, found.options) == (str(tool), ("train", "batch=8"), options)
    interpreters.check(found)


def test_manager_is_asked_without_a_change_of_its_project(tmp_path, monkeypatch):
    asks = f'#!/bin/sh\nenv > {tmp_path}/seen\nexec {sys.executable} -c "$4"'
    program(tmp_path, "uv", asks)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    interpreters.check(taken_apart(["uv", "run", "python", "a.py"]))
    seen = (tmp_path / "seen").read_text().splitlines()
    assert "UV_NO_SYNC=1" in seen
    assert "UV_FROZEN=1" not in seen, (
        "uv refuses it beside --locked, UV_LOCKED and, once, --no-sync"
    )


def test_script_that_names_its_packages_itself_is_refused_under_uv(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("import torch\n# /// script\n# dependencies = []\n# ///\n")
    with pytest.raises(BadInput, match=r"install these packages .* give `python a\.py`"):
        taken_apart(["uv", "run", "a.py", "--lr", "1"])
    assert taken_apart(["uv", "run", "python", "a.py"]).target == "a.py"
    assert taken_apart(["conda", "run", "-n", "x", "a.py"]).target == "a.py"


def test_another_interpreter_is_refused(tmp_path, monkeypatch):
    other = program(tmp_path, "python", f'#!/bin/sh\nexec {sys._base_executable} -I "$@"')
    with pytest.raises(BadInput, match="which has no torch"):
        interpreters.check(taken_apart([str(other), "a.py"]))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(BadInput, match="which has no torch"):
        interpreters.check(taken_apart(["python", "a.py"]))
    interpreters.check(taken_apart([sys.executable, "a.py"]))
    with pytest.raises(BadInput, match="there is no program"):
        interpreters.check(taken_apart(["python3.99", "a.py"]))


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
    assert (found.workers, found.env["ACCELERATE_MIXED_PRECISION"]) == (4, "bf16")
    told = taken_apart([*command[:-1], "--num_processes", "2", "--mixed_precision", "no", "a.py"])
    assert (told.workers, told.env["ACCELERATE_MIXED_PRECISION"]) == (2, "no")


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [
        ("", "FSDP", "distributed_type: FSDP"),
        ("", "DEEPSPEED", "distributed_type: DEEPSPEED"),
        ("--use_fsdp", "NO", "--use_fsdp"),
    ],
)
def test_what_torchrun_would_not_do_is_refused(words, kind, told, tmp_path):
    file = tmp_path / "accelerate.yaml"
    file.write_text(ACCELERATE.format(kind=kind, precision="no"))
    with pytest.raises(BadInput, match=told):
        taken_apart(["accelerate", "launch", "--config_file", str(file), *words.split(), "a.py"])


def test_mpirun_in_the_file_of_accelerate_is_refused(tmp_path):
    file = tmp_path / "accelerate.yaml"
    text = ACCELERATE.format(kind="MULTI_CPU", precision="no")
    file.write_text(f"{text}use_cpu: true\nmpirun_config: {{mpirun_hostfile: {tmp_path}/hosts}}\n")
    with pytest.raises(BadInput, match="accelerate launch is told --mpirun_hostfile"):
        taken_apart(["accelerate", "launch", "--config_file", str(file), "a.py"])


def test_launchers_that_are_parsed_are_those_that_a_script_is_told_not_to_start() -> None:
    assert rank_launchers.LAUNCHERS.keys() == starters.LAUNCHER_PROGRAMS
    assert rank_launchers.MODULES.keys() == starters.LAUNCHER_MODULES
