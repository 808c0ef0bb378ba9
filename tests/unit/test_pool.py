"""A pool of daemons: real processes that die, leave, or stay."""

import itertools
import subprocess
import threading

import pytest

from autotune.service import pool
from autotune.service.pool import DaemonPool
from tests.waiting import wait_for


class Daemons:
    """Processes that run these shell commands, one after another; the last one again and again."""

    def __init__(self, *commands: str) -> None:
        self._commands = itertools.chain(commands, itertools.repeat(commands[-1]))
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        self.started.append(subprocess.Popen(["sh", "-c", next(self._commands)]))
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
