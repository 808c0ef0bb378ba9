"""Programs in front of a script or its launcher in a command, and how each is handled."""

import itertools
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import BadInput
from autotune.standalone import interpreters
from autotune.standalone.launched import COMMAND_FIELD, Launched, NoScript, by_torchrun
from autotune.worker.protocol import PYTHON
from autotune.worker.python_command import is_python, parsed
from autotune.worker.starters import BINDING, LAUNCHER_PROGRAMS, OF_MPI, PASSING, rest_of

_MANAGERS = (
    "uv",
    "poetry",
    "pdm",
    "pipenv",
    "conda",
    "mamba",
    "micromamba",
    "hatch",
    "rye",
    "pixi",
)
_INSTALLING = ("uv", "pdm", "hatch")
"""Those of them that install the packages which a script names itself."""
_STARTS_RANKS = {
    **dict.fromkeys(OF_MPI, ("-np", "--np", "-n", "--n", "-c")),
    "horovodrun": ("-np", "--num-proc"),
    "composer": ("-n", "--nproc"),
    "colossalai": ("--nproc_per_node",),
    "jsrun": ("-n", "--nrs", "-p", "--np"),
    "aprun": ("-n", "--pes"),
    "flux": ("-n", "--ntasks"),
}
"""Programs that start several processes of a script, and their options for the number."""
_NODES, _TASKS = ("-N", "--nodes"), ("-n", "--ntasks")
"""Options of srun for the number of nodes and of processes."""
_OWN_FOLDER = "change to that folder before you type autotune"
_VARIABLES = "say the variables under `env` of study.yaml, or set them before autotune"
_UNLIKE_TRIALS = {
    "--env-file": _VARIABLES,
    "--export": _VARIABLES,
    "--container": "run autotune in that container",
    "--chdir": _OWN_FOLDER,
    "--cwd": _OWN_FOLDER,
    "--directory": _OWN_FOLDER,
    "-D": _OWN_FOLDER,
}
"""Beginnings of options of srun and of managers that trials cannot follow -> what to do instead."""
_UNLIKE_TRIALS_OF = {"poetry": {"-C": _OWN_FOLDER}}
"""Likewise, of one manager alone."""
_PACKAGES = re.compile(rb"^# /// script\s*$", re.MULTILINE)
"""Line with which a script begins to name its packages itself (PEP 723)."""
_EXPORT_ALL = re.compile("--export[= ]all", re.IGNORECASE)
"""Option of srun that changes nothing."""
_WITH_NAME = {
    **dict.fromkeys(("conda", "mamba", "micromamba"), ("-n", "--name", "-p", "--prefix")),
    "uv": ("-p", "--python"),
    "pixi": ("-e", "--environment"),
    "hatch": ("-e", "--env"),
    "srun": ("-J", "--job-name", "-p", "--partition", "-A", "--account", "-o", "--output"),
}
"""Programs, and their options whose value may be named as a program is."""


@dataclass(frozen=True)
class Passed:
    """Rest of a command behind a program.

    Attributes:
        words: behind the program.
        python: words that start the command's python, where the program chooses it.
        check: called with the parsed rest; may raise.
    """

    words: tuple[str, ...]
    python: tuple[str, ...] = ()
    check: Callable[[Launched], None] = lambda _: None


def taken_off(words: Sequence[str], *, for_trials: bool = True) -> Passed | None:
    """Return a command without the program in front; None if it is not one of these programs.

    Args:
        for_trials: whether trials are to follow it; else what the program does besides is passed over.

    Raises:
        NoScript: no python follows.
        BadInput: trials cannot follow what the program does with the script; the message says what
            to type.
    """
    name = Path(words[0]).name
    if name == "env":
        return _env(words) if for_trials else Passed(tuple(rest_of(words)))
    if name in PASSING:
        return Passed(tuple(rest_of(words)))
    if name in BINDING and not for_trials:
        return Passed(tuple(words[_program_place(words) :]))
    if name in BINDING:
        raise _binding(words)
    if name in _MANAGERS:
        return _manager(words, for_trials=for_trials)
    if name == "srun":
        return _srun(words, for_trials=for_trials)
    if name in _STARTS_RANKS:
        raise _starts_ranks(words, _number(words, _STARTS_RANKS[name]) or "N")
    return None


