"""A launch command taken apart, by the parser of the launcher itself: which script, with what, on how
many ranks."""

import contextlib
import dataclasses
import io
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from autotune.errors import BadInput
from autotune.worker.inject.job import OPTIONS_WITH_VALUE

_PYTHON = re.compile(r"python[0-9.]*")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")


class NoScript(BadInput):
    """A command runs no script of torch, as far as it can be taken apart."""


@dataclass(frozen=True)
class Launched:
    """What a command comes to.

    Attributes:
        target: the script's file, or the module behind -m.
        is_module: which of them.
        args: of the script.
        workers: ranks; None where the launcher takes as many as there are devices.
        env: variables that the command sets for the script.
    """

    target: str
    is_module: bool
    args: tuple[str, ...]
    workers: int | None = 1
    env: dict[str, str] = field(default_factory=dict)


def taken_apart(command: Sequence[str]) -> Launched:
    """What a command launches: torchrun, accelerate launch, deepspeed or python; whatever stands before
    them (srun, env, uv run) is left out, but for variables that it sets.

    Raises:
        NoScript: no script is in it.
        BadInput: the launcher does not know its arguments.
    """
    env: dict[str, str] = {}
    for place, word in enumerate(command):
        name, rest = Path(word).name, command[place + 1 :]
        if launcher := _LAUNCHERS.get(name):
            return _with(launcher(rest), env)
        if _PYTHON.fullmatch(name):
            return _with(_of_python(rest), env)
        if name.endswith(".py"):
            return Launched(word, False, tuple(rest), env=env)
        if variable := _VARIABLE.fullmatch(word):
            env[variable[1]] = variable[2]
    raise NoScript(
        f"the command runs no training script that is known here: {' '.join(command)}; give one with "
        "torchrun, accelerate launch, deepspeed, or python"
    )


def _with(launched: Launched, env: dict[str, str]) -> Launched:
    return dataclasses.replace(launched, env={**env, **launched.env})


def _of_python(words: Sequence[str]) -> Launched:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "-m" and rest:
            module = rest.pop(0)
            if module in _TORCHRUN_MODULES:
                return _of_torchrun(rest)
            return Launched(module, True, tuple(rest))
        if word in OPTIONS_WITH_VALUE and rest:
            rest.pop(0)
        elif word == "-c":
            break
        elif not word.startswith("-"):
            return Launched(word, False, tuple(rest))
    raise BadInput("the command gives python no script to run")


def _of_torchrun(words: Sequence[str]) -> Launched:
    from torch.distributed.run import get_args_parser

    told = _parsed("torchrun", get_args_parser().parse_args, words)
    nodes = int(str(told.nnodes).rpartition(":")[2])
    ranks = _number(told.nproc_per_node)
    return Launched(
        told.training_script,
        bool(told.module),
        tuple(told.training_script_args),
        None if ranks is None else nodes * ranks,
    )


def _of_accelerate(words: Sequence[str]) -> Launched:
    if not words or words[0] != "launch":
        raise BadInput("of accelerate only `accelerate launch` runs a script")
    try:
        from accelerate.commands.launch import launch_command_parser
    except ImportError:
        raise _not_installed("accelerate") from None
    told = _parsed("accelerate launch", launch_command_parser().parse_args, words[1:])
    file = _accelerate_file(told.config_file)
    if more := [*_more_than_ddp(told, file)]:
        raise BadInput(
            f"accelerate launch is told {', '.join(more)}, by its arguments or its configuration file: "
            "trials run the script as torchrun does, and would measure another job; a study cannot take "
            "that over from there"
        )
    precision = told.mixed_precision or file.get("mixed_precision") or ""
    return Launched(
        told.training_script,
        bool(told.module),
        tuple(told.training_script_args),
        told.num_processes or file.get("num_processes"),
        {"ACCELERATE_MIXED_PRECISION": precision} if precision else {},
    )


def _accelerate_file(named: str | None) -> dict[str, Any]:
    """What the launcher reads besides its arguments: the file that is named, or that of `accelerate
    config`; nothing where there is none."""
    from accelerate.commands.config.config_args import default_config_file

    path = Path(named or default_config_file)
    if not named and not path.is_file():
        return {}
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise BadInput(f"accelerate launch reads {path}, which cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def _more_than_ddp(told: Namespace, file: Mapping[str, Any]) -> Iterator[str]:
    """What a script started by torchrun would not have."""
    for name in ("use_fsdp", "use_deepspeed", "use_megatron_lm"):
        if getattr(told, name, False):
            yield f"--{name}"
    kind = str(file.get("distributed_type", "NO")).upper()
    if kind not in ("NO", "MULTI_CPU") and not kind.startswith("MULTI_"):
        yield f"distributed_type: {kind}"
    dynamo = told.dynamo_backend or (file.get("dynamo_config") or {}).get("dynamo_backend") or "no"
    if str(dynamo).lower() != "no":
        yield f"dynamo_backend: {dynamo}"


def _of_deepspeed(words: Sequence[str]) -> Launched:
    try:
        from deepspeed.launcher.runner import parse_args
    except ImportError:
        raise _not_installed("deepspeed") from None
    told = _parsed("deepspeed", parse_args, words)
    nodes = max(1, told.num_nodes)
    workers = nodes * told.num_gpus if told.num_gpus > 0 else None
    if told.include or told.exclude:
        workers = _included(told.include, told.exclude)
    return Launched(told.user_script, bool(told.module), tuple(told.user_args), workers)


def _included(include: str, exclude: str) -> int:
    """Ranks of `--include host:0,1`."""
    _, named, slots = include.partition(":")
    if exclude or not named or "@" in include:
        given = f"--exclude {exclude}" if exclude else f"--include {include}"
        raise BadInput(
            f"deepspeed is told {given}: how many ranks that makes is not known here; name the devices "
            "of one host (--include localhost:0,1), or give --num_gpus"
        )
    return len(slots.split(","))


def _not_installed(launcher: str) -> BadInput:
    return BadInput(f"{launcher} is not installed here, so that its arguments are not known")


def _parsed(
    launcher: str, parse: Callable[[list[str]], Namespace], words: Sequence[str]
) -> Namespace:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return parse(list(words))
    except SystemExit:
        last = said.getvalue().strip().splitlines()
        raise BadInput(f"{launcher} does not take that: {last[-1] if last else ''}") from None


def _number(text: str) -> int | None:
    return int(text) if str(text).isdecimal() else None


_LAUNCHERS: dict[str, Callable[[Sequence[str]], Launched]] = {
    "torchrun": _of_torchrun,
    "accelerate": _of_accelerate,
    "deepspeed": _of_deepspeed,
}
