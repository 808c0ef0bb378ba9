"""Processes as /proc shows them, and signals to them.

Linux only; standard library only.
"""

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

_THREADS, _START_TIME = 17, 19
"""Indices of the number of threads and of the start time in /proc/PID/stat behind the name of the
program; see proc_pid_stat(5)."""
DEAD = "ZX"
"""Letters of the states of a process that has ended."""


def stat_of(process: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat behind the name of the program; none if it is gone.

    Args:
        process: its id; PID/task/TID of a thread.
    """
    return _stat(process)[1]


def program_of(pid: int) -> str:
    """Return the name of a living process's program; empty if it is gone or dead."""
    name, fields = _stat(pid)
    return name if fields and letter_of(pid, fields) not in DEAD else ""


def _stat(process: int | str) -> tuple[str, list[bytes]]:
    """Return the name of a process's program and the fields behind it; none if it is gone.

    The name is in parentheses, and may hold anything; see proc_pid_stat(5).
    """
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return "", []
    name, _, rest = stat.partition(b"(")[2].rpartition(b")")
    return name.decode(errors="replace"), rest.split()


def started(pid: int) -> int | None:
    """Return the start time of a process in ticks since boot; None if it is gone or dead."""
    fields = stat_of(pid)
    return None if not fields or letter_of(pid, fields) in DEAD else int(fields[_START_TIME])


def state(pid: int) -> str:
    """Return the kernel's letter for a process's state (R, S, D, T, Z), or '?' if it is gone."""
    return next((letter for number, _, letter in process_table([pid]) if number == pid), "?")


def process_table(pids: list[int] | None = None) -> list[tuple[int, int, str]]:
    """Return (pid, parent pid, state) of all processes, or of the given ones."""
    table = []
    for pid in every() if pids is None else pids:
        if fields := stat_of(pid):
            table.append((pid, int(fields[1]), letter_of(pid, fields)))
    return table


def children(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started.

    Raises:
        OSError: it or one of its threads is gone, or the kernel has no such lists
            (CONFIG_PROC_CHILDREN).
    """
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(number) for one in threads for number in (one / "children").read_text().split()]


def letter_of(pid: int, fields: Sequence[bytes]) -> str:
    """Return the kernel's letter for a process's state: of a living thread if the main one is dead.

    Args:
        pid: process.
        fields: of its /proc/PID/stat.
    """
    letter = fields[0].decode()
    if letter in DEAD and int(fields[_THREADS]) > 1:
        with contextlib.suppress(OSError):  # it has just ended
            threads = [stat_of(f"{pid}/task/{thread.name}") for thread in _threads(pid)]
            letters = [thread[0].decode() for thread in threads if thread]
            return next((one for one in letters if one not in DEAD), letter)
    return letter


def every() -> list[int]:
    """Return the ids of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def variables_of(pid: int) -> list[bytes]:
    """Return the variables a process was started with; none if it is gone or of another user."""
    try:
        return of_program(pid, "environ").split(b"\0")
    except OSError:
        return []


def words_of(pid: int) -> list[str]:
    """Return the command line of a process; none if it is gone."""
    try:
        return of_program(pid, "cmdline").decode(errors="replace").split("\0")
    except OSError:
        return []


def of_program(pid: int, name: str) -> bytes:
    """Return a file of /proc/PID about its program. A dead main thread has none: another one tells.

    Raises:
        OSError: the process is gone, or the kernel denies the file.
    """
    for place in _threads(pid):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # a thread that is dead
            if content := (place / name).read_bytes():
                return content
    return b""


def _threads(pid: int) -> Iterator[Path]:
    """Yield the folders in /proc of a process's main thread and then of all."""
    yield Path(f"/proc/{pid}")
    yield from Path(f"/proc/{pid}/task").iterdir()


def send(pid: int, number: int) -> None:
    """Send a signal to a process; ignore one that is gone or belongs to another user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill(pid: int) -> None:
    """SIGKILL a process; ignore one that is gone or belongs to another user."""
    send(pid, signal.SIGKILL)
