"""Ranks that a script starts by itself."""

import itertools
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
import torch.multiprocessing  # with it comes the module that is looked up below
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from autotune.worker import python_command, starters
from autotune.worker.patches import Wrapper, wrapping
from autotune.worker.protocol import PLAIN, PYTHON, SPAWN, Script

_NUMBERS = ("RANK", "LOCAL_RANK")
_NO_PLACE = -1
"""Rank or number of ranks that a script leaves to its environment."""
_SPAWNS = (
    f"the script starts ranks itself by {SPAWN}, and its launcher has started it as one: have it start "
    "none under the launcher, by an argument or by its environment, or give its command without the "
    "launcher"
)


def watch(
    script: Script, refused: Callable[[str], NoReturn], starts: Callable[[int], NoReturn]
) -> None:
    """Watch for a script that starts ranks where a trial could not follow it.

    Args:
        refused: called with advice for the user.
        starts: called with the number of ranks that plain python starts by torch.multiprocessing.
    """
    if script.launch != SPAWN:
        # Callers may name these arguments, as in torch.
        def started_by_torch(
            _: Any,
            fn: Any,  # noqa: ARG001
            args: Any = (),  # noqa: ARG001
            nprocs: int = 1,
            *__: Any,
            **___: Any,
        ) -> None:
            if script.launch == PYTHON:
                starts(nprocs)
            refused(_SPAWNS)

        _wrap(started_by_torch)
    process, variables = os.getpid(), dict(os.environ)

    def started(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _STARTS:
            return
        words, env = _STARTS[event](*arguments)
        # Under a launcher, its processes inherit a rank's variables.
        why = _why(script, words, env) if script.launch in PLAIN else ""
        if event == "os.exec" and os.getpid() == process:
            why = why or _anew(env or os.environ, variables)
        if why:
            refused(why)

    sys.addaudithook(started)


def join_spawned(index: int, ranks: int, store: Store) -> None:
    """Let this process be one of those that its script starts by torch.multiprocessing.

    The script runs here until it starts them, goes on as the function that it starts, and ends with
    it. Process groups meet at the store, whatever address and port the script gives.

    Args:
        index: number of the process among them.
        store: of this trial alone.

    Raises:
        ValueError: by the script, if it starts another number of ranks.
    """

    def started(
        _: Any, fn: Callable[..., Any], args: Any = (), nprocs: int = 1, *__: Any, **___: Any
    ) -> None:
        if nprocs != ranks:
            raise ValueError(
                f"the script starts {nprocs} ranks, and resources.workers of the study is {ranks}"
            )
        fn(index, *args)
        raise SystemExit

    numbers = itertools.count()

    def rendezvous(
        _url: str, rank: int = _NO_PLACE, world_size: int = _NO_PLACE, **_: Any
    ) -> Iterator[tuple[Store, int, int]]:
        place = rank if rank != _NO_PLACE else int(os.environ["RANK"])
        size = world_size if world_size != _NO_PLACE else int(os.environ["WORLD_SIZE"])
        yield PrefixStore(str(next(numbers)), store), place, size

    _wrap(started)
    groups: Any = dist.distributed_c10d
    groups.rendezvous = rendezvous


def pass_on(variable: str) -> None:
    """Set an environment variable in the processes that torch.multiprocessing starts as ranks."""

    def started(start: Any, *args: Any, **kwargs: Any) -> Any:
        os.environ[variable] = "1"
        try:
            return start(*args, **kwargs)
        finally:
            os.environ.pop(variable, None)

    _wrap(started)


def _wrap(started: Wrapper) -> None:
    """Call a function in the place of the one that starts ranks; see patches.wrapping."""
    # The name of the module is taken by its function.
    of_spawn = sys.modules[f"{torch.multiprocessing.__name__}.spawn"]
    for owner in (torch.multiprocessing, of_spawn):
        wrapping(owner, "start_processes")(started)


def _split(command: Any) -> list[str]:
    """Return the words of a command for a shell; none where it is no plain one."""
    try:
        return shlex.split(os.fsdecode(command))
    except ValueError:
        return []


_STARTS: dict[str, Callable[..., tuple[Any, Mapping[Any, Any] | None]]] = {
    "subprocess.Popen": lambda _executable, words, _folder, env: (words, env),
    "os.posix_spawn": lambda _path, words, env: (words, env),
    "os.exec": lambda _path, words, env: (words, env),
    "os.system": lambda command: (_split(command), None),
}
"""Audit event of a program that begins -> its words and environment."""


_TELLABLE = ("PYTHON", "LD_", "OMP_", "MKL_", "CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "CUBLAS_")
"""Beginnings of variables whose values are no secrets, so that a cause may tell them."""


def _anew(env: Mapping[Any, Any], before: Mapping[str, str]) -> str:
    """Return advice for a script that puts another program in the place of its process."""
    given = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
    new = [
        f"{name}={shlex.quote(value) if name.startswith(_TELLABLE) else '...'}"
        for name, value in given.items()
        if before.get(name) != value
    ]
    instead = (
        f"set the variable before the command, `env {' '.join(new)} ...`, so that it need not"
        if new
        else "have it train in the process that it is started in"
    )
    return f"the script starts anew by os.exec, and a trial cannot follow it: {instead}"


def _why(script: Script, words: Any, env: Mapping[Any, Any] | None) -> str:
    """Return advice if a process that the script starts is a rank or a launcher, else ""."""
    given = {os.fsdecode(name): os.fsdecode(value) for name, value in (env or {}).items()}
    if any(name in given and given[name] != os.environ.get(name) for name in _NUMBERS):
        number = next(given[name] for name in reversed(_NUMBERS) if name in given)
        ranks = given.get("WORLD_SIZE") or os.environ.get("WORLD_SIZE") or "N"
        return (
            f"the script starts its ranks itself, by a process with LOCAL_RANK={number}: have "
            f"torchrun start them, and type `{_by_torchrun(script, ranks)}`"
        )
    typed = (
        [os.fsdecode(word) for word in words] if isinstance(words, list | tuple) else [str(words)]
    )
    if typed and _program(typed) in starters.LAUNCHERS:
        return f"the script only starts another one: type what it starts, `{shlex.join(typed)}`, instead"
    return ""


def _program(typed: Sequence[str]) -> str:
    """Return the name of what a command runs: of python, that of its module or script."""
    program, *rest = typed
    if not python_command.is_python(program):
        return Path(program).name
    run = python_command.parsed(rest)
    return run.name if run else ""


def _by_torchrun(script: Script, ranks: str) -> str:
    return shlex.join(["torchrun", "--nproc-per-node", ranks, *script.words])
