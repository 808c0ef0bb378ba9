"""Whether a process that holds a lease still lives, as far as that can be told: on its own machine."""

import os
import socket
from pathlib import Path

_START_TIME = 19
"""Its place in /proc/PID/stat behind the name of the program; see proc_pid_stat(5)."""


def this_host() -> str:
    """This machine since it was booted, told apart from containers that share its name, and from others
    of the same name."""
    space = Path("/proc/self/ns/pid").readlink()
    boot = Path("/proc/sys/kernel/random/boot_id")
    return " ".join((socket.gethostname(), str(space), boot.read_text().strip()))


def started(host: str, pid: int) -> int | None:
    """When a process of this machine was started, in ticks since boot, which tells it from a later one
    of the same number. None: it is on another machine, it is gone, or nobody lets us see it."""
    if host != this_host():
        return None
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    letter, *fields = stat[stat.rindex(b")") + 2 :].split()  # the name before may hold anything
    return None if letter in (b"Z", b"X") else int(fields[_START_TIME - 1])


def is_gone(host: str, pid: int, since: int | None) -> bool:
    """Whether a process is known to be dead.

    Args:
        host: as `this_host` told it where the process runs.
        since: what `started` told of it then.
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
