"""Finding and killing every process of a trial, whatever sessions its processes have opened.

Linux only. An agent is a child subreaper: a descendant whose parent dies is handed to the agent, so
walking parent links from the agent finds all of them, whether they called setsid or not.
"""

import ctypes
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.002

MARKER = "AUTOTUNE_AGENT"
"""Environment variable that names the agent in everything that descends from it."""
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
STORAGE = "AUTOTUNE_STORAGE"
"""Where studies are stored, maybe with a password: no rank needs to know it."""


def become_subreaper() -> None:
    """Have orphaned descendants handed to this process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def of_study(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of a study without those that are ours alone to set: the mark, the devices of a
    slot, and where studies are stored."""
    ours = (MARKER, VISIBLE_DEVICES, STORAGE)
    return {name: value for name, value in env.items() if name not in ours}


def without_storage(environment: Mapping[str, str]) -> dict[str, str]:
    """What may be passed on of an environment."""
    return {name: value for name, value in environment.items() if name != STORAGE}


def descendants(root: int) -> set[int]:
    """Process ids of all living descendants of `root`, zombies included."""
    children: dict[int, list[int]] = {}
    for pid, parent, _ in _process_table():
        children.setdefault(parent, []).append(pid)
    below: set[int] = set()
    pending = [root]
    while pending:
        for child in children.get(pending.pop(), []):
            below.add(child)
            pending.append(child)
    return below


def kill_descendants(spare: set[int], timeout: float = 30.0) -> None:
    """SIGKILL every descendant of this process but `spare`, until none is left.

    Raises:
        TimeoutError: some survived, e.g. stuck in an uninterruptible system call.
    """
    give_up = time.monotonic() + timeout
    me = os.getpid()
    while True:
        remaining = _living(descendants(me) - spare)
        if remaining and time.monotonic() > give_up:
            raise TimeoutError(f"processes {sorted(remaining)} survive SIGKILL")
        for pid in remaining:
            kill(pid)
        # One that was listed alive may fork and die before it is looked at: its child is in no list
        # yet, but it lies there dead. Hence none is left only when none of them had to be buried.
        if not _reap_adopted(spare) and not remaining:
            return
        time.sleep(_POLL_SECONDS)


def kill_marked(agent_id: str) -> list[int]:
    """SIGKILL every process that descends from a dead agent, found by the mark in its environment.

    Returns:
        The process ids that were killed.
    """
    mark = f"{MARKER}={agent_id}".encode()
    killed: list[int] = []
    quiet = 0
    while quiet < 2:  # one look may miss a child whose parent forks and dies while it is looked at
        marked = [pid for pid, _, letter in _process_table() if _living_with(mark, pid, letter)]
        for pid in marked:
            kill(pid)
        killed += [pid for pid in marked if pid not in killed]
        quiet = 0 if marked else quiet + 1
        time.sleep(_POLL_SECONDS)
    return killed


def is_marked(pid: int) -> bool:
    """Whether a process descends from an agent, of whatever slot."""
    return any(variable.startswith(f"{MARKER}=".encode()) for variable in _environment(pid))


def _living_with(mark: bytes, pid: int, letter: str) -> bool:
    if pid == os.getpid() or letter in "ZX":
        return False
    return mark in _environment(pid)


def _environment(pid: int) -> list[bytes]:
    """The variables that a process was started with; none if it is gone, or another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def kill(pid: int) -> None:
    """SIGKILL, also to one that is already gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def state(pid: int) -> str:
    """The kernel's letter for what the process does (R, S, D, T, Z), or '?' if it is gone."""
    return next((letter for number, _, letter in _process_table([pid]) if number == pid), "?")


def _process_table(pids: list[int] | None = None) -> list[tuple[int, int, str]]:
    """(pid, parent pid, state) of all processes, or of those asked for."""
    if pids is None:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    table = []
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            continue
        # The second field is the command in parentheses, which may hold anything.
        fields = stat[stat.rindex(b")") + 2 :].split()
        table.append((pid, int(fields[1]), fields[0].decode()))
    return table


def _living(pids: set[int]) -> set[int]:
    return {pid for pid, _, letter in _process_table(sorted(pids)) if letter not in "ZX"}


def _reap_adopted(spare: set[int]) -> bool:
    """Bury the dead children of this process; whether there were any."""
    me = os.getpid()
    dead = [
        pid
        for pid, parent, letter in _process_table()
        if parent == me and letter == "Z" and pid not in spare
    ]
    for pid in dead:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass
    return bool(dead)
