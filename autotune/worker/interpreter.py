"""The interpreter that ranks are forked from; for a script, started as its own command starts it."""

import contextlib
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import process, util
from pathlib import Path
from typing import Any

_ASKED = "AUTOTUNE_INTERPRETER"
"""Environment variable that tells an agent the options of its fork server, as JSON."""
_TYPED_PATH = "AUTOTUNE_PYTHONPATH"
"""PYTHONPATH of the user, where the fork server needs another text of the same meaning."""
_TYPED_THREADS = "AUTOTUNE_OMP_NUM_THREADS"
"""OMP_NUM_THREADS of the user, where the fork server sets its own; empty: the user sets none."""
_PATH = "PYTHONPATH"
_THREADS = "OMP_NUM_THREADS"
_ADDED = "AUTOTUNE_ADDED"
"""Names of the variables that an agent has set for itself and that its scripts are not to see,
separated by spaces."""
_QUIET = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Environment of the fork server, in which torch counts devices without CUDA.

A library may ask for devices when it is imported, and a process that has initialised CUDA cannot be
forked into ranks.
"""
_MAIN_PROCESS = "MainProcess"
_NOTHING_TO_IMPORT = "/proc"
"""Folder that shadows no module: `python -c` looks there first, while torch is imported."""


def agent_variables(options: Sequence[str]) -> dict[str, str]:
    """Return the environment of an agent whose ranks run a script.

    Args:
        options: of python, as in `python -O train.py`.
    """
    return {_ASKED: json.dumps(list(options))}


def quiet(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an agent, in which imports do not initialise CUDA.

    Args:
        environment: of the study; what it says itself stays.
    """
    added = {name: value for name, value in _QUIET.items() if name not in environment}
    return {**environment, **added, _ADDED: " ".join(added)}


@contextlib.contextmanager
def fork_server_settings() -> Iterator[None]:
    """Start fork servers meanwhile with what the ranks of the study need."""
    text = os.environ.pop(_ASKED, None)
    if text is None:
        # Ranks of a workload have resources.cpus_per_worker threads, mostly one. Numerical
        # libraries read the number when they are loaded; a rank with more threads sets it again.
        os.environ[_TYPED_THREADS] = os.environ.get(_THREADS, "")
        os.environ[_THREADS] = "1"
    options = json.loads(text) if text else []
    with _options(options), _absolute_path(), contextlib.chdir(_NOTHING_TO_IMPORT):
        yield
    os.environ.pop(_TYPED_THREADS, None)


@contextlib.contextmanager
def _options(options: Sequence[str]) -> Iterator[None]:
    """Start interpreters with these options instead of those of this process."""
    module: Any = util
    own = module._args_from_interpreter_flags
    module._args_from_interpreter_flags = lambda: [*options]
    try:
        yield
    finally:
        module._args_from_interpreter_flags = own


@contextlib.contextmanager
def _absolute_path() -> Iterator[None]:
    """Make relative entries of PYTHONPATH absolute, as python starts in another folder."""
    typed = os.environ.get(_PATH)
    if typed:
        entries = typed.split(os.pathsep)
        os.environ[_PATH] = os.pathsep.join(str(Path.cwd() / entry) for entry in entries)
        os.environ[_TYPED_PATH] = typed
    try:
        yield
    finally:
        if typed:
            os.environ[_PATH] = typed
            del os.environ[_TYPED_PATH]


@dataclass(frozen=True)
class _Start:
    """Start of an interpreter, to be reproduced for the scripts of its forks.

    Attributes:
        path: sys.path, without the folder that `python -c` puts there.
        options: of python.
        threads: OMP_NUM_THREADS of the user where this process has its own; empty: unset; None: the
            same.
        process: this process, as multiprocessing knows it.
    """

    path: tuple[str, ...]
    options: tuple[str, ...]
    threads: str | None
    added: tuple[str, ...]
    process: Any


_start: _Start | None = None
"""Start of the fork server; its forks inherit it."""


def record_start() -> None:
    """Record how this process was started. A fork server calls it while it imports."""
    global _start
    words = sys.orig_argv
    options = words[1 : words.index("-c")] if "-c" in words else []
    sys.path[:] = [entry for entry in sys.path if entry]
    threads = os.environ.pop(_TYPED_THREADS, None)
    added = os.environ.pop(_ADDED, "").split()
    current = multiprocessing.current_process()
    _start = _Start(tuple(sys.path), tuple(options), threads, tuple(added), current)
    if (typed := os.environ.pop(_TYPED_PATH, None)) is not None:
        os.environ[_PATH] = typed


def restore() -> None:
    """Make a fork look as python makes a process before it runs a script."""
    if not _start:
        return
    sys.path[:] = _start.path
    sys.orig_argv = [sys.executable, *_start.options]
    _be_main_process(_start)
    for name in _start.added:
        os.environ.pop(name, None)
    if _start.threads is not None:
        os.environ[_THREADS] = _start.threads
        if not _start.threads:
            del os.environ[_THREADS]


def _be_main_process(start: _Start) -> None:
    """Make multiprocessing take this fork for a main process instead of a child."""
    processes: Any = process
    start.process.name = _MAIN_PROCESS
    processes._current_process = start.process
    processes._parent_process = None
