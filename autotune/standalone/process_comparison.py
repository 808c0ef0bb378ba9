"""Comparison of a trial's process with the job's, for one script.

The full table is in docs/scripts.md.
"""

import os
from collections.abc import Iterator

from autotune.analysis.wording import counted
from autotune.config import StudySpec
from autotune.worker.protocol import DEEPSPEED, PLAIN, PYTHON, SPAWN
from launchers import Launcher

_THREADS = "OMP_NUM_THREADS"


def comparison(spec: StudySpec, launcher: Launcher) -> Iterator[str]:
    """Yield a line for each difference or likeness; none where no launcher of scripts is followed."""
    launch = spec.workload.launched_by(launcher.ranks)
    if launch is None:
        return
    site, ranks = launcher.site, launcher.site.ranks_per_node
    yield f"started as by {_started(spec, launch, ranks)}, with {_threads(spec, launch, ranks)}"
    yield (
        "otherwise than in the job: forked from a python that has torch imported, seeded with "
        f"{spec.seed}, its output in the trial's log, ended after the steps that are timed"
        + ("" if launch == PYTHON else ", its ranks meeting at a store of the trial")
    )
    if launch in PLAIN and site.on_device:
        yield (
            f"sees {counted(len(site.devices), 'device')}, those of its slot: a script "
            "that takes all devices by itself (DataParallel) takes no more than these"
        )


def _started(spec: StudySpec, launch: str, ranks: int) -> str:
    if launch == PYTHON:
        given = spec.workload.interpreter_options(ranks) or ()
        options = "".join(f" {option}" for option in given)
        return f"`python{options}`: one process, no variable calls it a rank"
    if launch == SPAWN:
        return f"`python`, and each of {counted(ranks, 'rank')} as by {launch}: no variable calls it one"
    return f"{launch}: {counted(ranks, 'rank')} a node with its variables"


def _threads(spec: StudySpec, launch: str, ranks: int) -> str:
    if threads := spec.env.get(_THREADS, os.environ.get(_THREADS)):
        return f"{_THREADS}={threads} as you have it"
    if launch in (*PLAIN, DEEPSPEED) or ranks == 1:
        return "as many threads as torch takes by itself"
    return f"{_THREADS}=1 as torchrun sets it"
