"""Find and kill every process of a trial, whatever sessions its processes have opened.

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

from autotune.worker import proc, starters

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.002
_PATIENCE_SECONDS = 30.0
"""Timeout for a process to die of SIGKILL.

A process that waits for a disk or a file system dies when that answers, or never.
"""
_REMOVERS = (b"multiprocessing.resource_tracker import", b"torch_shm_manager")
"""Parts of the command lines of Python's and torch's processes that remove shared memory.

Each ends by itself once all processes that use it have ended, after it has removed what they left."""
_REMOVAL_SECONDS = 3.0
"""Timeout for such a process to end by itself: Python's does at once, torch's after two seconds."""
_OOM_SCORE = 500
"""Points of 1000, on top of the share of memory that the process has."""
_SHOWN = 60
"""Characters shown of a command line."""

MARKER = "AUTOTUNE_AGENT"
"""Environment variable that names the agent in everything that descends from it."""
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
NO_DEVICES = ("", "-1", "none", "NoDevFiles")
"""Usual values of that which hide all devices."""
DUMP_SIGNAL = signal.SIGRTMAX - 2
"""Signal that makes a rank print the stacks of all its threads to its log.

Scripts have handlers of SIGUSR1 and SIGUSR2 of their own, e.g. to requeue their job.
"""
STORAGE = "AUTOTUNE_STORAGE"
"""Variable with the address of the studies, maybe with a password; no rank needs to know it."""


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
    *("PMI_", "MV2_COMM_WORLD_", "JSM_NAMESPACE_"),
)
"""Prefixes of variables that torchrun, srun and mpirun set for each process."""
_OF_MPI = {"OMPI_": "OMPI_COMM_WORLD_RANK", "PMIX_": "PMIX_RANK", "PRTE_": "PMIX_RANK"}
"""Prefix of variables that mpirun sets for each process, and a user for mpirun: variable that only
a process of mpirun has."""
_FOR_MPIRUN = "OMPI_ALLOW_"
"""Prefix of settings that mpirun itself does not set."""


def become_subreaper() -> None:
    """Let the kernel hand orphaned descendants to this process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def leave_with(parent: int) -> None:
    """Have the kernel send SIGTERM to this process, just forked, once its parent has ended.

    For the kernel the parent is the thread that has forked it, so that has to be one that stays.
    """
    # Until exec the child has the handlers of its parent, with which the signal would be lost.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


def end_first_without_memory() -> None:
    """Let the kernel's out-of-memory killer prefer this process and its children.

    The daemon, the agent and other users' processes then survive.
    """
    own = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):  # /proc may be read-only
        own.write_text(str(max(int(own.read_text()), _OOM_SCORE)))


def study_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return a study's variables without those that autotune sets: mark, devices and storage."""
    ours = (MARKER, VISIBLE_DEVICES, STORAGE)
    return {name: value for name, value in env.items() if name not in ours}


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that an agent may inherit.

    A launch or a batch step that surrounds autotune has given its ranks to autotune, not to trials.
    Where mpirun has set variables, those of the user among them cannot be told apart.
    """
    passed = without_storage(environment)
    prefixes = _OF_STEP + tuple(prefix for prefix, rank in _OF_MPI.items() if rank in passed)
    return {
        name: value
        for name, value in passed.items()
        if name.startswith(_FOR_MPIRUN) or not (name in _OF_RANK or name.startswith(prefixes))
    }


def without_storage(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the address of the studies."""
    return {name: value for name, value in environment.items() if name != STORAGE}


def descendants(root: int) -> set[int]:
    """Return the process ids of all living descendants of `root`, zombies included."""
    children: dict[int, list[int]] = {}
    for pid, parent, _ in proc.process_table():
        children.setdefault(parent, []).append(pid)
    below: set[int] = set()
    pending = [root]
    while pending:
        for child in children.get(pending.pop(), []):
            below.add(child)
            pending.append(child)
    return below


