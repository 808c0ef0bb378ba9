"""Who holds a name on this machine, whom one waits for, and whom not; the holders are real processes."""

import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.errors import DevicesTaken
from launchers.reservation import Reservation, Rival, refuse
from tests.waiting import wait_for

HOLD = """
import sys, time

from launchers.reservation import Reservation, refuse

held = Reservation(refuse)
held.take(sys.argv[1:])
print("held", flush=True)
time.sleep(600)
"""


def hold(*names: str) -> subprocess.Popen[str]:
    """Another process that holds these names, or says why not."""
    command = [sys.executable, "-c", HOLD, *names]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def holds(process: subprocess.Popen[str]) -> bool:
    """Whether it got them; it is ended if not."""
    assert process.stdout is not None
    return process.stdout.readline() == "held\n"


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def name() -> str:
    return f"test {uuid.uuid4().hex}"


@pytest.fixture
def rival(name: str) -> Iterator[subprocess.Popen[str]]:
    holder = hold(name, f"{name} second")
    assert holds(holder)
    yield holder
    end(holder)


@pytest.fixture
def mine() -> Iterator[Reservation]:
    reservation = Reservation(refuse)
    yield reservation
    reservation.close()


def test_a_rival_is_named_with_its_folder(
    name: str, rival: subprocess.Popen[str], mine: Reservation
) -> None:
    with pytest.raises(DevicesTaken) as refused:
        mine.take([name])
    told = f"process {rival.pid}, working in {Path.cwd()}, measures on {name}"
    assert told in str(refused.value)


def test_what_a_dead_holder_held_is_free(
    name: str, rival: subprocess.Popen[str], mine: Reservation
) -> None:
    end(rival)
    mine.take([name])


def test_what_was_let_go_of_is_free(name: str, mine: Reservation) -> None:
    mine.take([name])
    refused = hold(name)
    assert not holds(refused)
    assert "DevicesTaken" in refused.communicate()[1]
    mine.close()
    taken = hold(name)
    assert holds(taken)
    end(taken)


def test_one_waits_until_a_rival_has_gone(name: str, rival: subprocess.Popen[str]) -> None:
    heard: list[Rival] = []
    taken = threading.Event()

    def wait() -> None:
        reservation = Reservation(lambda rival: bool(heard.append(rival)))
        reservation.take([name])
        taken.set()
        reservation.close()

    thread = threading.Thread(target=wait)
    thread.start()
    wait_for(lambda: len(heard) >= 2, "somebody waits")
    assert not taken.is_set()
    assert {found.pid for found in heard} == {rival.pid}
    end(rival)
    thread.join(10)
    assert taken.is_set()


def test_who_waits_holds_nothing(name: str, rival: subprocess.Popen[str]) -> None:
    free = f"{name} free"  # taken before `name second` is found to be held
    others: list[subprocess.Popen[str]] = []

    def look(_: Rival) -> bool:
        others.append(hold(free))
        assert holds(others[-1])
        raise InterruptedError

    with pytest.raises(InterruptedError):
        Reservation(look).take([free, f"{name} second"])
    end(others[0])


def test_a_stopped_holder_is_a_holder(
    name: str, rival: subprocess.Popen[str], mine: Reservation
) -> None:
    rival.send_signal(signal.SIGSTOP)
    with pytest.raises(DevicesTaken):
        mine.take([name])
    rival.send_signal(signal.SIGCONT)


def test_one_that_is_to_be_ignored_is_not_waited_for(
    name: str, rival: subprocess.Popen[str]
) -> None:
    reservation = Reservation(lambda found: found.pid == rival.pid)
    reservation.take([name, f"{name} free"])
    refused = hold(f"{name} free")
    assert not holds(refused)
    end(refused)
    reservation.close()


def test_a_process_does_not_wait_for_itself(name: str, mine: Reservation) -> None:
    mine.take([name])
    other = Reservation(refuse)
    other.take([name])
    other.close()


def test_what_nobody_can_hold_is_not_waited_for(name: str, mine: Reservation) -> None:
    with pytest.raises(OSError, match="too long"):
        mine.take([name, name * 10])


def test_other_names_are_free(name: str, rival: subprocess.Popen[str], mine: Reservation) -> None:
    mine.take([f"{name} third"])
