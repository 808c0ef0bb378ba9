"""This machine: the clocks by which a lease expires, its identity, and which processes live there.

All users of a SQLite file are on one machine. Its wall clock may be set back or forwards while a
lease is held, which would then last for hours or end at once. The time since boot only increases.
"""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from autotune.worker import proc
from storage.models import LeaseRow

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Moment:
    """A reading of the clocks.

    Attributes:
        wall: seconds since the epoch, by the database's clock.
        boot: identifier of the machine's boot; None where the database is on a server.
        ticks: seconds since boot, time asleep included.
    """

    wall: float
    boot: str | None = None
    ticks: float = 0.0

    def left(self, row: LeaseRow) -> float:
        """Return the seconds until a lease expires; negative once it has."""
        if self.boot is None or row.boot is None or row.boot_expires is None:
            return row.expires - self.wall
        if row.boot != self.boot:
            return min(0.0, row.expires - self.wall)  # its holder ended when the machine went down
        return row.boot_expires - self.ticks

    def until(self, seconds: float) -> dict[str, float | str | None]:
        """Return the columns of a lease that expires in this many seconds."""
        ticks = None if self.boot is None else self.ticks + seconds
        return {"expires": self.wall + seconds, "boot": self.boot, "boot_expires": ticks}


def on_this_machine(wall: float) -> Moment:
    """Return the present moment for a database whose users are all on this machine."""
    ticks = time.clock_gettime(time.CLOCK_BOOTTIME)
    return Moment(wall, _BOOT_ID.read_text().strip(), ticks)


def this_host() -> str:
    """Return an identifier of this machine since its boot.

    It differs between containers that share a host name, and between machines of the same name.
    """
    space = Path("/proc/self/ns/pid").readlink()
    return " ".join((socket.gethostname(), str(space), _BOOT_ID.read_text().strip()))


def started(host: str, pid: int) -> int | None:
    """Return when a process of this machine was started, in ticks since boot.

    That tells it from a later process of the same number. None: it runs on another machine, it is
    gone, or /proc hides it.
    """
    return proc.started(pid) if host == this_host() else None


def is_gone(host: str, pid: int, since: int | None) -> bool:
    """Return whether a process is known to be dead.

    Args:
        host: value of `this_host` where the process runs.
        since: value of `started` at that time.
    """
    if host != this_host() or since is None or started(host, pid) == since:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return started(host, pid) is not None  # another user's, which /proc may hide
    except ProcessLookupError:
        return True
    return True  # a zombie, or a later process of the same number
