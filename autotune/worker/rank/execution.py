"""Run an unmodified script in this process, as python and the script's launcher run it.

The launcher leaves variables, an argument and a number of threads in each rank. Standard input is a
terminal without a user.
"""

import builtins
import contextlib
import fcntl
import multiprocessing
import os
import runpy
import struct
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn
from zipfile import is_zipfile

from autotune.worker.protocol import (
    DEEPSPEED,
    PLAIN,
    TORCH_LAUNCH,
    TORCHRUN,
    Placement,
    Script,
)
from autotune.worker.python_command import Program
from autotune.worker.rank.context import RankContext

_LOCAL_RANK_ARGUMENTS = {TORCH_LAUNCH: "--local-rank", DEEPSPEED: "--local_rank"}
_SETS_THREADS = (TORCHRUN, TORCH_LAUNCH)
_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_TASKS = ("SLURM_NTASKS", "SLURM_NPROCS")
"""Beginnings of the variables that tell the number of tasks of a batch job."""
_ROWS, _COLUMNS = 24, 80
"""Size of a terminal that does not say another."""
_LOCAL_MODES, _CHARACTERS = 3, 6
"""Places in what termios.tcgetattr returns."""
_STATUS_BITS = 0xFF
_MAIN = "__main__"
_SOURCE = (".py", ".pyw")


def launcher_variables(
    script: Script, placement: Placement, context: RankContext
) -> dict[str, str]:
    """Return the variables for a rank's place, without the rendezvous; none if python starts it."""
    if script.launch in PLAIN:
        return {}
    of_launcher = _of_deepspeed if script.launch == DEEPSPEED else _of_torchrun
    return {
        "RANK": str(context.rank),
        "LOCAL_RANK": str(context.local_rank),
        "WORLD_SIZE": str(context.world_size),
        **of_launcher(placement, context),
        **interfaces(placement),
    }


