"""Programs that start ranks elsewhere: ended by SIGTERM, and their Slurm steps by name."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.worker import processes, starters
from tests.support.stand_in_slurm import StandInSlurm, stand_in_slurm
from tests.support.waiting import wait_for

MARK = f"{os.getpid()}-2-3-of-a-dead-agent"
"""Tests in other processes kill what has their own."""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[StandInSlurm]:
    with stand_in_slurm(tmp_path) as found:
        yield found


def started(slurm: StandInSlurm, *argv: str, deaf: bool = False) -> subprocess.Popen[bytes]:
    """A program with the mark of an agent, whose step runs."""
    env = {**os.environ, **slurm.environment(deaf=deaf), processes.MARKER: MARK}
    process = subprocess.Popen(argv, env=env)
    wait_for(lambda: slurm.running(), "the step runs")
    return process


def test_step_of_srun_that_is_killed_runs_on(slurm: StandInSlurm) -> None:
    """The stand-in does as Slurm does."""
    process = started(slurm, "srun", "sleep", "600")
    process.kill()
    process.wait()
    assert slurm.running() == ["plain"]


def test_step_of_a_dead_agent_ends_with_it(slurm: StandInSlurm) -> None:
    process = started(slurm, *starters.named(["srun", "sleep", "600"]))
    processes.kill_marked(MARK)
    assert process.wait() is not None
    assert slurm.running() == []
    assert slurm.cancelled == []


def test_shell_above_srun_starts_no_other_step(slurm: StandInSlurm, tmp_path: Path) -> None:
    script = "srun sleep 600; srun touch second"
    process = started(slurm, "sh", "-c", script)
    processes.kill_marked(MARK)
    assert process.wait() == -signal.SIGKILL
    assert len(slurm.steps) == 1
    assert slurm.running() == []


def test_step_of_srun_that_ignores_sigterm_is_cancelled_by_its_name(
    slurm: StandInSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm.environment().items():
        monkeypatch.setenv(name, value)
    started(slurm, "srun", "--job-name=of-another", "sleep", "600").kill()
    process = started(slurm, *starters.named(["srun", "sleep", "600"]), deaf=True)
    wait_for(lambda: len(slurm.running()) == 2, "both steps run")
    starters.end([process.pid], grace=0.2)
    assert process.wait() == -signal.SIGKILL
    assert slurm.running() == ["of-another"]
    assert slurm.cancelled == ["1.1"]


@pytest.mark.parametrize(
    ("argv", "place"),
    [(["srun", "-n2", "a"], 1), (["time", "/usr/bin/srun", "a"], 2), (["mpirun", "a"], None)],
)
def test_only_a_step_of_slurm_gets_a_name(argv: list[str], place: int | None) -> None:
    found = starters.named(argv)
    assert [word for word in found if not word.startswith("--job-name=autotune-")] == argv
    assert found == argv if place is None else found[place].startswith("--job-name=autotune-")


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        (["/usr/bin/srun", "-n2", "a"], "srun"),
        (["bash", "-c", "docker run image"], "docker"),
        (["setsid", "docker", "run", "image"], "docker"),
        (["mpirun", "-np", "2", "a"], ""),
        (["mpirun", "-H", "localhost:2", "a"], ""),
        (["mpirun", "-H", "localhost,b:2", "a"], "mpirun"),
        (["env", "A=1", "mpiexec", "--hostfile=hosts", "a"], "mpiexec"),
        (["./bench", "--host", "b"], ""),
        (["bash", "train.sh", "--model", "flux"], ""),
        (["./train", "--prompt", "a docker whale"], ""),
        (["bash", "-c", "cd /data/docker && ./train"], ""),
        (["bash", "-lc", "cd a; (srun x)"], "srun"),
        (["timeout", "60", "/usr/bin/srun", "x"], "srun"),
        (["mpirun", "-np", "2", "python", "x.py", "--host", "0.0.0.0"], ""),
        (["mpirun", "-np", "2", "-Hb:2", "python", "x.py"], "mpirun"),
        (["mpiexec", "-f", "hosts", "x"], "mpiexec"),
        (["ssh", "n2", "train"], "ssh"),
        (["bash", "-c", "cd a && pdsh -w n[1-2] train"], "pdsh"),
        (["clush", "-w", "n[1-2]", "train"], "clush"),
        (["ray", "job", "submit", "--", "python", "x.py"], "ray"),
        (["sudo", "-E", "-u", "root", "docker", "run", "image"], "docker"),
        (["cgexec", "-g", "cpu:a", "srun", "x"], "srun"),
        (["timeout", "--kill-after", "30s", "2h", "srun", "x"], "srun"),
        (["sudo", "numactl", "-C", "0-3", "srun", "x"], "srun"),
        (["taskset", "-c", "0-3", "srun", "x"], "srun"),
        (["env", "T=/usr/bin/timeout", "srun", "x"], "srun"),
        (["env", "-u", "A", "timeout", "-s", "KILL", "60", "srun", "x"], "srun"),
        (["horovodrun", "-np", "2", "-H", "a:1,b:1", "python", "x.py"], "horovodrun"),
        (["horovodrun", "-np", "2", "python", "x.py", "-H", "b"], ""),
        (["deepspeed", "--num_gpus", "2", "x.py"], ""),
        (["deepspeed", "--hostfile=/dev/null", "x.py"], ""),
        (["deepspeed", "--hostfile", "no such file", "x.py"], "deepspeed"),
    ],
)
def test_program_that_starts_ranks_elsewhere_is_found(argv: list[str], program: str) -> None:
    assert starters.elsewhere(argv) == program


@pytest.mark.parametrize(("hosts", "program"), [("a slots=8\n# b\n", ""), ("a\nb\n", "deepspeed")])
def test_deepspeed_starts_ranks_elsewhere_where_its_file_has_several_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: str, program: str
) -> None:
    file = tmp_path / "hostfile"
    file.write_text(hosts)
    assert starters.elsewhere(["deepspeed", "--hostfile", str(file), "x.py"]) == program
    monkeypatch.setattr(starters, "_JOB_HOSTS", file)
    assert starters.elsewhere(["deepspeed", "x.py"]) == program


def test_deepspeed_on_this_machine_alone_is_ended_as_any_program(tmp_path: Path) -> None:
    program, hosts = tmp_path / "deepspeed", tmp_path / "hosts"
    program.write_text("#!/bin/sh\necho started\nread end\n")
    program.chmod(0o755)
    hosts.write_text("a\nb\n")
    for options, of_others in ([], False), (["--hostfile", str(hosts)], True):
        command = [str(program), *options, "train.py"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()  # Popen returns before the command line can be read
            assert starters.among([process.pid]) == ({process.pid} if of_others else set())
            process.kill()
