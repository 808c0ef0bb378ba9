"""Run one configuration after another in the ranks of a warm worker."""

import gc
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from autotune.worker.effects import process
from autotune.worker.files import TrialFiles
from autotune.worker.observers import memory
from autotune.worker.protocol import BlockReport, TrialRequest
from autotune.worker.rank.context import RankContext, TakenTurns
from autotune.worker.rank.loop import TrainingLoop
from autotune.worker.rank.profiling import LoopSubject, run_profile
from autotune.worker.rank.training import run_blocks


def serve(
    loop: TrainingLoop,
    request: TrialRequest,
    context: RankContext,
    turns: TakenTurns,
    report: Callable[[BlockReport], None],
    print_to: Callable[[Path], None],
) -> NoReturn:
    """Train, or profile, what the loop was built for; then train every configuration that is sent.

    It ends with the process.

    Args:
        turns: on which the context's turns wait.
        print_to: redirects this process's output to a file.
    """
    if request.profile:
        _profile_once(loop, request, context, report)
    else:
        loop.take(run_blocks(loop, request, context, report))
    while True:
        request = turns.following()
        print_to(TrialFiles(Path(request.log_dir)).log(context.rank))
        loop.close()
        _clear(request, context)
        process.compile_workers(request.knobs, int(os.environ["LOCAL_WORLD_SIZE"]))
        loop = loop.reconfigured(request, context)
        loop.take(run_blocks(loop, request, context, report))


def _profile_once(
    loop: TrainingLoop,
    request: TrialRequest,
    context: RankContext,
    report: Callable[[BlockReport], None],
) -> None:
    """Profile in one turn, and return the memory that this took."""
    context.turns.next()
    gc.freeze()  # a collection over torch's objects takes half a second
    loop.take(run_profile(LoopSubject(loop, request.replicas), request, context, report))
    gc.collect()  # the profiler has reference cycles, and holds a hundred megabytes
    gc.unfreeze()


def _clear(request: TrialRequest, context: RankContext) -> None:
    """Return to the state of a new process: unused memory, peaks and random seeds."""
    if not gc.isenabled():
        gc.unfreeze()
    # It takes half a second for a few tensors in cycles: worth it for the memory of a device.
    if context.device.type == "cuda" or not gc.isenabled():
        gc.collect()
    for device in context.devices:
        memory.give_back(device)
        memory.reset_peak(device)
    random.seed(request.seed)
    torch.manual_seed(request.seed)
