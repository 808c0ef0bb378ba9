"""Programs that start a command's ranks elsewhere, and how they are ended.

Such ranks do not descend from the agent: a daemon on their node has started them (slurmd, orted,
kubelet). SIGKILL of the program leaves them running. SIGTERM makes it end them first.

Linux only; standard library only.
"""

import contextlib
import itertools
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from autotune.worker import proc

GRACE_SECONDS = 5.0
"""Timeout for such a program to end its ranks.

srun takes two seconds for ranks that ignore SIGTERM. The time is shorter than that after which an
agent is killed that does not leave."""
_POLL_SECONDS = 0.02
_SLURM_SECONDS = 5.0
"""Timeout of a query to slurmctld."""
LAUNCHER_PROGRAMS = frozenset(
    {"torchrun", "accelerate", "accelerate-launch", "deepspeed", "fabric"}
)
"""Programs that start the ranks of a script on this node."""
LAUNCHER_MODULES = frozenset(
    {
        *("torch.distributed.run", "torch.distributed.launch"),
        *("accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
        "deepspeed.launcher.runner",
    }
)
"""Their modules behind `python -m`."""
LAUNCHERS = LAUNCHER_PROGRAMS | LAUNCHER_MODULES
OF_MPI = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun"})
"""Programs of MPI: they start ranks on this node, and elsewhere if they are told other hosts."""
_DEEPSPEED = "deepspeed"
_TOLD_HOSTS = OF_MPI | {"horovodrun"}
_ELSEWHERE = frozenset(
    {
        *("srun", "kubectl", "docker", "podman", "aprun", "jsrun", "flux", "ray"),
        *("ssh", "rsh", "pdsh", "clush", "pssh", "parallel-ssh"),
    }
)
_STARTERS = _TOLD_HOSTS | _ELSEWHERE
OWN_ENVIRONMENT = OF_MPI | {
    *("docker", "podman", "apptainer", "singularity", "kubectl", "sudo", "ssh", "systemd-run")
}
"""Programs whose processes may lack variables of this environment."""
_HOSTS = frozenset(
    {
        *("-H", "-host", "--host", "-hosts", "--hosts", "-hostfile", "--hostfile"),
        *("-f", "-machinefile", "--machinefile", "--default-hostfile"),
    }
)
"""Options of mpirun and its like that name hosts."""
_JOB_HOSTS = Path("/job/hostfile")
"""File of hosts that deepspeed reads where it is told no other one."""
PASSING = {
    "time": ("fo", 0),
    "nohup": ("", 0),
    "nice": ("n", 0),
    "ionice": ("cn", 0),
    "stdbuf": ("ioe", 0),
    "unbuffer": ("", 0),
    "setsid": ("", 0),
    "exec": ("a", 0),
    "command": ("", 0),
    "timeout": ("ks", 1),
}
"""Programs that run the rest of their words and do not change its process.

Each has its one-letter options with a value, and the number of words in front of the command.
"""
BINDING = ("taskset", "numactl", "chrt", "prlimit", "systemd-run", "cgexec")
"""Programs that run the rest of their words, and say where or within which limits."""
_WRAPPERS = frozenset({"env", "sudo", *PASSING, *BINDING})
_OPTIONS = {
    **PASSING,
    "env": ("uC", 0),
    "sudo": ("ugpCDhRrTtU", 0),
    "taskset": ("", 1),
    "numactl": ("CNmipPw", 0),
    "chrt": ("TPD", 1),
    "systemd-run": ("puEMH", 0),
    "cgexec": ("g", 0),
}
"""Likewise of all that run the rest of their words, as far as they have such options."""
_OF_WRAPPER = re.compile(r"-.*|\w+=.*|[\d.]+[smhd]?")
"""Words of these before that: options of others, with numbers, and variables."""
_SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
_OF_TEXT = re.compile(r"-[a-z]*c")
"""Option of a shell before the text of a command."""
_BETWEEN = re.compile(r"[;&|()\n]+")
"""Ends of the commands in such a text."""
UNPROTECTED = (
    "`{}` starts processes outside of the trial, where nothing keeps them from changing files"
)
"""Reason to refuse a command with such a program, which the braces stand for."""
_THIS_HOST = ("localhost", "127.0.0.1")
_SLURM = "srun"
_STEP_NAME = "--job-name="


def named(argv: Sequence[str]) -> list[str]:
    """Return a command in which a step of Slurm has a name of its own, by which it can be cancelled.

    A name that the command itself gives to the step stays.
    """
    found = list(argv)
    place = next((n for n, word in enumerate(found) if Path(word).name == _SLURM), None)
    if place is not None:
        found.insert(place + 1, f"{_STEP_NAME}autotune-{secrets.token_hex(8)}")
    return found


def elsewhere(argv: Sequence[str]) -> str:
    """Return the program of a command that starts ranks outside of its own processes; empty: none.

    Such ranks are not in the namespace of the command, nor do they inherit its restrictions. Only what
    a command begins with is a program: its arguments may have any name.
    """
    return next(filter(None, map(_reaching, _commands(argv))), "")


def is_mpi_elsewhere(argv: Sequence[str]) -> bool:
    """Return whether a command is mpirun or its like, and is told other hosts."""
    return elsewhere(argv) in OF_MPI


def _commands(argv: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield a command without what it begins with, such as env, and those in the text of a shell."""
    words = _without_wrappers(argv)
    yield words
    if not words or Path(words[0]).name not in _SHELLS:
        return
    pairs = itertools.pairwise(words)
    text = next((text for option, text in pairs if _OF_TEXT.fullmatch(option)), "")
    for part in _BETWEEN.split(text):
        yield _without_wrappers(part.split())


def _without_wrappers(argv: Sequence[str]) -> list[str]:
    rest = list(argv)
    while rest and (Path(rest[0]).name in _WRAPPERS or _OF_WRAPPER.fullmatch(rest[0])):
        rest = rest_of(rest)
    return rest


def rest_of(words: Sequence[str]) -> list[str]:
    """Return a command without the program that it begins with, and that program's options."""
    program = "" if "=" in words[0] else Path(words[0]).name
    letters, positional = _OPTIONS.get(program, ("", 0))
    rest = list(words[1:])
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            break
        if len(option) == 2 and option[1] in letters:
            del rest[:1]
    return rest[positional:]


def _reaching(words: Sequence[str]) -> str:
    """Return the program that these words begin with, if its ranks are elsewhere; else nothing."""
    name = Path(words[0]).name if words else ""
    reaches = (
        name in _ELSEWHERE
        or (name in _TOLD_HOSTS and _names_others(words[1:]))
        or (name == _DEEPSPEED and _reads_others(words[1:]))
    )
    return name if reaches else ""


def _names_others(words: Sequence[str]) -> bool:
    """Return whether the options of mpirun name other hosts."""
    named = [value for option, value in _options(words) if option in _HOSTS]
    hosts = itertools.chain.from_iterable(value.split(",") for value in named)
    return any(host.partition(":")[0] not in _THIS_HOST for host in hosts)


def _reads_others(words: Sequence[str]) -> bool:
    """Return whether deepspeed's file of hosts has several; one that cannot be read here may have."""
    named = next((value for option, value in _options(words) if option in _HOSTS), "")
    try:
        lines = Path(named or _JOB_HOSTS).read_text(errors="replace").splitlines()
    except OSError:
        return bool(named)
    return len({line.split()[0] for line in lines if line.strip() and line[0] != "#"}) > 1


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield options with their values, up to the program that follows them."""
    for before, word, following in zip(("", *words), words, (*words[1:], ""), strict=False):
        if not (word.startswith("-") or before.startswith("-")):
            return  # no value of an option: the program
        option, _, value = word.partition("=")
        if word.startswith("-H") and len(word) > 2:
            option, value = "-H", word[2:]
        yield option, value or following


def among(pids: Collection[int]) -> set[int]:
    """Return the living processes that run one of these programs, of deepspeed if hosts are named."""
    return {pid for pid in pids if _is_starter(pid)}


def _is_starter(pid: int) -> bool:
    name = proc.program_of(pid)
    if name != _DEEPSPEED:
        return name in _STARTERS
    words = proc.words_of(pid)
    place = next((n for n, word in enumerate(words) if Path(word).name == name), 0)
    return _reads_others(words[place + 1 :])


def end(starters: Collection[int], grace: float = GRACE_SECONDS) -> None:
    """Have these programs end their ranks; kill those that have not left in time.

    A Slurm step whose srun had to be killed is cancelled by its name.
    """
    for pid in starters:
        for number in (signal.SIGTERM, signal.SIGCONT):
            proc.send(pid, number)
    give_up = time.monotonic() + grace
    while (left := among(starters)) and time.monotonic() < give_up:
        time.sleep(_POLL_SECONDS)
    steps = {name for pid in left if (name := _step_of(pid))}
    for pid in left:
        proc.kill(pid)
    if steps:
        _cancel(steps)


def _step_of(pid: int) -> str:
    """Return the name of the step that `named` has given to an srun; empty if it has none."""
    given = f"{_STEP_NAME}autotune-"
    return next((w.removeprefix(_STEP_NAME) for w in proc.words_of(pid) if w.startswith(given)), "")


def _cancel(names: Collection[str]) -> None:
    """Cancel the steps, and the jobs, of these names, as far as slurmctld answers."""
    if shutil.which("squeue") is None or shutil.which("scancel") is None:
        return
    ids = []
    for of_steps in ([], ["--steps"]):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            listed = _output("squeue", "--noheader", *of_steps, "--format=%i %j")
            rows = (line.split(maxsplit=1) for line in listed.splitlines())
            ids += [row[0] for row in rows if len(row) > 1 and row[1].strip() in names]
    for how in (
        (["--signal=KILL"], []) if ids else ()
    ):  # by itself it waits for those that ignore SIGTERM
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _output("scancel", *how, *ids)


def _output(*command: str) -> str:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SLURM_SECONDS
    ).stdout
