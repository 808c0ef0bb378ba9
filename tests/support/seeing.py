"""Small training scripts, each run in a process of its own until a survey has seen enough of it."""

import atexit
import contextlib
import functools
import importlib
import itertools
import multiprocessing
import os
import signal
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from autotune.worker.survey_result import SurveyResult
from search_spaces.knob import KnobValue

_SECONDS = 180
PRELOADED = ["torch", "torch._dynamo", "autotune.worker.inject.script_survey", "search_spaces"]
"""Modules that the fork server imports once for all processes."""


@dataclass(frozen=True)
class Looked:
    """What a survey has seen of a script.

    Attributes:
        seen: of the whole.
        samples: counted from the beginning to the end of each step.
        tokens: likewise; they are counted with `counts_tokens` only.
        padded: whether padding may be among the tokens.
    """

    seen: SurveyResult
    samples: list[int]
    tokens: list[int]
    padded: bool


def look(
    text: str,
    *,
    steps: int = 6,
    counts_tokens: bool = False,
    constructed: Mapping[str, KnobValue] | None = None,
    imported: tuple[str, ...] = (),
) -> Looked:
    """Run a script for so many optimizer steps.

    Args:
        text: of the script, which is run as `__main__`.
        steps: after which it is left.
        counts_tokens: whether its tokens are counted.
        constructed: `Class(argument)` -> value that objects of a framework are constructed with.
        imported: modules that take seconds to import, which all scripts that name them share.
    """
    server = _server(imported)
    # The server may have been started in the folder of another test.
    server.requests.send((str(Path.cwd()), text, steps, counts_tokens, constructed or {}))
    found = server.answer()
    assert isinstance(found, Looked), found
    return found


@dataclass(frozen=True)
class _Server:
    """Process that forks another one for each script."""

    pid: int
    requests: Connection

    def answer(self) -> object:
        """Return what the process of the script sends, or the reason why it sends nothing."""
        with contextlib.suppress(EOFError):
            if self.requests.poll(_SECONDS):
                return self.requests.recv()
        _server.cache_clear()
        os.killpg(self.pid, signal.SIGKILL)
        return "nothing was seen in time"


@functools.cache
def _server(imported: tuple[str, ...]) -> _Server:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(imported, theirs))
    process.start()
    theirs.close()
    atexit.register(ours.close)
    assert process.pid is not None
    return _Server(process.pid, ours)


def _serve(imported: tuple[str, ...], connection: Connection) -> None:
    os.setsid()
    for module in imported:
        importlib.import_module(module)
    with contextlib.suppress(EOFError):
        while True:
            arguments = connection.recv()
            pid = os.fork()
            if not pid:
                _run(*arguments, connection)
            os.waitpid(pid, 0)


def _run(
    folder: str,
    text: str,
    steps: int,
    counts_tokens: bool,
    constructed: Mapping[str, KnobValue],
    connection: Connection,
) -> None:
    from autotune.worker.inject.changes import Changes
    from autotune.worker.inject.constructed import Constructed
    from autotune.worker.inject.script_probe import ScriptProbe
    from autotune.worker.inject.script_survey import Survey
    from search_spaces import defaults

    os.chdir(folder)
    # Loaders start their workers as in a process of their own.
    multiprocessing.set_start_method("fork", force=True)
    changes, arguments = Changes(defaults(), ()), Constructed(constructed)
    survey = Survey(changes, arguments)
    probe: ScriptProbe = survey.probe
    probe.counts_tokens = counts_tokens
    counted = [(0, 0)]

    def leave(ended: str = "") -> NoReturn:
        per_step = [
            (after[0] - before[0], after[1] - before[1])
            for before, after in itertools.pairwise(counted)
        ]
        samples, tokens = ([step[place] for step in per_step] for place in (0, 1))
        connection.send(Looked(survey.surveyed(ended), samples, tokens, probe.padded))
        os._exit(0)

    def taken() -> None:
        survey.taken(survey.steps + 1)
        counted.append((probe.samples, probe.tokens))
        if survey.steps == steps:
            leave()

    arguments.watch()
    changes.begin()
    survey.watch(lambda: None, taken, leave)
    try:
        exec(compile(text, "train.py", "exec"), {"__name__": "__main__"})
    except BaseException:
        connection.send(traceback.format_exc())
        os._exit(1)
    leave("the script ended")
