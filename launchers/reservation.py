"""Exclusive use of this machine's devices: two studies would spoil each other's figures."""

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
"""Variable with users that are not waited for: names or numbers, separated by commas; `*`: all
others."""
_PREFIX = "autotune"
_LISTENING = Path("/proc/net/unix")
_LISTENS = 0x10000
"""Flag of a listening socket in that file."""
_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 1.0
"""Time within which a process that only checks lets go again."""
_RETRY_SECONDS = 0.1
_MOST_ASKERS = 128
_CREDENTIALS = struct.Struct("3i")
"""Process, user, group."""


@dataclass(frozen=True)
class DeviceHolder:
    """Process that holds what another one wants."""

    pid: int
    """0 if it cannot be told, as for a process of another container."""
    text: str


NO_HOLDER = DeviceHolder(0, "")
"""A wait without a rival: there is nothing to report, but the callback may raise."""
Busy = Callable[[DeviceHolder], bool]
"""Called repeatedly as long as another process holds what is wanted; may raise. True: ignore that
process."""


def refuse(rival: DeviceHolder) -> bool:
    """Raise instead of waiting.

    Raises:
        DevicesTaken: another process holds the devices.
    """
    if rival == NO_HOLDER:
        return False
    raise DevicesTaken(
        f"{rival.text}, and two at a time would spoil each other's figures; wait for it, or give each "
        "devices of its own (CUDA_VISIBLE_DEVICES, taskset)"
    )


class Reservation:
    """Names held on this machine until it is closed or its process dies, however it dies.

    A process holds a name by listening on an abstract Unix socket below it. These sockets are
    visible to all users. Each has a random suffix, so that no name can be occupied in advance, and
    the kernel tells the process behind it. This process does not wait for itself.
    """

    def __init__(self, busy: Busy) -> None:
        self._busy = busy
        self._sockets: list[socket.socket] = []

    def take(self, names: Iterable[str]) -> None:
        """Wait until no other process holds any of the names, and hold them all.

        Raises:
            Exception: anything that `busy` raises; then none of the names is held.
            OSError: this machine forbids listening on such a socket, or seeing its owner.
        """
        wanted = sorted(set(names))
        ignored: set[str] = set()
        patient_until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            self._listen(
                wanted
            )  # before checking: of two simultaneous processes one sees the other
            with contextlib.closing(_others(wanted, ignored)) as others:
                other = next(others, None)
            if other is None:
                return
            # A waiting process holds nothing: two that wait for each other would wait for ever.
            self.close()
            with other.line:
                if self._is_to_be_ignored(other, patient_until - time.monotonic()):
                    ignored.add(other.address)
            time.sleep(
                random.uniform(0, _RETRY_SECONDS)
            )  # at a random moment, not in step with the other

    def close(self) -> None:
        """Let go of all names."""
        while self._sockets:
            self._sockets.pop().close()

    def _listen(self, names: Iterable[str]) -> None:
        for name in names:
            listener = socket.socket(socket.AF_UNIX)
            self._sockets.append(listener)
            listener.bind(f"\0{_PREFIX}/{name}/{secrets.token_hex(8)}")
            listener.listen(_MOST_ASKERS)

    def _is_to_be_ignored(self, other: "_Other", patience: float) -> bool:
        """Wait until a holder is gone; return True if it need not be waited for."""
        if patience > 0 and other.is_gone_within(patience):
            return False
        while not self._busy(other.rival):
            if other.is_gone_within(_POLL_SECONDS):
                return False
        return True


@dataclass(frozen=True)
class _Other:
    """Process that listens below a name, with a connection that ends when it lets go."""

    address: str
    line: socket.socket
    is_connected: bool
    """False if so many processes ask that no more can connect."""
    rival: DeviceHolder

    def is_gone_within(self, seconds: float) -> bool:
        """Return whether the process lets go in that time; it never sends anything."""
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
    """Yield other processes that hold one of the names.

    Those at ignored addresses and of ignored users are left out. The connection of each is closed
    when the next is requested, except for the last.
    """
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
        rival = DeviceHolder(pid, f"{_described(pid, user)} measures on {name}{_advice(user)}")
        yield _Other(address, line, user is not None, rival)


def _listeners(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield (address, name) of all sockets below the names, for all users."""
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
    """Return whether the flags are those of a listening socket.

    The name of a socket may put any text into that file, line breaks included.
    """
    try:
        return bool(int(flags, 16) & _LISTENS)
    except ValueError:
        return False


def _peer(connected: socket.socket) -> tuple[int, int]:
    """Return the process and user at the other end, as the kernel knows them."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(credentials)
    return pid, user


def _is_ignored(user: int | None) -> bool:
    """Return whether the environment says that this user is not to be waited for."""
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
        return "a process whose owner cannot be determined"
    whose = "" if user == os.geteuid() else f" of user {_called(user)}"
    try:
        return f"process {pid}{whose}, working in {Path(f'/proc/{pid}/cwd').readlink()},"
    except OSError:
        return f"process {pid}{whose}" if pid else f"another study{whose}"


def _advice(user: int | None) -> str:
    if user == os.geteuid():
        return ""
    name = "*" if user is None else _called(user)
    return f" (with {IGNORED_USERS}={name} in the environment of the daemon it is not waited for)"
