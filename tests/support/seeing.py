"""Small training scripts, each run in a process of its own until a survey has seen enough of it."""

import itertools
import multiprocessing
import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
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
) -> Looked:
    """Run a script for so many optimizer steps.

    Args:
        text: of the script, which is run as `__main__`.
        steps: after which it is left.
        counts_tokens: whether its tokens are counted.
        constructed: `Class(argument)` -> value that objects of a framework are constructed with.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_run, args=(text, steps, counts_tokens, constructed or {}, theirs)
    )
    process.start()
    theirs.close()
    try:
        assert ours.poll(_SECONDS), "nothing was seen in time"
        found = ours.recv()
    finally:
        process.kill()
        process.join()
    assert isinstance(found, Looked), found
    return found


def _run(
    text: str,
    steps: int,
    counts_tokens: bool,
    constructed: Mapping[str, KnobValue],
    connection: Connection,
) -> None:
    from autotune.worker.inject.constructed import Constructed
    from autotune.worker.inject.script_probe import ScriptProbe
    from autotune.worker.inject.script_survey import Survey
    from search_spaces import defaults

    # Loaders start their workers as in a process of their own.
    multiprocessing.set_start_method("fork", force=True)
    survey = Survey(defaults(), constructed=Constructed(constructed))
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

    def taken(number: int) -> None:
        counted.append((probe.samples, probe.tokens))
        if number == steps:
            leave()

    survey.watch(lambda: None, taken, leave)
    try:
        exec(compile(text, "train.py", "exec"), {"__name__": "__main__"})
    except BaseException:
        connection.send(traceback.format_exc())
        os._exit(1)
    leave("the script ended")
