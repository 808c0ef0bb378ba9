"""Parser of launch commands: the script, its arguments, and its processes."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autotune.config.python_options import refused
from autotune.errors import BadInput
from autotune.standalone import interpreters, wrappers
from autotune.standalone.launched import Launched, NoScript
from autotune.standalone.rank_launchers import LAUNCHERS, MODULES, launched_by
from autotune.worker.python_command import is_python, parsed

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_DEVICES = "CUDA_VISIBLE_DEVICES"


def taken_apart(command: Sequence[str], *, for_trials: bool = True) -> Launched:
    """Return what a command launches, by the rules of each program in it.

    Args:
        for_trials: whether trials are to follow it, or it runs as it is.

    Raises:
        NoScript: no script is in it.
        BadInput: a program refuses its arguments or is not known, or trials cannot follow what it
            does with the script; the message says what to type instead.
    """
    env: dict[str, str] = {}
    words, python = tuple(command), tuple[str, ...]()
    checks: list[Callable[[Launched], None]] = []
    while words:
        if variable := _VARIABLE.fullmatch(words[0]):
            env[variable[1]] = variable[2]
            words = words[1:]
        elif passed := wrappers.taken_off(words, for_trials=for_trials):
            words, python = passed.words, passed.python or python
            checks.append(passed.check)
        else:
            break
    if not words:
        raise NoScript("the command runs no program")
    launched = _of_program(words, env)
    launched = dataclasses.replace(
        launched, env={**env, **launched.env}, interpreter=python or launched.interpreter
    )
    for check in checks:
        check(launched)
    return launched


def check_devices(launched: Launched) -> None:
    """Check that a command leaves the choice of its devices to autotune, as that of a study has to.

    Raises:
        BadInput: it chooses them; the message says what to type.
    """
    if _DEVICES in launched.env:
        raise BadInput(
            f"the command chooses devices ({_DEVICES}={launched.env[_DEVICES]}), and those of trials "
            f"are the ones that autotune has: type it before autotune, `{_DEVICES}="
            f"{launched.env[_DEVICES]} autotune init -- ...`, and leave it out of the command"
        )


def _of_program(words: Sequence[str], env: Mapping[str, str]) -> Launched:
    program, rest = words[0], words[1:]
    name = Path(program).name
    if launcher := LAUNCHERS.get(name):
        interpreter = interpreters.of_launcher(program, env)
        return dataclasses.replace(launched_by(launcher, rest, env), interpreter=interpreter)
    if is_python(name):
        return _of_python(rest, (program,), env)
    path = interpreters.found(program, env)
    if path is None and Path(program).is_file():
        path = Path(program)  # which its owner may have to make executable
    if path is not None and (python := interpreters.of_file(path)):
        typed = program if "/" in program else str(path)  # as the shell passes it on
        return _of_python([*python[1:], typed, *rest], python[:1], env)
    if name.endswith(".py"):
        return Launched(program, tuple(rest))
    raise wrappers.unknown(words)


def _of_python(
    words: Sequence[str], interpreter: tuple[str, ...], env: Mapping[str, str]
) -> Launched:
    python = parsed(words)
    if python is None:
        raise BadInput("the command gives python no script to run")
    if python.is_module and (launcher := MODULES.get(python.target)):
        found = launched_by(launcher, python.args, env)
        return dataclasses.replace(found, interpreter=interpreter)
    if problem := refused(python.options):
        raise BadInput(f"the options of python {problem}")
    return Launched(
        python.target,
        python.args,
        python.is_module,
        options=python.options,
        interpreter=interpreter,
    )
