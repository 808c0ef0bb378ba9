"""Identity and liveness of processes that hold leases, as far as their own machine can tell."""

import os
import pwd
import socket
from pathlib import Path

_START_TIME = 19
"""Index in /proc/PID/stat, counted behind the name of the program; see proc_pid_stat(5)."""


def this_host() -> str:
    """Return an identifier of this machine since its boot.

    It differs between containers that share a host name, and between machines of the same name.
    """
    space = Path("/proc/self/ns/pid").readlink()
    boot = Path("/proc/sys/kernel/random/boot_id")
    return " ".join((socket.gethostname(), str(space), boot.read_text().strip()))


def user_name() -> str:
    """Return the name of this process's account, whatever the environment says."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name.replace(" ", "_")
    except KeyError:  # an account without a name, as in containers
        return str(os.geteuid())


def started(host: str, pid: int) -> int | None:
    """Return when a process of this machine was started, in ticks since boot.

    That tells it from a later process of the same number. None: it runs on another machine, it is
    gone, or /proc hides it.
    """
    if host != this_host():
        return None
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    letter, *fields = stat[stat.rindex(b")") + 2 :].split()  # the name before may hold anything
    return None if letter in (b"Z", b"X") else int(fields[_START_TIME - 1])


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