def _nodes(placement: Placement, context: RankContext) -> str:
    return str(context.world_size // placement.local_world_size)


def _of_torchrun(placement: Placement, context: RankContext) -> dict[str, str]:
    return {
        "LOCAL_WORLD_SIZE": str(placement.local_world_size),
        "GROUP_RANK": str(placement.node),
        "GROUP_WORLD_SIZE": _nodes(placement, context),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(context.rank),
        "ROLE_WORLD_SIZE": str(context.world_size),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_ERROR_FILE": os.devnull,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        _ERRORS: os.environ.get(_ERRORS, "1"),
    }


def _of_deepspeed(placement: Placement, context: RankContext) -> dict[str, str]:
    return {
        "LOCAL_SIZE": str(placement.local_world_size),
        "CROSS_RANK": str(placement.node),
        "CROSS_SIZE": _nodes(placement, context),
    }


INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that `interfaces` may set."""


def interfaces(placement: Placement) -> dict[str, str]:
    """Return variables for the ranks' network interface, unless the user has set them.

    gloo goes by the host's name, which may resolve to loopback. NCCL looks for the fastest interfaces
    by itself, as it does in the job, and never takes loopback without being told.
    """
    wanted = {"GLOO_SOCKET_IFNAME": placement.interface}
    if placement.interface == "lo":
        wanted["NCCL_SOCKET_IFNAME"] = "=lo"  # "=": not every name with this prefix
    return {name: value for name, value in wanted.items() if name not in os.environ}


def forget_tasks(script: Script) -> None:
    """Remove the number of a batch job's tasks where python starts the script: it is none of them.

    A library that finds the number asks for the task's own, which a trial does not have.
    """
    if script.launch in PLAIN:
        for name in [name for name in os.environ if name.startswith(_TASKS)]:
            del os.environ[name]


def launcher_arguments(script: Script, local_rank: int) -> tuple[str, ...]:
    """Return the arguments that a launcher puts before those of a script."""
    option = _LOCAL_RANK_ARGUMENTS.get(script.launch)
    return (f"{option}={local_rank}",) if option else ()


def launcher_threads(script: Script, ranks: int, environment: Mapping[str, str]) -> int | None:
    """Return the OMP_NUM_THREADS that a launcher sets; None: it leaves the number unchanged.

    Args:
        script: with its launcher.
        ranks: number of the script's ranks on this node.
        environment: of the launcher.
    """
    sets = script.launch in _SETS_THREADS and ranks > 1 and "OMP_NUM_THREADS" not in environment
    return 1 if sets else None


def open_terminal() -> None:
    """Make a terminal the standard input of this process, on which every read is at its end.

    Scripts ask it for its size, as where their command is typed; so a study finds the same whether
    its daemon has a terminal or not. Where none can be had, standard input stays as it is.
    """
    with contextlib.suppress(OSError, termios.error):
        # The other end stays open as long as this process: without it the terminal has no size.
        _, terminal = os.openpty()
        modes = termios.tcgetattr(terminal)
        modes[_LOCAL_MODES] &= ~(termios.ICANON | termios.ECHO)
        modes[_CHARACTERS][termios.VMIN] = modes[_CHARACTERS][termios.VTIME] = 0
        termios.tcsetattr(terminal, termios.TCSANOW, modes)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        os.dup2(terminal, 0)
        os.close(terminal)
        # multiprocessing has put an empty file here.
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (a descriptor)


def execute(script: Script, folders: Sequence[str], local_rank: int) -> str:
    """Run a script as python does, to its end.

    Args:
        folders: searched for its file, unless the working directory has it.
        local_rank: of this process.

    Returns:
        How it ended, as a part of a sentence; empty for an ordinary end.
    """
    target = script.target if script.is_module else _file(script.target, folders)
    arguments = (*launcher_arguments(script, local_rank), *script.args)
    program = Program(target, arguments, script.is_module)
    sys.argv = [program.words[0], *arguments]
    sys.orig_argv = [*sys.orig_argv, *program.words]
    # The script may choose a method, as in its own process: the fork server's choice was inherited.
    multiprocessing.set_start_method(None, force=True)
    main = sys.modules[_MAIN] = ModuleType(_MAIN)
    vars(main).update(__annotations__={}, __builtins__=builtins)
    rank = os.getpid()
    code: str | int | None = None
    try:
        (_run_module if script.is_module else _run_file)(target)
    except SystemExit as left:
        code = left.code
    module: Any = threading
    module._shutdown()  # as python does at its end: it waits for threads, which may train
    if os.getpid() != rank:
        _end_child(code)
    if isinstance(code, str):
        return f"({code}) "
    return f"with exit status {code} " if code else ""


def _end_child(code: str | int | None) -> NoReturn:
    """End a process that the script has forked, with the exit status that python would give it."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    flush_output()
    os._exit(1 if isinstance(code, str) else (code or 0) & _STATUS_BITS)


def flush_output() -> None:
    """Flush what was printed, as far as the script has left streams that can be flushed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _run_module(name: str) -> None:
    _search_first(Path.cwd())
    module: Any = runpy
    module._run_module_as_main(name)  # the function that python itself calls for -m


def _run_file(path: str) -> None:
    if Path(path).is_dir() or (not path.endswith(_SOURCE) and is_zipfile(path)):
        runpy.run_path(path, run_name=_MAIN)
        return
    _search_first(Path(path).resolve().parent)
    # Since 3.9 python makes the name of the file absolute, and leaves sys.argv[0] as it was typed.
    # pathlib would shorten it.
    absolute = path if path.startswith("/") else f"{Path.cwd()}/{path}"
    loader = SourceFileLoader(_MAIN, absolute)
    main = vars(sys.modules[_MAIN])
    main.update(__cached__=None, __file__=absolute, __loader__=loader)
    exec(loader.source_to_code(Path(absolute).read_bytes(), absolute), main)


def _search_first(folder: Path) -> None:
    """Put a folder in front of sys.path, unless an option of python forbids it (-P, -I)."""
    if not sys.flags.safe_path:
        sys.path.insert(0, str(folder))


def _file(name: str, folders: Sequence[str]) -> str:
    """Return where a script is: in the working directory, else in the first folder that has it."""
    beside = (str(Path(folder) / name) for folder in folders)
    return next((path for path in (name, *beside) if Path(path).exists()), name)
