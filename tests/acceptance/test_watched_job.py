"""`autotune run --watch`: the user's own job, watched from beside it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

import pytest
import yaml

from search_spaces import defaults
from tests.support.waiting import wait_for

OURS = [sys.executable, "-P", "-m", "autotune", "run", "best.yaml"]
SCRIPTS = Path(__file__).parent.parent / "scripts"
PROMISED = {"value": 1e6, "low": 0.99e6, "high": 1.01e6, "unit": "samples/s"}
"""More than anybody reaches."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = {"target": "own.py", "is_module": False, "flags": {}, "turned": {}, "changes": []}
    content = {"format": 3, "knobs": defaults(), "world_size": 1, "speedup": None, "unusual": []}
    content |= {"throughput": PROMISED, "provenance": {"study": "tiny", "rounds": 4}}
    (tmp_path / "best.yaml").write_text(yaml.safe_dump({**content, "script": script}))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(text: str, *args: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[bytes]:
    Path("own.py").write_text(text)
    command = [*OURS, "--watch", *options, "--", sys.executable, "own.py", *args]
    return subprocess.run(command, capture_output=True, check=False, timeout=120)


def nothing_left(folder: Path) -> bool:
    return not [*(folder / "tmp").glob("autotune-*")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit(7)", 7),
        pytest.param("os.kill(os.getpid(), 9)", -9, marks=pytest.mark.errand),
        pytest.param("os.abort()", -6, marks=pytest.mark.errand),
        pytest.param("1 / 0", 1, marks=pytest.mark.errand),
        pytest.param("", 0, marks=pytest.mark.errand),
    ],
)
def test_the_exit_status_is_that_of_the_job(folder: Path, end: str, status: int) -> None:
    done = run(f"import os, sys\nprint('said')\nsys.stdout.flush()\n{end}")
    assert (done.returncode, done.stdout) == (status, b"said\n")
    assert b"watching this job; metrics: http://127.0.0.1:" in done.stderr
    wait_for(lambda: nothing_left(folder), "the watcher has cleaned up")


@pytest.mark.errand
def test_what_the_job_is_given_reaches_it_byte_for_byte() -> None:
    words = ["a\nb", "$(x) 'y' \"z\"", "-n", "--", os.fsdecode(b"\xff")]
    done = run("import os, sys\nos.write(1, b'|'.join(map(os.fsencode, sys.argv[1:])))", *words)
    assert done.stdout == b"|".join(map(os.fsencode, words))


@pytest.mark.errand
def test_it_is_no_child_that_the_job_would_wait_for() -> None:
    text = "import os\ntry:\n    os.wait()\nexcept ChildProcessError:\n    print('none')"
    assert run(text).stdout == b"none\n"


def test_a_port_that_is_taken_is_said_before_the_job_begins() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run("print('began')", options=("--metrics-port", port))
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"error: --metrics-port {port}: Address already in use".encode() in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("command", [["no-such-program", "own.py"], [sys.executable, "other.py"]])
def test_nothing_is_said_to_be_watched_that_does_not_begin(
    folder: Path, command: list[str]
) -> None:
    arguments = [*OURS, "--watch", "--", *command]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    *changes, error = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert all(line.startswith("autotune: ") for line in changes), done.stderr
    assert not any("watching" in line for line in changes), done.stderr
    wait_for(lambda: nothing_left(folder), "the watcher has cleaned up")


def _metrics_of(lines: IO[bytes]) -> str:
    """Return the address of the metrics, once a job has told it on standard error."""
    return next(found[0].decode() for line in lines if (found := re.findall(rb"http://\S+", line)))


def _watchers(folder: Path) -> list[int]:
    """Return the processes in a folder that `autotune run` has left."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if (process / "cwd").samefile(folder) and b"best.yaml" in words:
                found.append(int(process.name))
    return found


@pytest.mark.long
def test_signals_to_all_that_is_named_like_the_script_do_not_end_the_watcher(folder: Path) -> None:
    Path("own.py").write_text("import sys\nsys.stdin.read()")
    command = [*OURS, "--watch", "--", sys.executable, "own.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        assert job.stderr is not None
        address = _metrics_of(job.stderr)
        (watcher,) = _watchers(folder)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGALRM):
            os.kill(watcher, number)
        with urllib.request.urlopen(address) as answer:
            assert answer.read()
        job.communicate()
    wait_for(lambda: nothing_left(folder), "the watcher has cleaned up")


@pytest.mark.long
def test_job_whose_python_does_not_report_is_refused(folder: Path) -> None:
    Path("own.py").write_text("print('said')")
    command = [*OURS, "--watch", "--", sys.executable, "-E", "own.py"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"leave out PYTHONPATH (-E)" in done.stderr


_TRAINS = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for x in DataLoader(torch.ones(4096, 8), batch_size=4):
        model(x).square().mean().backward()
        optimizer.step()
"""
_LOOKS_OFTEN = """
import os, sys
from autotune.export.best import load
from autotune.service.sidecar import watched
from autotune.worker.inject.speed_report import ADDRESS
with watched(load("best.yaml"), every=5.0) as address:
    from autotune.export.tuned_job import script_job
    job = script_job(load("best.yaml"), sys.argv[1:], os.environ)
    variables = {**os.environ, **job.environment, ADDRESS: address}
    os.execvpe(job.command[0], list(job.command), variables)
"""


@pytest.mark.errand
def test_ranks_under_torchrun_report_and_a_signal_goes_to_the_job(folder: Path) -> None:
    content = yaml.safe_load(Path("best.yaml").read_text())
    Path("best.yaml").write_text(yaml.safe_dump({**content, "world_size": 2}))
    Path("own.py").write_text((SCRIPTS / "plain_ddp.py").read_text())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", "own.py", "--epochs", "1000000"]
    job = subprocess.Popen([*OURS, "--watch", "--", *torchrun], stderr=subprocess.PIPE)
    try:
        assert job.stderr is not None
        address = _metrics_of(job.stderr)

        def told() -> bool:
            with urllib.request.urlopen(address) as answer:
                text = answer.read().decode()
            return all(f'autotune_job_steps_total{{rank="{rank}"}}' in text for rank in (0, 1))

        wait_for(told, "both ranks report")
        job.send_signal(signal.SIGTERM)
        rest = job.stderr.read()
        assert job.wait(60) != 0
        assert b"SIGTERM" in rest or b"signal 15" in rest, "torchrun itself was told"
    finally:
        job.kill()
        job.wait()
    wait_for(lambda: nothing_left(folder), "the watcher has cleaned up")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)


@pytest.mark.errand
def test_drift_of_a_job_that_is_too_slow_is_told_and_starts_nothing(folder: Path) -> None:
    Path("own.py").write_text(_TRAINS)
    job = subprocess.Popen(
        [sys.executable, "-c", _LOOKS_OFTEN, sys.executable, "own.py"], stderr=subprocess.PIPE
    )
    assert job.stderr is not None
    lines = []
    try:
        while "slower than promised in each" not in "".join(lines):
            lines.append(job.stderr.readline().decode())
            assert lines[-1], lines
        assert "in the first minute; promised are 1,000,000" in lines[1]
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=180)
    finally:
        job.kill()
        job.wait()
    wait_for(lambda: nothing_left(folder), "the watcher has cleaned up")
    assert not [*folder.glob("*.db")]
