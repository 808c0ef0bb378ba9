"""Ranks that a script starts by itself: no trial could follow it there."""

import functools
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch.multiprocessing  # with it comes the module that is looked up below

from autotune.worker.protocol import PYTHON, Script

_NUMBERS = ("RANK", "LOCAL_RANK")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "torch.distributed.run")
_MEETING = (
    "the script starts its ranks itself ({how}): have each rank started from outside, as under "
    "torchrun, by an argument of the script or by its environment"
)


def watch(script: Script, found: Callable[[str], NoReturn]) -> None:
    """Let a script that starts ranks end in `found`, which receives advice for the user."""

    # The name of the module is taken by its function.
    spawning: Any = sys.modules[f"{torch.multiprocessing.__name__}.spawn"]

    @functools.wraps(spawning.start_processes)
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        found(_MEETING.format(how="torch.multiprocessing.spawn"))

    owners: tuple[Any, ...] = (torch.multiprocessing, spawning)
    for owner in owners:
        owner.start_processes = refused
    if script.launch != PYTHON:
        return  # under a launcher, its processes inherit a rank's variables

    def started(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and (why := _why(script, *arguments)):
            found(why)

    sys.addaudithook(started)


def _why(
    script: Script, executable: Any, words: Any, folder: Any, env: Mapping[Any, Any] | None
) -> str:
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
    if any(Path(word).name in _LAUNCHERS for word in typed):
        return f"the script only starts another one: type what it starts, `{shlex.join(typed)}`, instead"
    return ""


def _by_torchrun(script: Script, ranks: str) -> str:
    target = ["-m", script.path] if script.is_module else [script.path]
    return shlex.join(["torchrun", "--nproc-per-node", ranks, *target, *script.args])