def started_by(root: int) -> set[int]:
    """Return most living descendants of `root` at little cost, as the kernel lists them.

    One that is started or orphaned meanwhile may be missing.
    """
    found, pending = set[int](), [root]
    try:
        while pending:
            below = proc.children(pending.pop())
            found.update(below)
            pending += below
    except OSError:
        return descendants(root)
    return found


class Survivors(Exception):
    """Processes that could not be killed; the text says which, and why."""


def kill_descendants(
    spare: set[int], timeout: float = _PATIENCE_SECONDS, *, keep: Collection[int] = ()
) -> None:
    """SIGKILL every descendant of this process except `spare`, until none is left.

    A program that starts ranks elsewhere is first given time to end them (`starters`). Processes that
    remove shared memory of the others are killed last.

    Args:
        spare: processes to leave alone; their descendants are killed.
        timeout: seconds.
        keep: processes to leave with all descendants and with orphans in their sessions.

    Raises:
        Survivors: some survived, e.g. stuck in an uninterruptible system call, or of another user.
    """
    me = os.getpid()
    _end_starters(_living(descendants(me) - spare - _kept(keep)))
    order = _Order()
    give_up = time.monotonic() + timeout
    while True:
        remaining = _living(descendants(me) - spare - _kept(keep))
        if remaining and time.monotonic() > give_up:
            raise Survivors(described(remaining))
        for pid in order.of(remaining):
            proc.kill(pid)
        # A listed process may fork and die before it is signalled. Its child is in no list yet, but the
        # process remains as a zombie: hence none is left only when no zombie had to be reaped.
        if not _reap_adopted(spare) and not remaining:
            return
        time.sleep(_POLL_SECONDS)


class _Order:
    """Order in which processes are killed: first those that use shared memory, then its removers."""

    def __init__(self) -> None:
        self._alone_since: float | None = None

    def of(self, pids: Collection[int]) -> Collection[int]:
        """Return which of these processes are killed now."""
        others = [pid for pid in pids if not removes_segments(pid)]
        now = time.monotonic()
        if others or self._alone_since is None:
            self._alone_since = now
            return others
        return pids if now - self._alone_since > _REMOVAL_SECONDS else ()


def removes_segments(pid: int) -> bool:
    """Return whether a process is one that removes shared memory of others once they have ended."""
    with contextlib.suppress(OSError):
        command = proc.of_program(pid, "cmdline")
        return any(part in command for part in _REMOVERS)
    return False


def _end_starters(pids: Collection[int]) -> None:
    """Have programs among these processes that start ranks elsewhere end them.

    A process above such a program, such as a shell, is killed first: it might start another one.
    """
    elsewhere = starters.among(pids)
    if not elsewhere:
        return
    below = {pid for root in elsewhere for pid in (root, *descendants(root))}
    for pid in set(pids) - below:
        proc.kill(pid)
    starters.end(elsewhere)


def _kept(roots: Collection[int]) -> set[int]:
    """Return processes with their descendants and the orphans in their sessions."""
    if not roots:
        return set()
    below = {pid for root in roots for pid in (root, *descendants(root))}
    return below | {pid for pid in proc.every() if _session(pid) in below}


