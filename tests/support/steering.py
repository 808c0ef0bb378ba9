"""Steering real studies: start them, wait with a deadline, send signals, judge what they leave."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
import yaml

from autotune import cli
from autotune.errors import StudyNotFound
from storage import LeaseState, StoredAttempt
from tests.support.records import Records, end_lease
from tests.support.waiting import wait_for

TINY_WORKLOAD = Path(__file__).parents[1] / "workloads" / "tiny.py"
_DYING_COMMAND = Path(__file__).parents[1] / "faults" / "dying_command.py"
_POLL_SECONDS = 0.05


def tiny_study(**changes: Any) -> dict[str, Any]:
    """A study of seconds over the tiny workload; keyword arguments replace whole sections.

    It makes all trials of its budget, however little its blocks of a moment leave to be expected.
    """
    study: dict[str, Any] = {
        "name": "tiny",
        "workload": "tiny:build",
        "resources": {"workers": 2},
        "search_space": {"micro_batch": [1, 2, 4, 8], "log_interval": [1, 10]},
        "baseline": {"micro_batch": 2},
        "objective": {"global_batch_size": "free"},
        "budget": {"trials": 4},
        "measurement": {
            "block_seconds": 0.05,
            "min_steps": 2,
            "warmup": 0.1,
            "max_measure_time": 0.2,
            "search_ci_half_width": 0.2,
            "confirm_ci_half_width": 0.2,
            "finalists": 1,
            "ablation_rounds": 0,
            "rounds": 3,
            "startup_timeout": 60,
            "step_timeout": 20,
        },
    }
    study.update(changes)
    if isinstance(study["budget"], dict):
        study["budget"] = {"min_improvement": 0, **study["budget"]}
    return study


def write_study(folder: Path, **changes: Any) -> Path:
    """tiny_study as a file study.yaml in the folder."""
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(tiny_study(**changes)))
    return path


def autotune(
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run the real command, as a user would."""
    found = subprocess.run(
        [sys.executable, "-P", "-m", "autotune", *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )
    if check and found.returncode:
        raise AssertionError(f"exit {found.returncode}\n{found.stdout}\n{found.stderr}")
    return found


def ask(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process: what it answers where the process is not the point."""
    with (
        contextlib.chdir(cwd),
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        patch.setattr(sys, "argv", ["autotune", *arguments])
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        code: object = 0
        try:
            cli.run()
        except SystemExit as left:
            code = left.code or 0
    assert isinstance(code, int)
    found = subprocess.CompletedProcess(arguments, code, out.getvalue(), errors.getvalue())
    if check and code:
        raise AssertionError(f"exit {code}\n{found.stdout}\n{found.stderr}")
    return found


def processes_in(folder: Path) -> dict[int, str]:
    """Living processes whose working directory is in the folder: pid -> command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            where = Path(os.readlink(entry / "cwd"))  # noqa: PTH115
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # gone, or a zombie, which has no folder
        if where.is_relative_to(folder):
            found[int(entry.name)] = command
    return found


def alive(pid: int) -> bool:
    """Whether there is a process of that number that is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


def ends_within(pid: int, seconds: float) -> bool:
    """Whether a process ends in that time; waits for it."""
    give_up = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > give_up:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def quick_measurement(**changes: Any) -> dict[str, Any]:
    """The measurement section of tiny_study at its shortest; keyword arguments replace fields."""
    section = {**tiny_study()["measurement"], "warmup": 0.05, "max_measure_time": 0.1, "rounds": 2}
    section["baseline_runs"] = 1
    return {**section, **changes}


class StudyFolder(Records):
    """A user's folder with one study in it, and the commands that they would give there."""

    def __init__(self, folder: Path, url: str | None = None, name: str = "tiny") -> None:
        super().__init__(url or f"sqlite:///{folder}/autotune.db", name)
        self.folder = folder

    def write(self, **changes: Any) -> None:
        """study.yaml: a short tiny_study, with these sections replaced."""
        changes.setdefault("measurement", quick_measurement())
        write_study(self.folder, name=self.name, storage=self.url, **changes)

    # Commands

    def run(
        self, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder to its end."""
        return autotune(*arguments, cwd=self.folder, env=env, timeout=timeout)

    def ask(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder, in this process."""
        return ask(*arguments, cwd=self.folder, env=env)

    def spawn(self, *arguments: str, env: Mapping[str, str] | None = None) -> "Command":
        """Start a command in the folder."""
        return Command(["-m", "autotune", *arguments], self.folder, env)

    def die(self, when: str, method: str, call: int = 1) -> None:
        """Run a daemon that SIGKILLs itself before or after a call of a method of the product."""
        self.bury_daemon()
        daemon = self.dying(when, method, call)
        code = daemon.wait()
        point = f"{when} call {call} of {method}"
        assert code == -signal.SIGKILL, f"did not die {point}, exit {code}:\n{daemon.output()}"

    def dying(self, when: str, method: str, call: int) -> "Process":
        """A daemon that kills itself."""
        arguments = [str(_DYING_COMMAND), when, method, str(call)]
        return Command([*arguments, *self.daemon_command], self.folder)

    def daemon(self) -> "Process":
        """Start one, which ends once the queue is empty."""
        return self.spawn(*self.daemon_command)

    @property
    def daemon_command(self) -> tuple[str, ...]:
        return ("daemon", "--idle-exit", "0", "--storage", self.url)

    def go_on(self) -> subprocess.CompletedProcess[str]:
        """Start the study again, and stay with it to its end."""
        return self.run("start", "study.yaml", "--foreground", timeout=400)

    def bury_daemon(self) -> None:
        """End the leases of a daemon that is dead."""
        for lease in self.leases():
            assert not alive(lease.pid)
            end_lease(self.repository, lease)

    def status(self) -> dict[str, Any]:
        """`autotune status --json`."""
        found = self.ask("status", self.name, "--json", "--storage", self.url)
        assert found.returncode == 0, found.stderr
        return dict(json.loads(found.stdout))

    def daemon_pid(self) -> int:
        """Of the daemon that runs the study, as `autotune status` tells; waits until there is one."""
        self.wait_lease()
        return int(wait_for(lambda: self.status()["daemon"], f"a daemon runs {self.name}")["pid"])

    # Waiting

    def wait_lease(self) -> LeaseState:
        """The lease, once a living daemon holds it."""

        def held() -> LeaseState | None:
            lease = self.lease()
            return lease if lease and alive(lease.pid) else None

        return wait_for(held, "a living daemon holds the lease")

    def wait_state(self, *states: str, timeout: float = 300) -> None:
        """The study is in one of these states."""

        def reached() -> bool:
            with contextlib.suppress(StudyNotFound):
                return self.study().state in states
            return False

        wait_for(reached, f"{self.name} is {' or '.join(states)}", timeout)

    def wait_recorded(self, count: int) -> None:
        wait_for(lambda: len(self.recorded()) >= count, f"{count} attempts are recorded")

    def wait_running(self, *, after: int = 0) -> StoredAttempt:
        """An attempt that runs and is younger than so many recorded ones."""

        def running() -> StoredAttempt | None:
            last = self.attempts()[-1:]
            enough = len(self.recorded()) >= after
            return last[0] if enough and last and last[0].running else None

        return wait_for(running, f"an attempt runs after {after} recorded ones")

    def wait_nothing_runs(self, timeout: float = 180) -> None:
        """No process of this folder is left."""
        give_up = time.monotonic() + timeout
        while left := processes_in(self.folder):
            assert time.monotonic() < give_up, f"still there after {timeout:g} s: {left}"
            time.sleep(_POLL_SECONDS)

    def kill_everything(self) -> None:
        """End all processes that work in the folder, whatever state they are in."""

        def none_left() -> bool:
            left = processes_in(self.folder)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        wait_for(none_left, f"the processes of {self.folder} end")


class Process(Protocol):
    """One under way."""

    pid: int

    def wait(self, timeout: float = 300) -> int:
        """Its exit status, negative for a signal."""

    def output(self) -> str:
        """What it has printed."""


class Command:
    """A command under way; what it prints goes to a file beside its folder."""

    _numbers = iter(range(1, 10**9))

    def __init__(
        self, arguments: list[str], folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._log = folder.parent / f"command-{next(self._numbers)}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", *arguments],
                cwd=folder,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def wait(self, timeout: float = 300) -> int:
        """Its exit status, negative for a signal."""
        return self._process.wait(timeout)

    def send(self, number: signal.Signals) -> None:
        """A signal to its process group, as a terminal sends it."""
        os.killpg(self.pid, number)

    def output(self) -> str:
        return self._log.read_text(errors="replace")


Folder = TypeVar("Folder", bound=StudyFolder)


def study_folder(
    parent: Path, url: str | None = None, name: str = "tiny"
) -> contextlib.AbstractContextManager[StudyFolder]:
    """A new folder with a study, in use."""
    return in_use(StudyFolder(parent / "project", url, name))


@contextlib.contextmanager
def in_use(found: Folder) -> Iterator[Folder]:
    """Make the folder, with the tiny workload; whatever still works in it at the end is killed."""
    found.folder.mkdir(parents=True, exist_ok=True)
    (found.folder / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    try:
        yield found
    finally:
        found.kill_everything()
