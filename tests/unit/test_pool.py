"""A pool of daemons: real processes that die, leave, or stay."""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import launchers
from autotune.errors import AutotuneError
from autotune.service import pool
from autotune.service.pool import DaemonPool
from autotune.service.submission import spawn_daemon
from tests.support.steering import processes_in
from tests.support.waiting import wait_for

WELL = "while printf .; do sleep 0.1; done"
"""Shell command of a daemon that gives signs of life."""


class Daemons:
    """Processes that run these shell commands, one after another; the last one again and again."""

    def __init__(self, *commands: str) -> None:
        self._commands = itertools.chain(commands, itertools.repeat(commands[-1]))
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, signs: int) -> subprocess.Popen[bytes]:
        command = ["sh", "-c", next(self._commands)]
        self.started.append(subprocess.Popen(command, stdout=signs))
        return self.started[-1]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(pool, "_POLL_SECONDS", 0.02)


def test_pool_ends_when_all_daemons_have_left() -> None:
    daemons = Daemons("exit 0")
    DaemonPool(daemons.start, 3).serve()
    assert len(daemons.started) == 3


def test_daemon_that_dies_is_replaced() -> None:
    daemons = Daemons("kill -9 $$", "exit 0", "exit 0")
    DaemonPool(daemons.start, 2).serve()
    assert [one.returncode for one in daemons.started] == [-9, 0, 0]


def test_daemons_leave_with_the_pool() -> None:
    daemons = Daemons("exec sleep 600")
    several = DaemonPool(daemons.start, 2)
    thread = threading.Thread(target=several.serve)
    thread.start()
    wait_for(lambda: len(daemons.started) == 2, "both run")
    several.shut_down()
    thread.join(60)
    assert [one.returncode for one in daemons.started] == [-15, -15]


def test_daemons_that_run_leave_if_another_one_cannot_be_started() -> None:
    daemons = Daemons("exec sleep 600")

    def start(signs: int) -> subprocess.Popen[bytes]:
        if len(daemons.started) == 2:
            raise OSError("no process can be made")
        return daemons.start(signs)

    with pytest.raises(OSError, match="no process"):
        DaemonPool(start, 3).serve()
    assert [one.poll() for one in daemons.started] == [-15, -15]


def test_pool_whose_daemons_keep_dying_ends_with_an_error_and_the_others_leave() -> None:
    daemons = Daemons("exec sleep 600", "exit 3")
    several = DaemonPool(daemons.start, 2)
    with pytest.raises(AutotuneError, match="code 3"):
        several.serve()
    assert [one.returncode for one in daemons.started] == [-15, 3, 3, 3, 3]


def test_deaths_of_daemons_that_had_lasted_are_not_counted_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "_LASTING_SECONDS", 0.0)
    daemons = Daemons(*["exit 3"] * 6, "exit 0")
    DaemonPool(daemons.start, 1).serve()
    assert len(daemons.started) == 7


def test_daemons_are_watched_while_one_waits_to_be_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "_AGAIN_SECONDS", 600.0)
    daemons = Daemons("exit 3", WELL)
    several = DaemonPool(daemons.start, 2)
    thread = threading.Thread(target=several.serve)
    thread.start()
    try:
        wait_for(lambda: [one.poll() for one in daemons.started] == [3, None], "one has died")
        noticed = time.monotonic()
        wait_for(lambda: time.monotonic() - several.silence > noticed + 1.0, "the pool looks on")
    finally:
        several.shut_down()
        thread.join(60)
    assert len(daemons.started) == 2


def test_silence_of_a_pool_is_that_of_the_daemon_that_hangs() -> None:
    daemons = Daemons(WELL, "printf .; exec sleep 600")
    several = DaemonPool(daemons.start, 2)
    thread = threading.Thread(target=several.serve)
    thread.start()
    try:
        wait_for(lambda: len(daemons.started) == 2, "both run")
        wait_for(lambda: several.silence > 3.0, "one of them hangs")
        daemons.started[1].kill()
        wait_for(lambda: several.silence < 1.0, "another one takes its place")
    finally:
        several.shut_down()
        thread.join(60)


def test_daemon_of_a_pool_that_does_not_start_names_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = tmp_path / "python"
    ending.write_text("#!/bin/sh\nexit 1\n")
    ending.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(ending))
    url = "x" * 2**20  # more than a pipe holds, so that the end is noticed
    with pytest.raises(AutotuneError) as told:
        spawn_daemon("host:here", url, tmp_path, None)
    assert str(tmp_path) not in str(told.value)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder; what still works in it at the end is killed."""
    yield tmp_path
    for pid in processes_in(tmp_path):
        os.kill(pid, signal.SIGKILL)


def several_daemons(folder: Path, *before: str) -> subprocess.Popen[bytes]:
    """The process of `autotune daemon --studies 2`, both of which run."""
    command = [sys.executable, "-m", "autotune", "daemon", "--studies", "2"]
    storage = ["--storage", f"sqlite:///{folder}/autotune.db"]
    process = subprocess.Popen(
        [*before, *command, *storage],
        cwd=folder,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGHUP, signal.SIG_DFL
        ),  # tests may run under nohup
    )

    def both_run() -> bool:
        assert process.poll() is None
        return len(processes_in(folder)) == 3

    wait_for(both_run, "both daemons run")
    return process


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_no_daemon_outlives_a_pool_that_is_ended(folder: Path, number: signal.Signals) -> None:
    process = several_daemons(folder)
    process.send_signal(number)
    assert process.wait(120) == (-number if number == signal.SIGKILL else 0)
    wait_for(lambda: not processes_in(folder), "both daemons are gone")


def test_pool_under_nohup_outlives_its_terminal(folder: Path) -> None:
    process = several_daemons(folder, "nohup")
    [ignored] = re.findall(r"SigIgn:\t(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    process.terminate()
    assert process.wait(120) == 0
    assert int(ignored, 16) & 1 << (signal.SIGHUP - 1)


def test_systemd_leaves_a_pool_the_time_that_it_gives_its_daemons() -> None:
    recipe = Path(launchers.__file__).parent / "recipes" / "autotune.service"
    [seconds] = re.findall(r"^TimeoutStopSec=(\d+)$", recipe.read_text(), re.MULTILINE)
    assert int(seconds) > pool._LEAVE_SECONDS