def _session(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None


def kill_marked(agent_id: str, timeout: float = _PATIENCE_SECONDS) -> list[int]:
    """SIGKILL every process that descends from a dead agent, found by the mark in its environment.

    Returns:
        The process ids that were signalled; `living_of` tells which still live.
    """
    killed = living_of(agent_id)
    _end_starters(killed)
    give_up = time.monotonic() + timeout
    quiet, order = 0, _Order()
    # One pass may miss a child whose parent forks and dies meanwhile.
    while quiet < 2 and time.monotonic() < give_up:
        marked = living_of(agent_id)
        for pid in order.of(marked):
            proc.kill(pid)
        killed += [pid for pid in marked if pid not in killed]
        quiet = 0 if marked else quiet + 1
        time.sleep(_POLL_SECONDS)
    return killed


def living_of(agent_id: str) -> list[int]:
    """Return living processes with the mark of an agent, except this one."""
    mark = f"{MARKER}={agent_id}".encode()
    return [pid for pid, _, letter in proc.process_table() if _living_with(mark, pid, letter)]


def new_agent_id() -> str:
    """Return a new, unique mark. It encodes which process starts the agent: this one."""
    me = os.getpid()
    return f"{_pid_space()}-{me}-{proc.started(me)}-{uuid.uuid4().hex}"


def sweep(timeout: float = _PATIENCE_SECONDS) -> str:
    """SIGKILL what is left of agents whose starter is dead.

    Where both were killed at once, processes that had left their sessions remain.

    Returns:
        What survives, in words; empty if nothing does.
    """
    orphaned = {mark for pid, _, letter in proc.process_table() for mark in _orphaned(pid, letter)}
    for agent_id in orphaned:
        kill_marked(agent_id, timeout)
    return described(pid for agent_id in orphaned for pid in living_of(agent_id))


def _orphaned(pid: int, letter: str) -> list[str]:
    """Return the mark of a process if the starter of its agent is dead, else an empty list."""
    if pid == os.getpid() or letter in proc.DEAD:
        return []
    named = f"{MARKER}=".encode()
    marks = [v[len(named) :].decode() for v in proc.variables_of(pid) if v.startswith(named)]
    return [mark for mark in marks if _starter_is_gone(mark)]


def _starter_is_gone(mark: str) -> bool:
    pid, start = _starter_of(mark)
    return pid is not None and str(proc.started(pid)) != start


def _starter_of(mark: str) -> tuple[int | None, str]:
    """Return the process id and the start time of what has started an agent; None if it is not known.

    It is not by a mark of another version, or of a container with process ids of its own.
    """
    parts = mark.split("-")
    if len(parts) != 4 or parts[0] != _pid_space():
        return None, ""
    return int(parts[1]), parts[2]


def _pid_space() -> str:
    """Return the number of this process's namespace of process ids."""
    return str(os.stat("/proc/self/ns/pid").st_ino)  # noqa: PTH116


def described(pids: Iterable[int]) -> str:
    """Describe processes that do not die; return an empty text if there are none."""
    return ", ".join(_described(pid) for pid in sorted(set(pids)))


def _described(pid: int) -> str:
    """Describe one process, and why it may not die."""
    try:
        words = proc.of_program(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")
        foreign = Path(f"/proc/{pid}").stat().st_uid != os.geteuid() and os.geteuid() != 0
    except OSError:
        words, foreign = "", False
    why = "of another user" if foreign else f"state {proc.state(pid)}"
    return f"process {pid} ({words.strip()[:_SHOWN] or 'unknown'}, {why})"


def is_ours(pid: int) -> bool | None:
    """Return whether a process descends from an agent of any slot; None if that is not known.

    The kernel denies the environment of a process in another user namespace, such as that of an
    interleaved trial. Its parents are not denied: what has started this process's agent is one of them.
    """
    if _starter_of(os.environ.get(MARKER, ""))[0] in _ancestors(pid):
        return True
    try:
        variables = proc.of_program(pid, "environ").split(b"\0")
    except OSError:
        return None if _is_of_this_user(pid) else False
    return any(variable.startswith(f"{MARKER}=".encode()) for variable in variables)


def _ancestors(pid: int) -> set[int]:
    above: set[int] = set()
    while fields := proc.stat_of(pid):
        pid = int(fields[1])
        above.add(pid)
    return above


def _is_of_this_user(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    return False


def _living_with(mark: bytes, pid: int, letter: str) -> bool:
    if pid == os.getpid() or letter in proc.DEAD:
        return False
    return mark in proc.variables_of(pid)


def _living(pids: set[int]) -> set[int]:
    return {pid for pid, _, letter in proc.process_table(sorted(pids)) if letter not in proc.DEAD}


def _reap_adopted(spare: set[int]) -> bool:
    """Reap the dead children of this process; return whether there were any."""
    me = os.getpid()
    dead = [
        pid
        for pid, parent, letter in proc.process_table()
        if parent == me and letter == "Z" and pid not in spare
    ]
    for pid in dead:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass
    return bool(dead)