def unknown(words: Sequence[str]) -> BadInput:
    """Return the error for a command that begins with an unknown program."""
    script = _script(words[1:])
    if not script:
        return NoScript(
            f"the command runs no training script that is known here: {shlex.join(words)}; give one "
            "with torchrun, accelerate launch, deepspeed, fabric run or python"
        )
    return BadInput(
        f"{words[0]} is no launch command that autotune knows, so that what it makes of "
        f"{_name(script)} is not known either: give `python {shlex.join(script)}`, or, where it "
        f"starts several ranks, `{by_torchrun(script, 'N')}`; what has to run as it is goes "
        f"into study.yaml as {COMMAND_FIELD}"
    )


def _env(words: Sequence[str]) -> Passed:
    rest = list(words[1:])
    if rest and rest[0] == "--":
        del rest[0]
    elif rest and rest[0].startswith("-"):
        instead = f"type it before autotune, `env {rest[0]} ... autotune init -- ...`"
        raise _unlike_trials("env", rest[0], instead)
    return Passed(tuple(rest))


def _binding(words: Sequence[str]) -> BadInput:
    place = _program_place(words)
    before, behind = shlex.join(words[:place]), shlex.join(words[place:])
    return BadInput(
        f"{words[0]} decides where the job runs, and trials would run elsewhere: type it before "
        f"autotune, `{before} autotune init -- {behind}`, and `{before} autotune start --foreground`"
    )


def _manager(words: Sequence[str], *, for_trials: bool) -> Passed:
    place = _program_place(words)
    if place == len(words):
        raise unknown(words)
    if for_trials:
        _check_options(words[:place])
    before, behind = words[:place], words[place:]
    if behind[0] in ("-m", "--module") or behind[0].endswith(".py"):
        if for_trials and Path(words[0]).name in _INSTALLING:
            _check_packages(words[0], behind[0])
        behind = ("python", *behind)  # as `uv run` takes them
    return Passed(tuple(behind), (*before, "python"))


def _check_packages(manager: str, script: str) -> None:
    """Check a script that a manager runs itself.

    Raises:
        BadInput: it names its packages, and is run in an environment of its own.
    """
    path = Path(script)
    if path.is_file() and _PACKAGES.search(path.read_bytes()):
        raise BadInput(
            f"{script} names its packages itself (# /// script), and {manager} runs it in an "
            "environment of its own, in which trials are not: install these packages beside autotune, "
            f"and give `python {script}`"
        )


def _check_options(words: Sequence[str]) -> None:
    """Check a program and its options.

    Raises:
        BadInput: one makes the script's process another one than that of trials.
    """
    unlike = _UNLIKE_TRIALS | _UNLIKE_TRIALS_OF.get(Path(words[0]).name, {})
    for word, value in itertools.pairwise([*words, ""]):
        instead = next((unlike[one] for one in unlike if word.startswith(one)), "")
        if instead and not _EXPORT_ALL.fullmatch(word if "=" in word else f"{word} {value}"):
            raise _unlike_trials(words[0], word, instead)


def _unlike_trials(program: str, option: str, instead: str) -> BadInput:
    return BadInput(
        f"{program} is told {option}, which trials cannot follow: {instead}, and leave it out of the "
        "command"
    )


