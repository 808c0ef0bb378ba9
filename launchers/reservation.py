"""One study at a time on a device of this machine: two would spoil each other's figures."""

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import DevicesTaken

_POLL_SECONDS = 0.5
_RETRY_SECONDS = 0.05
_MOST_ASKERS = 128
_CREDENTIALS = struct.Struct("3i")
"""Process, user, group."""


@dataclass(frozen=True)
class Rival:
    """Who holds what another wants."""

    pid: int
    """0 if that cannot be told, as of another container."""
    text: str


Busy = Callable[[Rival], bool]
"""Called again and again as long as somebody else has what is wanted; may raise. True: ignore them."""


def refuse(rival: Rival) -> bool:
    """Do not wait.

    Raises:
        DevicesTaken: always.
    """
    raise DevicesTaken(
        f"{rival.text}, and two at a time would spoil each other's figures; wait for it, or give each "
        "devices of its own (CUDA_VISIBLE_DEVICES, taskset)"
    )


class Reservation:
    """Holds names on this machine until it is closed or its process dies, however it dies.

    Whoever listens on the abstract Unix socket of a name holds it. This process does not wait for
    itself.
    """

    def __init__(self, busy: Busy) -> None:
        self._busy = busy
        self._sockets: list[socket.socket] = []

    def take(self, names: Iterable[str]) -> None:
        """Wait until nobody else holds any of the names, and hold them all.

        Raises:
            Exception: whatever `busy` raises; then none of them is held.
            OSError: this machine lets nobody listen on such a socket.
        """
        wanted = sorted(set(names))
        while blocked := self._bind(wanted):
            self.close()  # who waits holds nothing: two that wait for each other would wait for ever
            if self._is_left_to_its_holder(blocked):
                wanted.remove(blocked)

    def close(self) -> None:
        """Let go of all of them."""
        while self._sockets:
            self._sockets.pop().close()

    def _bind(self, names: Sequence[str]) -> str:
        """Hold the names up to the first one that somebody else holds; which that is, or empty."""
        for name in names:
            listener = socket.socket(socket.AF_UNIX)
            self._sockets.append(listener)
            try:
                listener.bind(_address(name))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                return name
            listener.listen(_MOST_ASKERS)
        return ""

    def _is_left_to_its_holder(self, name: str) -> bool:
        """Wait until the holder is gone; True if it need not be waited for."""
        with socket.socket(socket.AF_UNIX) as asker:
            asker.settimeout(_POLL_SECONDS)
            try:
                asker.connect(_address(name))
            except OSError:  # it has just let go, or is about to listen
                time.sleep(_RETRY_SECONDS)
                return False
            holder = _peer(asker)
            rival = Rival(holder, f"{_described(holder)} measures on {name}")
            while holder != os.getpid() and not self._busy(rival):
                if _has_hung_up(asker):
                    return False
            return True


def _address(name: str) -> str:
    return f"\0autotune/{name}"


def _peer(connected: socket.socket) -> int:
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])


def _has_hung_up(asker: socket.socket) -> bool:
    """Whether the holder lets go within the socket's timeout; it never sends anything."""
    try:
        return asker.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def _described(pid: int) -> str:
    try:
        return f"process {pid}, working in {Path(f'/proc/{pid}/cwd').readlink()},"
    except OSError:
        return f"process {pid} of another user" if pid else "another study"
