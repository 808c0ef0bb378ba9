"""Finding and killing every process of a trial, whatever sessions its processes have opened.

Linux only. An agent is a child subreaper: a descendant whose parent dies is handed to the agent, so
walking parent links from the agent finds all of them, whether they called setsid or not.
"""

import contextlib
import ctypes
import os
import signal
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.002
_PATIENCE_SECONDS = 30.0
"""How long a process may take to die of SIGKILL: one that waits for a disk or a file system dies when
that answers, or never."""
_START_TIME = 19
"""Its place in /proc/PID/stat behind the name of the program; see proc_pid_stat(5)."""
_OOM_SCORE = 500
"""Of 1000, on top of the share of memory that it has."""
_SHOWN = 60
"""Characters of a command line."""

MARKER = "AUTOTUNE_AGENT"
"""Environment variable that names the agent in everything that descends from it."""
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
DUMP_SIGNAL = signal.SIGUSR1
"""Makes a rank print the stacks of all its threads to its log."""
STORAGE = "AUTOTUNE_STORAGE"
"""Where studies are stored, maybe with a password: no rank needs to know it."""


_OF_RANK = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "LOCAL_SIZE"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
        *("CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID", "SLURM_GTIDS"),
        *(
            "MPI_LOCALRANKID",
            "MPI_LOCALNRANKS",
            "PALS_RANKID",
            "PALS_LOCAL_RANKID",
            "FLUX_TASK_RANK",
        ),
    }
)
_OF_STEP = (
    *("TORCHELASTIC_", "SLURM_STEP", "SLURM_SRUN_", "SLURM_LAUNCH_NODE", "SLURM_PMI"),
    *("PMI_", "PMIX_", "OMPI_", "PRTE_", "MV2_COMM_WORLD_", "JSM_NAMESPACE_"),
)
"""Beginnings of the names of variables that torchrun, srun and mpirun set for each process."""


def become_subreaper() -> None:
    """Have orphaned descendants handed to this process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_first_without_memory() -> None:
    """Where memory runs out, have the kernel end this process and its children rather than the daemon,
    an agent or a neighbour: it takes the one that scores most."""
    own = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):  # as where /proc is read-only
        own.write_text(str(max(int(own.read_text()), _OOM_SCORE)))


def of_study(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of a study without those that are ours alone to set: the mark, the devices of a
    slot, and where studies are stored."""
    ours = (MARKER, VISIBLE_DEVICES, STORAGE)
    return {name: value for name, value in env.items() if name not in ours}