def _srun(words: Sequence[str], *, for_trials: bool) -> Passed:
    place = _program_place(words)
    if place == len(words):
        raise unknown(words)
    options, command = words[:place], words[place:]
    if for_trials:
        _check_options(options)
    nodes = _number(options, _NODES) or _of_allocation(options, _NODES, "SLURM_NNODES")
    nodes = nodes or "1"
    tasks = _number(options, _TASKS)
    if not tasks and (each := _number(options, ("--ntasks-per-node",))):
        tasks = str(int(nodes) * int(each))
    tasks = tasks or _of_allocation(options, _TASKS, "SLURM_NTASKS") or nodes

    def check(launched: Launched) -> None:
        if int(tasks) == launched.nodes:
            return
        by_tasks = max(1, int(tasks) // int(nodes))
        per_node = by_tasks if launched.launch == PYTHON else launched.workers_per_node or "gpu"
        raise BadInput(
            f"srun starts {tasks} times what follows, which is made for {launched.nodes}: trials start "
            "ranks as torchrun does, with RANK and WORLD_SIZE; if the script takes those, give "
            f"`{by_torchrun(launched.words, str(per_node), nodes)}`"
        )

    return Passed(tuple(command), check=check)


def _of_allocation(words: Sequence[str], options: Sequence[str], variable: str) -> str | None:
    """Return the number that srun takes from the allocation around it; None outside of one.

    Raises:
        BadInput: the command says it in a form that is not read, such as a range.
    """
    told = [word for word in words if word.partition("=")[0] in options]
    if told:
        raise BadInput(
            f"srun is told {told[0]} with something else than a number, so that the size of the job "
            f"is not known: give a number ({options[0]} 2)"
        )
    return os.environ.get(variable)


def _starts_ranks(words: Sequence[str], ranks: str) -> BadInput:
    script = _script(words[1:])
    if not script:
        return unknown(words)
    instead = f"python {shlex.join(script)}" if ranks == "1" else by_torchrun(script, ranks)
    return BadInput(
        f"{words[0]} starts the processes of {_name(script)} and tells each in a way of its own which "
        "it is; trials start ranks as torchrun does, with RANK and WORLD_SIZE. If the script takes "
        f"those, give `{instead}`; else it goes into study.yaml as {COMMAND_FIELD}"
    )


def _number(words: Sequence[str], options: Sequence[str]) -> str | None:
    """Return the number behind one of these options: `-n 4`, `-n4` or `--ntasks=4`."""
    for place, word in enumerate(words):
        name, _, value = word.partition("=")
        if word in options and place + 1 < len(words) and words[place + 1].isdecimal():
            return words[place + 1]
        if name in options and value.isdecimal():
            return value
        joined = re.fullmatch(r"(-[A-Za-z])([0-9]+)", word)
        if joined and joined[1] in options:
            return joined[2]
    return None


def _program_place(words: Sequence[str]) -> int:
    """Return the place of the program that another one runs; behind the end if there is none."""
    with_name = _WITH_NAME.get(Path(words[0]).name, ())
    for place, (before, word) in enumerate(itertools.pairwise(words), start=1):
        if before in with_name or (word.startswith("-") and word != "-m"):
            continue
        name = Path(word).name
        if is_python(name) or name in LAUNCHER_PROGRAMS or name.endswith(".py"):
            return place
        if name in (*PASSING, *BINDING, *_STARTS_RANKS, "env", "srun") or word == "-m":
            return place
        path = interpreters.found(word, {})
        if path is not None and interpreters.of_file(path):
            return place
    return len(words)


def _script(words: Sequence[str]) -> tuple[str, ...]:
    """Return the script in a command, with its arguments; empty if there is none."""
    for place, word in enumerate(words):
        if is_python(word) and (python := parsed(words[place + 1 :])):
            return python.words
        if word.endswith(".py") and " " not in word:
            return tuple(words[place:])
        if " " in word and (script := _script(word.split())):  # for a shell
            return script
    return ()


def _name(script: Sequence[str]) -> str:
    """Return the name of a script that is given with its arguments."""
    return script[1] if script[0] == "-m" else script[0]
