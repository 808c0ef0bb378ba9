"""Run an unmodified script in this process, as python runs it."""

import builtins
import multiprocessing
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import is_zipfile

from autotune.worker.protocol import Script
from autotune.worker.rank import launch

_MAIN = "__main__"
_SOURCE = (".py", ".pyw")


def execute(script: Script, folders: Sequence[str], local_rank: int) -> str:
    """Run a script as python does, to its end.

    Args:
        script: to run.
        folders: searched for its file, unless the working directory has it.
        local_rank: of this process.

    Returns:
        How it ended, as a part of a sentence; empty for an ordinary end.
    """
    target = script.path if script.is_module else _file(script.path, folders)
    named = ["-m", target] if script.is_module else [target]
    arguments = [*launch.arguments(script, local_rank), *script.args]
    sys.argv = [named[0], *arguments]
    sys.orig_argv = [*sys.orig_argv, *named, *arguments]
    # The script may choose a method, as in its own process: the fork server's choice was inherited.
    multiprocessing.set_start_method(None, force=True)
    main = sys.modules[_MAIN] = ModuleType(_MAIN)
    vars(main).update(__annotations__={}, __builtins__=builtins)
    try:
        (_run_module if script.is_module else _run_file)(target)
    except SystemExit as left:
        if isinstance(left.code, str):
            return f"({left.code}) "
        if left.code:
            return f"with exit status {left.code} "
    return ""


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
