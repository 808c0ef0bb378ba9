"""A training on one rank as blocks see it, and its timed run, block after block of whole steps."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from torch import nn

from autotune.worker.observers import memory
from autotune.worker.observers.block import BlockObservers, RankObservation, together
from autotune.worker.observers.timing import BlockClock, BlockLength, InterleavedBlockLength
from autotune.worker.protocol import BlockReport, Knobs, Observed, TrialRequest, Turn
from autotune.worker.rank.context import RankContext, resting_children
from autotune.worker.rank.rendezvous import Gather, RankFigures

Span = Callable[[str], AbstractContextManager[Any]]
"""Marks a span of the step: step, batch, loader, forward, backward, optimizer, read."""

_NOTHING = nullcontext()
_DIMENSIONS_OF_MATRIX = 2
_NOTICEABLE_WAIT = 0.01
"""Share of a block's time: a shorter wait for batches biases no figure by more."""


def no_span(_: str) -> AbstractContextManager[Any]:
    """Return an empty context."""
    return _NOTHING


def convolves(parameters: Iterable[nn.Parameter]) -> bool:
    """Return whether parameters have the dimensions of convolutions."""
    return any(parameter.dim() > _DIMENSIONS_OF_MATRIX for parameter in parameters)


class NonFiniteLoss(ArithmeticError):
    """Error for a loss that became NaN or infinite."""


class Training:
    """Base of the trainings on a rank: the built-in loop, or a script.

    Attributes:
        samples_done: over all ranks; a shortened sample counts by its share of tokens.
        loss: last one, on its device.
        loss_read: last one that was read in this block; NaN before.
        fewest_steps: of a block that stands for the whole training.
        inspectable: whether its operators may be inspected one by one.
        log_interval: steps between two readings of the loss.
        gather: exchanges the figures of all ranks.
    """

    model: nn.Module
    loss: Any
    fewest_steps: int = 1
    log_interval: int = 1
    inspectable: bool = False

    def __init__(self, request: TrialRequest, context: RankContext, gather: Gather) -> None:
        self.knobs: Knobs = request.knobs
        self.clock = BlockClock(context.device)
        self.gather = gather
        self.steps_done = 0
        self.samples_done = 0.0
        self.loss_read = math.nan
        self._block_start = (0, 0.0)
        self._replicas = request.replicas
        self._alone = request.has_devices_alone
        self._devices = context.devices

    def read_loss(self) -> None:
        """Bring the loss to the host, as a progress line does: a true synchronisation point.

        Raises:
            NonFiniteLoss: it is NaN or infinite.
        """
        self.loss_read = float(self.loss)
        if not math.isfinite(self.loss_read):
            raise NonFiniteLoss(f"the loss is {self.loss_read}, read at step {self.steps_done}")

    def meet(self) -> None:
        """Wait until all ranks have come here."""
        self.gather(RankFigures(0.0, 0.0, 0.0, 0.0))

    def parameters(self) -> Iterable[nn.Parameter]:
        """Return all trained parameters."""
        return self.model.parameters()

    def tokens(self, samples: int) -> int:
        """Return the number of tokens in some samples of the block; 0 where a sample has none."""
        raise NotImplementedError

    def begin_block(self, *, follows: bool = False) -> None:
        """Count and time from here on; `follows` is that of `BlockClock.start`."""
        self._block_start = (self.steps_done, self.samples_done)
        self.loss_read = math.nan
        self.clock.start(follows=follows)

    def ends_with_next(self) -> None:
        """Prepare for the next step, the last one of the block."""

    def end_block(self) -> RankFigures:
        """Return the figures of the block until here.

        A loss that was not read in the block is read now, when nothing is timed any more.
        """
        seconds = self.clock.stop()
        if math.isnan(self.loss_read):
            self.loss_read = float(self.loss)
        return RankFigures(seconds, self.clock.wait_seconds, self.loss_read, self._peak_bytes())

    def block(
        self, trial: str, index: int, ranks: Sequence[RankFigures], observed: Observed
    ) -> BlockReport:
        """Return the report of the block that is over.

        A shortened sample counts by its share of tokens.

        Args:
            index: of the block.
            ranks: figures of each rank.
        """
        if self._replicas > 1:
            observed = Observed(**{**observed, "replicas": self._replicas})
        samples = round(self.samples_of_block())
        seconds = tuple(rank.seconds for rank in ranks)
        return BlockReport(
            trial=trial,
            index=index,
            steps=self.steps_done - self._block_start[0],
            samples=samples,
            tokens=self.tokens(samples),
            seconds=max(seconds),
            rank_seconds=seconds,
            wait_seconds=max(rank.wait_seconds for rank in ranks),
            loss=sum(rank.loss for rank in ranks) / len(ranks),
            peak_bytes=int(max(rank.peak_bytes for rank in ranks)),
            observed=observed,
        )

    def samples_of_block(self) -> float:
        """Return the samples over all ranks since the block began."""
        return self.samples_done - self._block_start[1]

    def _peak_bytes(self) -> int:
        """Return the peak memory of the device that takes most.

        A process that does the work of several ranks on the CPU returns one rank's share.
        """
        peak = max(memory.peak_bytes(device, alone=self._alone) for device in self._devices)
        return peak if self._devices[0].type == "cuda" else peak // self._replicas


