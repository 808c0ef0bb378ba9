"""Python of a launch command, compared with the one that runs autotune."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import BadInput
from autotune.standalone.launched import Launched
from autotune.worker.installing import pip_install
from autotune.worker.python_command import is_python

_LINE_BYTES = 4096
_SHELL_TRICK = "'''exec'"
"""Beginning of the second line by which pip starts python where its path does not fit behind `#!`.
"""
_ANSWER_SECONDS = 120
"""Timeout for an interpreter's answer; an environment manager may look for updates first."""
_UNCHANGED = {"UV_NO_SYNC": "1"}
"""Variables with which `uv run` changes neither the lock file nor the environment of a project."""
_ASKS = (
    "import importlib.util as u, json, sys; "
    "print(json.dumps([sys.prefix, sys.version.split()[0], u.find_spec('torch') is not None]))"
)


def found(program: str, env: Mapping[str, str]) -> Path | None:
    """Return the file that a command runs by the name of a program.

    Args:
        env: variables that the command sets.
    """
    path = shutil.which(program, path=env.get("PATH") or os.environ.get("PATH"))
    return Path(path) if path else None


def of_file(path: Path) -> tuple[str, ...] | None:
    """Return the python, with its options, that a file names in its first line; None if none."""
    try:
        with path.open("rb") as file:
            first, second = file.readline(_LINE_BYTES), file.readline(_LINE_BYTES)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    words = first[2:].decode(errors="replace").split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
    line = second.decode(errors="replace")
    if line.startswith(_SHELL_TRICK):
        words = shlex.split(line)[1:2]
    return tuple(words) if words and is_python(words[0]) else None


def of_launcher(program: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the python that a launcher such as torchrun runs in; empty if it is not found."""
    path = found(program, env)
    if path is None:
        return ()
    beside = path.with_name("python")
    return of_file(path) or ((str(beside),) if beside.exists() else ())


@dataclass(frozen=True)
class _Identity:
    prefix: str
    version: str
    has_torch: bool


def check(launched: Launched) -> None:
    """Check that the command's python is the one of this process, which trials are forked from.

    Raises:
        BadInput: it is another; the message says what to type.
    """
    if not launched.interpreter or _is_own(launched.interpreter, launched.env):
        return
    typed = shlex.join(launched.interpreter)
    other = _asked(launched.interpreter, launched.env)
    if not other.has_torch:
        raise BadInput(
            f"`{typed}` is Python {other.version} in {other.prefix}, which has no torch: the command "
            f"itself cannot train; name the python that has it, such as {sys.executable}"
        )
    if Path(other.prefix).resolve() != Path(sys.prefix).resolve():
        raise BadInput(
            f"`{typed}` is Python {other.version} in {other.prefix}, and autotune runs in "
            f"{sys.prefix}: trials would run another torch than the job. Name this one in the command, "
            f"{sys.executable}, or type `{typed} -m autotune init -- ...` once autotune is there, too: "
            f"{pip_install(pip=f'{typed} -m pip')}"
        )


def _is_own(words: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether a command's python is this one by its path, so that nothing has to be run."""
    path = found(words[0], env) if len(words) == 1 else None
    here = Path(sys.executable)
    if path is None or {"PYTHONHOME", "PYTHONEXECUTABLE"} & env.keys():
        return False
    return path.parent.resolve() == here.parent.resolve() and path.resolve() == here.resolve()


def _asked(words: Sequence[str], env: Mapping[str, str]) -> _Identity:
    try:
        answer = subprocess.run(
            [*words, "-c", _ASKS],
            env={**os.environ, **env, **_UNCHANGED},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=True,
        )
        return _Identity(*json.loads(answer.stdout.splitlines()[-1]))
    except FileNotFoundError:
        raise BadInput(f"there is no program {words[0]} here") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or "no message").splitlines()[-1]
        raise BadInput(f"`{shlex.join(words)}` does not start python here: {last}") from None
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise BadInput(f"`{shlex.join(words)}` does not tell which python it is: {error}") from None