def is_of_rank(name: str) -> bool:
    """Return whether a variable tells a process which rank it is of a launch or of a batch step."""
    return name in _OF_RANK or name.startswith(_OF_STEP)


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what an agent may take over of an environment.

    A launch or a batch step that surrounds autotune has given its ranks to autotune, not to trials.
    """
    passed = without_storage(environment)
    return {name: value for name, value in passed.items() if not is_of_rank(name)}


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


class Survivors(Exception):
    """Processes that could not be killed; which, and why, in words."""


def kill_descendants(
    spare: set[int], timeout: float = _PATIENCE_SECONDS, *, keep: Collection[int] = ()
) -> None:
    """SIGKILL every descendant of this process but `spare`, until none is left.

    Args:
        spare: these processes alone.
        timeout: seconds.
        keep: these as well, whatever descends from them, and what has left them and is in their
            sessions still.

    Raises:
        Survivors: some survived, e.g. stuck in an uninterruptible system call, or of another user.
    """
    give_up = time.monotonic() + timeout
    me = os.getpid()
    while True:
        remaining = _living(descendants(me) - spare - _kept(keep))
        if remaining and time.monotonic() > give_up:
            raise Survivors(described(remaining))
        for pid in remaining:
            kill(pid)
        # One that was listed alive may fork and die before it is looked at: its child is in no list
        # yet, but it lies there dead. Hence none is left only when none of them had to be buried.
        if not _reap_adopted(spare) and not remaining:
            return
        time.sleep(_POLL_SECONDS)


def _kept(roots: Collection[int]) -> set[int]:
    """Processes with all that is theirs: descendants, and who has lost its parent in their sessions."""
    if not roots:
        return set()
    below = {pid for root in roots for pid in (root, *descendants(root))}
    return below | {pid for pid in _pids() if _session(pid) in below}


def _session(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None


def kill_marked(agent_id: str, timeout: float = _PATIENCE_SECONDS) -> list[int]:
    """SIGKILL every process that descends from a dead agent, found by the mark in its environment.

    Returns:
        The process ids that were killed, or told to die; `marked` tells which still live.
    """
    give_up = time.monotonic() + timeout
    killed: list[int] = []
    quiet = 0
    # One look may miss a child whose parent forks and dies while it is looked at.
    while quiet < 2 and time.monotonic() < give_up:
        marked = living_of(agent_id)
        for pid in marked:
            kill(pid)
        killed += [pid for pid in marked if pid not in killed]
        quiet = 0 if marked else quiet + 1
        time.sleep(_POLL_SECONDS)
    return killed


def living_of(agent_id: str) -> list[int]:
    """Living processes with the mark of an agent, but for this one."""
    mark = f"{MARKER}={agent_id}".encode()
    return [pid for pid, _, letter in _process_table() if _living_with(mark, pid, letter)]


def new_agent_id() -> str:
    """A mark that no other agent has. It tells who started the agent: this process."""
    me = os.getpid()
    return f"{_pid_space()}-{me}-{_started(me)}-{uuid.uuid4().hex}"


def sweep(timeout: float = _PATIENCE_SECONDS) -> str:
    """SIGKILL what is left of agents whose starter is dead: where both were killed at once, nobody has
    cleared away what had left their sessions.

    Returns:
        What survives, in words; empty if nothing does.
    """
    orphaned = {mark for pid, _, letter in _process_table() for mark in _orphaned(pid, letter)}
    for agent_id in orphaned:
        kill_marked(agent_id, timeout)
    return described(pid for agent_id in orphaned for pid in living_of(agent_id))


def _orphaned(pid: int, letter: str) -> list[str]:
    """The mark of a process, if nobody is left who would clear it away."""
    if pid == os.getpid() or letter in "ZX":
        return []
    named = f"{MARKER}=".encode()
    marks = [v[len(named) :].decode() for v in _environment(pid) if v.startswith(named)]
    return [mark for mark in marks if _starter_is_gone(mark)]


def _starter_is_gone(mark: str) -> bool:
    parts = mark.split("-")
    if len(parts) != 4 or parts[0] != _pid_space():
        return (
            False  # of another version, or of a container, whose processes have other numbers there
        )
    return _started(int(parts[1])) != parts[2]


def _pid_space() -> str:
    """The number of this process's namespace of process ids."""
    return str(os.stat("/proc/self/ns/pid").st_ino)  # noqa: PTH116


def _started(pid: int) -> str:
    """When a process began, in ticks since boot; empty if it is gone or dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    fields = stat[stat.rindex(b")") + 2 :].split()
    return "" if fields[0] in (b"Z", b"X") else fields[_START_TIME].decode()


def described(pids: Iterable[int]) -> str:
    """Processes that do not die, in words; empty if there are none."""
    return ", ".join(_described(pid) for pid in sorted(set(pids)))


def _described(pid: int) -> str:
    """Of one: what it is, and why it may not die."""
    try:
        words = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
        foreign = Path(f"/proc/{pid}").stat().st_uid not in (os.geteuid(),) and os.geteuid() != 0
    except OSError:
        words, foreign = "", False
    why = "of another user" if foreign else f"state {state(pid)}"
    return f"process {pid} ({words.strip()[:_SHOWN] or 'unknown'}, {why})"


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
    """SIGKILL, also to one that is already gone, or that another user has and that stays."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def state(pid: int) -> str:
    """The kernel's letter for what the process does (R, S, D, T, Z), or '?' if it is gone."""
    return next((letter for number, _, letter in _process_table([pid]) if number == pid), "?")


def _process_table(pids: list[int] | None = None) -> list[tuple[int, int, str]]:
    """(pid, parent pid, state) of all processes, or of those asked for."""
    pids = _pids() if pids is None else pids
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


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


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
