"""Timed run: block after block of whole optimizer steps."""

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from autotune.worker.observers.block import BlockObservers, RankObservation, together
from autotune.worker.observers.timing import BlockLength, InterleavedBlockLength
from autotune.worker.protocol import BlockReport, Observed, TrialRequest, Turn
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.rendezvous import RankFigures
from autotune.worker.rank.training import Training


class _RankBlock(NamedTuple):
    figures: RankFigures
    seen: RankObservation


def run_blocks(
    training: Training,
    request: TrialRequest,
    context: RankContext,
    report: Callable[[BlockReport], None],
) -> Iterator[None]:
    """Run blocks of a training that takes an optimizer step whenever this yields; report on rank 0."""
    kind = InterleavedBlockLength if request.takes_turns else BlockLength
    length = kind(request.blocks, training.log_interval, fewest=training.fewest_steps)
    observers = _observers(training, context)
    mark = observers.marks.mark
    for index in range(request.blocks.max_blocks):
        turn, steps = context.turns.next(), length.steps
        if turn is None:
            return
        began = time.perf_counter()
        for _ in range(turn.left_out):
            yield
        left_out_seconds = time.perf_counter() - began
        if turn.number:
            observers.resume()
        if request.takes_turns or request.stays:
            # Turns reach one node after another, and the first would wait on the clock for the last.
            training.meet()
        observers.start(index)
        training.begin_block()
        for left in reversed(range(steps)):
            if not left:
                training.ends_with_next()
            yield
            mark()
        if math.isnan(training.loss_read):
            training.read_loss()
        ranks = training.gather(_RankBlock(training.end_block(), observers.stop()))
        figures = [rank.figures for rank in ranks]
        context.turns.silence()
        slowest = max(rank.seconds for rank in figures)
        length.learn(index, slowest, rested=turn.rested)
        if context.rank == 0:
            seen = together([rank.seen for rank in ranks]) | _of_turn(turn, left_out_seconds)
            report(training.block(request.trial, index, figures, seen))


def _observers(training: Training, context: RankContext) -> BlockObservers:
    return BlockObservers(
        training.model,
        context.devices,
        node=context.local_rank == 0,
        first=context.first_on_device,
        alone=context.alone,
    )


def _of_turn(turn: Turn, left_out_seconds: float) -> Observed:
    if not turn.number:
        return Observed()
    return Observed(turn=turn.number, left_out_seconds=left_out_seconds)
