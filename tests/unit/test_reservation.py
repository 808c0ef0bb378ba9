"""Who holds a name on this machine, whom one waits for, and whom not; the holders are real processes."""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.errors import DevicesTaken
from launchers.reservation import IGNORED_USERS, Reservation, DeviceHolder, refuse
from tests.support import stranger
from tests.support.waiting import wait_for

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
    heard: list[DeviceHolder] = []
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
    thread.join(180)
    assert taken.is_set()


def test_who_waits_holds_nothing(name: str, rival: subprocess.Popen[str]) -> None:
    free = f"{name} free"  # taken before `name second` is found to be held
    others: list[subprocess.Popen[str]] = []

    def look(_: DeviceHolder) -> bool:
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


@pytest.mark.fault(30)
class TestStrangers:
    """Another user of this machine."""

    SQUAT = """
names = [bytes.fromhex(word).decode() for word in sys.argv[2:]]
sockets = []
for name in names:
    sockets.append(socket.socket(socket.AF_UNIX))
    sockets[-1].bind(name)
    sockets[-1].listen(int(sys.argv[1]))
    if sys.argv[1] == "0":  # and let nobody ask whose it is
        sockets.append(socket.socket(socket.AF_UNIX))
        sockets[-1].connect(name)
print("there", flush=True)
time.sleep(600)
"""

    @pytest.fixture
    def squat(self) -> Iterator[Callable[..., int]]:
        """Have another user listen on abstract sockets; the process."""
        running = []

        def start(*names: str, askers: int = 100) -> int:
            words = [name.encode().hex() for name in names]
            running.append(
                stranger.spawn("import socket, sys, time", self.SQUAT, str(askers), *words)
            )
            out = running[-1].stdout
            assert out is not None
            assert out.readline() == "there\n"
            return running[-1].pid

        yield start
        for process in running:
            end(process)

    def test_the_name_of_a_device_alone_blocks_nobody(
        self, name: str, squat: Callable[..., int], mine: Reservation
    ) -> None:
        squat(f"\0autotune/{name}", f"\0autotune/{name}x/1", f"\0{name}/1")
        mine.take([name])

    def test_whoever_measures_is_waited_for_and_named(
        self, name: str, squat: Callable[..., int], mine: Reservation
    ) -> None:
        pid = squat(f"\0autotune/{name}/1")
        with pytest.raises(DevicesTaken) as refused:
            mine.take([name])
        assert f"process {pid} of user {stranger.NAME}, working in " in str(refused.value)
        assert f"{IGNORED_USERS}={stranger.NAME}" in str(refused.value)

    @pytest.mark.parametrize("ignored", [stranger.NAME, f"eve, {stranger.USER}", "*"])
    def test_one_that_is_to_be_ignored_is(
        self,
        name: str,
        squat: Callable[..., int],
        mine: Reservation,
        monkeypatch: pytest.MonkeyPatch,
        ignored: str,
    ) -> None:
        squat(f"\0autotune/{name}/1", f"\0autotune/{name}/2")
        monkeypatch.setenv(IGNORED_USERS, ignored)
        mine.take([name])
        refused = hold(name)
        assert not holds(refused)
        assert "of user" not in refused.communicate()[1], "one's own studies wait for one another"

    def test_who_lets_nobody_ask_is_named_so_and_can_be_ignored(
        self,
        name: str,
        squat: Callable[..., int],
        mine: Reservation,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        squat(f"\0autotune/{name}/1", askers=0)
        with pytest.raises(DevicesTaken, match="a process whose owner cannot be determined"):
            mine.take([name])
        monkeypatch.setenv(IGNORED_USERS, stranger.NAME)
        with pytest.raises(DevicesTaken, match=rf"{IGNORED_USERS}=\* "):
            mine.take([name])
        monkeypatch.setenv(IGNORED_USERS, "*")
        mine.take([name])

    def test_lines_that_a_name_writes_into_the_list_of_sockets_block_nobody(
        self, name: str, squat: Callable[..., int], mine: Reservation
    ) -> None:
        listed = "\n1: 2 0 00010000 0001 01 7 @autotune/"
        squat(f"\0{listed}{name}/1", f"\0\n: : : z : : : @autotune/{name}/2")
        mine.take([name])


_ONE_OF_SEVERAL = """
import sys

from launchers.reservation import Reservation

held = Reservation(lambda _: print("waits", flush=True))
print("ready", flush=True)
sys.stdin.readline()
held.take(sys.argv[1:])
print("held", flush=True)
sys.stdin.read()
"""


class Contender:
    """A process that takes a name once it is told to, and holds it until it may leave."""

    def __init__(self, name: str) -> None:
        self.said: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ONE_OF_SEVERAL, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.strip())

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("begin\n")
        self._process.stdin.flush()

    @property
    def has_looked(self) -> bool:
        """Whether it has the name, or knows that another process has it."""
        return len(self.said) > 1

    def leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(180) == 0

    def end(self) -> None:
        with self._process:
            self._process.kill()


def test_of_several_that_begin_at_once_one_is_first(name: str) -> None:
    """And each gets its turn."""
    with contextlib.ExitStack() as stack:
        left = [Contender(name) for _ in range(4)]
        for one in left:
            stack.callback(one.end)
        wait_for(lambda: all(one.said for one in left), "all are ready")
        for one in left:
            one.begin()
        wait_for(lambda: all(one.has_looked for one in left), "each has looked")
        while left:
            holding = wait_for(lambda: [one for one in left if "held" in one.said], "one has it")
            assert len(holding) == 1
            left.remove(holding[0])
            holding[0].leave()


def test_a_socket_that_nobody_listens_on_is_no_holder(name: str, mine: Reservation) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"\0autotune/{name}/1")
        mine.take([name])
