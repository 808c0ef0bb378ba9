"""One run after another in the same ranks, by messages of the launcher."""

import gc
import random
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from autotune.worker.files import TrialFiles
from autotune.worker.observers import memory
from autotune.worker.protocol import BlockReport, TrialRequest
from autotune.worker.rank.blocks import run_blocks
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.loop import TrainingLoop
from autotune.worker.rank.profiling import LoopSubject, run_profile
from autotune.worker.rank.turns import TakenTurns


def stay(
    loop: TrainingLoop,
    request: TrialRequest,
    context: RankContext,
    turns: TakenTurns,
    report: Callable[[BlockReport], None],
    print_to: Callable[[Path], None],
) -> NoReturn:
    """Train what the loop was built for, or look at it, then train whatever is asked for, until this
    process is ended.

    Args:
        turns: on which the context's wait.
        print_to: has what this process prints go to a file from then on.
    """
    if request.profile:
        _look(loop, request, context, report)
    else:
        loop.take(run_blocks(loop, request, context, report))
    while True:
        request = turns.following()
        print_to(TrialFiles(Path(request.log_dir)).log(context.rank))
        loop.close()
        _clear(request, context)
        loop = loop.reconfigured(request, context)
        loop.take(run_blocks(loop, request, context, report))


def _look(
    loop: TrainingLoop,
    request: TrialRequest,
    context: RankContext,
    report: Callable[[BlockReport], None],
) -> None:
    """In one turn; what it took in memory goes back."""
    context.turns.next()
    gc.freeze()  # to go through all that torch has brought takes half a second
    loop.take(run_profile(LoopSubject(loop, request.replicas), request, context, report))
    gc.collect()  # the profiler is in cycles, and holds a hundred megabytes
    gc.unfreeze()


def _clear(request: TrialRequest, context: RankContext) -> None:
    """Leave as little of the last training as a new process would have: memory that nothing holds goes
    back, peaks begin anew, chance as well."""
    if not gc.isenabled():
        gc.unfreeze()
    # Half a second, for a few tensors in reference cycles: worth it where memory is a device's.
    if context.device.type == "cuda" or not gc.isenabled():
        gc.collect()
    for device in context.devices:
        memory.give_back(device)
        memory.reset_peak(device)
    random.seed(request.seed)
    torch.manual_seed(request.seed)
