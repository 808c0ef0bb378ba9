"""One study at a time on a device of this machine: two would spoil each other's figures."""

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from autotune.errors import DevicesTaken
from autotune.trial import processes

_POLL_SECONDS = 0.5
_MOST_ASKERS = 4096

Busy = Callable[[str], None]
"""Called again and again, with who holds what, as long as somebody else does; may raise."""


def refuse(rival: str) -> None:
    """Do not wait.

    Raises:
        DevicesTaken: always.
    """
    raise DevicesTaken(
        f"{rival}, and two at a time would spoil each other's figures; wait for it, or give each "
        "devices of its own (CUDA_VISIBLE_DEVICES, taskset)"
    )


class Reservation:
    """Holds names on this machine until it is closed or its process dies, however it dies.

    Whoever listens on the abstract Unix socket of a name holds it. A holder that is stopped (SIGSTOP)
    measures nothing, and one that has started this process knows what it does: neither is waited for.
    """

    def __init__(self, names: Iterable[str], busy: Busy) -> None:
        """Wait until nobody else holds any of the names, and take them all.

        Raises:
            Exception: whatever `busy` raises; then none of them is held.
        """
        self._sockets: list[socket.socket] = []
        wanted = sorted(names)
        try:
            while rival := self._take(wanted):
                self.close()
                busy(rival)
                time.sleep(_POLL_SECONDS)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of all of them."""
        while self._sockets:
            self._sockets.pop().close()

    def _take(self, names: Sequence[str]) -> str:
        """Take the names up to the first one that a rival holds; who that is, empty without one."""
        for name in names:
            listener = socket.socket(socket.AF_UNIX)
            try:
                listener.bind(_address(name))
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                holder = _holder(name)
                if _is_rival(holder):
                    return f"{_described(holder)} measures on {name}"
            else:
                listener.listen(_MOST_ASKERS)
                self._sockets.append(listener)
        return ""


def _address(name: str) -> str:
    return f"\0autotune/{name}"


def _holder(name: str) -> int:
    """Process id of who listens; 0 if that cannot be told, as of another container."""
    with socket.socket(socket.AF_UNIX) as asker:
        asker.setblocking(False)
        try:
            asker.connect(_address(name))
        except OSError:
            return 0
        size = struct.calcsize("3i")
        found = asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return int(struct.unpack("3i", found)[0])


def _is_rival(pid: int) -> bool:
    return pid == 0 or (processes.state(pid) not in "TZ?" and os.getpid() not in _family(pid))


def _family(pid: int) -> set[int]:
    return {pid, *processes.descendants(pid)}


def _described(pid: int) -> str:
    try:
        return f"process {pid}, working in {Path(f'/proc/{pid}/cwd').readlink()},"
    except OSError:
        return f"process {pid} of another user" if pid else "another study"
