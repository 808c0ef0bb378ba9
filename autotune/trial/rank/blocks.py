"""A timed run: block after block of whole optimizer steps."""

import math
from collections.abc import Callable
from typing import NamedTuple

from autotune.trial.observers.block import BlockObservers, RankSight, together
from autotune.trial.observers.timing import BlockLength
from autotune.trial.protocol import BlockReport, TrialRequest
from autotune.trial.rank.context import RankContext
from autotune.trial.rank.gathering import RankFigures, gather
from autotune.trial.rank.loop import TrainingLoop


class _RankBlock(NamedTuple):
    figures: RankFigures
    seen: RankSight


def run_blocks(
    loop: TrainingLoop,
    request: TrialRequest,
    context: RankContext,
    report: Callable[[BlockReport], None],
) -> None:
    """Train block after block; on rank 0 report each."""
    length = BlockLength(
        request.blocks, loop.knobs["log_interval"], fewest=loop.applied.fewest_steps
    )
    observers = BlockObservers(
        loop.model,
        context.devices,
        node=context.local_rank == 0,
        first=context.first_on_device,
    )
    for index in range(request.blocks.max_blocks):
        steps = length.steps
        observers.start(index)
        loop.begin_block()
        for _ in range(steps):
            loop.step()
            observers.marks.mark()
        if math.isnan(loop.loss_read):
            loop.read_loss()
        mine = _RankBlock(loop.end_block(), observers.stop())
        ranks = gather(mine, context.world_size)
        figures = [rank.figures for rank in ranks]
        length.learn(index, max(rank.seconds for rank in figures))
        if context.rank == 0:
            seen = together([rank.seen for rank in ranks])
            report(loop.block(request.trial, index, figures, seen))
