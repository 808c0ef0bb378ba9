"""One study at a time on a device of this machine: two would spoil each other's figures."""

import contextlib
import os
import pwd
import random
import secrets
import socket
import struct
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import DevicesTaken

IGNORED_USERS = "AUTOTUNE_IGNORE_USERS"
"""Variable with users that are not waited for: names or numbers, parted by commas; `*`: all others."""
_PREFIX = "autotune"
_LISTENING = Path("/proc/net/unix")
_LISTENS = 0x10000
"""Flag of a socket there: others can connect to it."""
_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 1.0
"""Who lets go again within this has only looked, too."""
_RETRY_SECONDS = 0.1
_MOST_ASKERS = 128
_CREDENTIALS = struct.Struct("3i")
"""Process, user, group."""


@dataclass(frozen=True)
class Rival:
    """Who holds what another wants."""

    pid: int
    """0 if that cannot be told, as of another container."""
    text: str


NO_RIVAL = Rival(0, "")
"""Something takes its time, and it is nobody's doing: there is nothing to say, but maybe to raise."""
Busy = Callable[[Rival], bool]
"""Called again and again as long as somebody else has what is wanted; may raise. True: ignore them."""


def refuse(rival: Rival) -> bool:
    """Do not wait.

    Raises:
        DevicesTaken: there is somebody to be waited for.
    """
    if rival == NO_RIVAL:
        return False
    raise DevicesTaken(
        f"{rival.text}, and two at a time would spoil each other's figures; wait for it, or give each "
        "devices of its own (CUDA_VISIBLE_DEVICES, taskset)"
    )


class Reservation:
    """Holds names on this machine until it is closed or its process dies, however it dies.

    Whoever listens on an abstract Unix socket below a name holds it. All users see all of these; each
    has an end that nobody can guess, so that none is taken before its time, and the kernel says whose
    process it is. This process does not wait for itself.
    """

    def __init__(self, busy: Busy) -> None:
        self._busy = busy
        self._sockets: list[socket.socket] = []

    def take(self, names: Iterable[str]) -> None:
        """Wait until nobody else holds any of the names, and hold them all.

        Raises:
            Exception: whatever `busy` raises; then none of them is held.
            OSError: this machine lets nobody listen on such a socket, or see who does.
        """
        wanted = sorted(set(names))
        ignored: set[str] = set()
        patient_until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            self._listen(wanted)  # before looking: of two that do so at once, one sees the other
            with contextlib.closing(_others(wanted, ignored)) as others:
                other = next(others, None)
            if other is None:
                return
            # Who waits holds nothing: two that wait for each other would wait for ever.
            self.close()
            with other.line:
                if self._is_to_be_ignored(other, patient_until - time.monotonic()):
                    ignored.add(other.address)
            time.sleep(random.uniform(0, _RETRY_SECONDS))  # and not in step with the other

    def close(self) -> None:
        """Let go of all of them."""
        while self._sockets:
            self._sockets.pop().close()

    def _listen(self, names: Iterable[str]) -> None:
        for name in names:
            listener = socket.socket(socket.AF_UNIX)
            self._sockets.append(listener)
            listener.bind(f"\0{_PREFIX}/{name}/{secrets.token_hex(8)}")
            listener.listen(_MOST_ASKERS)

    def _is_to_be_ignored(self, other: "_Other", patience: float) -> bool:
        """Wait until a holder is gone; True if it need not be waited for."""
        if patience > 0 and other.is_gone_within(patience):
            return False
        while not self._busy(other.rival):
            if other.is_gone_within(_POLL_SECONDS):
                return False
        return True


@dataclass(frozen=True)
class _Other:
    """Who listens below a name, with a line there that ends when they let go."""

    address: str
    line: socket.socket
    is_connected: bool
    """Not, if there are so many that ask that no more can."""
    rival: Rival

    def is_gone_within(self, seconds: float) -> bool:
        """Return whether they let go in that time; they never send anything."""
        if not self.is_connected:
            time.sleep(min(seconds, _RETRY_SECONDS))
            return True  # perhaps: ask again
        self.line.settimeout(seconds)
        try:
            return self.line.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True


def _others(names: Collection[str], ignored: Collection[str]) -> Generator[_Other, None, None]:
    """Other processes that hold one of the names, but for those at ignored addresses and of users that
    nobody here waits for. The line of each is closed when the next is asked for, but for the last."""
    for address, name in _listeners(names):
        if address in ignored:
            continue
        line = socket.socket(socket.AF_UNIX)
        line.setblocking(False)
        try:
            line.connect(f"\0{address}")
            pid, user = _peer(line)
        except BlockingIOError:
            pid, user = 0, None
        except OSError:  # it has just let go
            line.close()
            continue
        if pid == os.getpid() or _is_ignored(user):
            line.close()
            continue
        rival = Rival(pid, f"{_described(pid, user)} measures on {name}{_advice(user)}")
        yield _Other(address, line, user is not None, rival)


def _listeners(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """(address, name) of all sockets below the names, of whomever."""
    for entry in _LISTENING.read_bytes().decode(errors="surrogateescape").splitlines():
        fields = entry.split(
            maxsplit=7
        )  # number, references, protocol, flags, type, state, inode, path
        if len(fields) < 8 or not fields[7].startswith(f"@{_PREFIX}/"):
            continue
        address = fields[7].removeprefix("@")
        name = address.removeprefix(f"{_PREFIX}/").rpartition("/")[0]
        if name in names and _listens(fields[3]):
            yield address, name


def _listens(flags: str) -> bool:
    """Anybody can write into that file by the name of a socket, lines included."""
    try:
        return bool(int(flags, 16) & _LISTENS)
    except ValueError:
        return False


def _peer(connected: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, as the kernel knows them."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(credentials)
    return pid, user


def _is_ignored(user: int | None) -> bool:
    """Return whether whoever started this process has said that this user is not to be waited for."""
    if user == os.geteuid():
        return False
    told = {word.strip() for word in os.environ.get(IGNORED_USERS, "").split(",")}
    return "*" in told or (user is not None and bool(told & {str(user), _called(user)}))


def _called(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _described(pid: int, user: int | None) -> str:
    if user is None:
        return "a process that lets nobody ask whose it is"
    whose = "" if user == os.geteuid() else f" of user {_called(user)}"
    try:
        return f"process {pid}{whose}, working in {Path(f'/proc/{pid}/cwd').readlink()},"
    except OSError:
        return f"process {pid}{whose}" if pid else f"another study{whose}"


def _advice(user: int | None) -> str:
    if user == os.geteuid():
        return ""
    whom = "*" if user is None else _called(user)
    return f" (with {IGNORED_USERS}={whom} in the environment of the daemon it is not waited for)"