class _RankBlock(NamedTuple):
    figures: RankFigures
    seen: RankObservation
    waiting_cpu: float


class _Before(NamedTuple):
    """Facts about the latest block, alike on all ranks.

    Attributes:
        seconds: on the slowest rank.
        compiled: True if something was compiled in it.
        exposed: True if its first step may have waited noticeably for what later ones got meanwhile: a
            process that loads its own batches does so while the device is busy with the step before.
        loads_beside: True if a loader has workers.
    """

    seconds: float = 0.0
    compiled: bool = False
    exposed: bool = False
    loads_beside: bool = False

    @classmethod
    def of(cls, ranks: Sequence[_RankBlock], index: int) -> "_Before":
        """Return the facts about a block; its first one always waits for the workers to begin."""
        compiled = any(rank.seen.settling.compilations for rank in ranks)
        slowest = max(rank.figures.seconds for rank in ranks)
        waited = max(rank.figures.wait_seconds for rank in ranks) > _NOTICEABLE_WAIT * slowest
        beside = not all(math.isnan(rank.seen.ready_batches) for rank in ranks)
        return cls(slowest, compiled, waited and index > 0 and not compiled, beside)


def run_blocks(
    training: Training,
    request: TrialRequest,
    context: RankContext,
    report: Callable[[BlockReport], None],
) -> Iterator[None]:
    """Run blocks of a training that takes an optimizer step whenever this yields; report on rank 0."""
    kind = InterleavedBlockLength if request.interleaved else BlockLength
    length = kind(request.blocks, training.log_interval, fewest=training.fewest_steps)
    observers = _observers(training, context)
    may_follow = request.blocks.leads_in and context.device.type == "cuda"
    before = _Before()
    for index in range(request.blocks.max_blocks):
        turn = context.turns.next()
        if turn is None:
            return
        began, left_out = time.perf_counter(), turn.left_out or int(may_follow and before.exposed)
        follows = may_follow and left_out > 0
        for _ in range(left_out):
            yield
        left_out_seconds = time.perf_counter() - began if left_out else 0.0
        if turn.number or left_out:
            observers.resume(follows=follows)
        if request.interleaved or request.stays:
            # Turns reach one node after another, and the first would wait on the clock for the last.
            training.meet()
        observers.start(index)
        training.begin_block(follows=follows)
        yield from _steps(training, length.steps, observers.marks.mark)
        own = training.end_block()
        if follows:
            left_out_seconds = time.perf_counter() - began - own.seconds
        if before.loads_beside:
            training.meet()
        with resting_children() if before.loads_beside else nullcontext():
            told = _RankBlock(own, observers.stop(), context.turns.waiting_cpu)
            ranks = training.gather(told)
        figures = [rank.figures for rank in ranks]
        context.turns.silence()
        before = _Before.of(ranks, index)
        length.learn(index, before.seconds, rested=turn.rested, compiled=before.compiled)
        if context.rank == 0:
            seen = together([rank.seen for rank in ranks])
            waiting_cpu = max(rank.waiting_cpu for rank in ranks)
            seen |= _of_turn(turn, left_out_seconds, waiting_cpu)
            report(training.block(request.trial, index, figures, seen))


def _steps(training: Training, steps: int, mark: Callable[[], None]) -> Iterator[None]:
    for left in reversed(range(steps)):
        if not left:
            training.ends_with_next()
        yield
        mark()
    if math.isnan(training.loss_read):
        training.read_loss()


def _observers(training: Training, context: RankContext) -> BlockObservers:
    return BlockObservers(
        training.model,
        context.devices,
        node=context.local_rank == 0,
        first=context.first_on_device,
        alone=context.alone,
    )


def _of_turn(turn: Turn, left_out_seconds: float, waiting_cpu: float) -> Observed:
    if not turn.number:
        return Observed(left_out_seconds=left_out_seconds) if left_out_seconds else Observed()
    observed = Observed(turn=turn.number, left_out_seconds=left_out_seconds)
    if turn.rested:
        observed["waiting_cpu"] = waiting_cpu
    return observed
