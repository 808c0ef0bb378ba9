"""Who holds a name on this machine, whom one waits for, and whom not; the holders are real processes."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.errors import DevicesTaken, LauncherError
from launchers.reservation import Reservation, refuse
from tests.steering import wait_for

HOLD = """
import sys, time

from launchers.reservation import Reservation, refuse

held = Reservation(sys.argv[1:], refuse)
print("held", flush=True)
time.sleep(600)
"""


def hold(*names: str) -> subprocess.Popen[str]:
    """Another process that holds these names."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, *names], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


@pytest.fixture
def name() -> str:
    return f"test {uuid.uuid4().hex}"


@pytest.fixture
def rival(name: str) -> Iterator[subprocess.Popen[str]]:
    holder = hold(name, f"{name} second")
    yield holder
    holder.kill()
    holder.wait()


def test_a_rival_is_named_with_its_folder(name: str, rival: subprocess.Popen[str]) -> None:
    with pytest.raises(DevicesTaken) as refused:
        Reservation([name], refuse)
    told = f"process {rival.pid}, working in {Path.cwd()}, measures on {name}"
    assert told in str(refused.value)


def test_what_a_dead_holder_held_is_free(name: str, rival: subprocess.Popen[str]) -> None:
    rival.send_signal(signal.SIGKILL)
    rival.wait()
    Reservation([name], refuse).close()


def test_one_waits_until_a_rival_has_gone(name: str, rival: subprocess.Popen[str]) -> None:
    heard: list[str] = []
    taken = threading.Event()

    def wait() -> None:
        held = Reservation([name], heard.append)
        taken.set()
        held.close()

    thread = threading.Thread(target=wait)
    thread.start()
    wait_for(lambda: len(heard) >= 2, "somebody waits")
    assert not taken.is_set()
    rival.kill()
    rival.wait()
    thread.join(10)
    assert taken.is_set()


def test_who_waits_holds_nothing(name: str, rival: subprocess.Popen[str]) -> None:
    free = f"{name} free"  # sorts after `name`, before `name second`

    def look(_: str) -> None:
        subprocess.run([sys.executable, "-c", HOLD.replace("600", "0"), free], check=True)
        raise LauncherError("seen enough")

    with pytest.raises(LauncherError, match="seen enough"):
        Reservation([free, f"{name} second"], look)


def test_a_stopped_holder_measures_nothing(name: str, rival: subprocess.Popen[str]) -> None:
    rival.send_signal(signal.SIGSTOP)
    os.waitpid(rival.pid, os.WUNTRACED)
    Reservation([name], refuse).close()
    rival.send_signal(signal.SIGCONT)
    with pytest.raises(DevicesTaken):
        Reservation([name], refuse)


def test_one_process_may_hold_a_name_twice_and_so_may_its_children(name: str) -> None:
    held = Reservation([name], refuse)
    Reservation([name], refuse).close()
    child = hold(name)
    child.kill()
    child.wait()
    held.close()


def test_other_names_are_free(name: str, rival: subprocess.Popen[str]) -> None:
    Reservation([f"{name} third"], refuse).close()
