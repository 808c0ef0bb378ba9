"""The built-in data-parallel training loop, cut into timed blocks."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from autotune.trial.effects import (
    feeding,
    kernels,
    parallel,
    precision,
    process,
    replicas,
    schedules,
)
from autotune.trial.observers import memory
from autotune.trial.observers.block import BlockObservers, together
from autotune.trial.observers.timing import BlockClock, BlockLength
from autotune.trial.protocol import BlockReport, Observed, TrialRequest
from autotune.trial.workload import Workload


@dataclass(frozen=True)
class RankContext:
    """Where a rank stands in its trial, and what it computes on."""

    rank: int
    local_rank: int
    world_size: int
    devices: tuple[torch.device, ...]

    @property
    def device(self) -> torch.device:
        """The one that holds its model and takes its batches."""
        return self.devices[0]


Span = Callable[[str], AbstractContextManager[Any]]
"""Marks a stretch of the step: step, batch, loader, forward, backward, optimizer, read."""

_NOTHING = nullcontext()


def no_span(_: str) -> AbstractContextManager[Any]:
    """Marks nothing."""
    return _NOTHING


class NonFiniteLoss(ArithmeticError):
    """The loss became NaN or infinite."""


class TrainingLoop:
    """One rank's training: model, optimizer and data under a configuration; `step` by `step`."""

    def __init__(
        self,
        workload: Workload,
        request: TrialRequest,
        context: RankContext,
        progressed: Callable[[], None],
        span: Span = no_span,
    ) -> None:
        """Apply the configuration.

        Args:
            progressed: called after every step, and every forward pass but those of the first.
            span: entered around every part of a step.
        """
        self.span = span
        self.progressed = progressed
        self.knobs = request.knobs
        self.device = context.device
        self._devices = context.devices
        self._replicas = request.replicas
        self.clock = BlockClock(context.device)
        self.steps_done = 0
        self.samples_done = 0.0
        self._block_start = (0, 0.0)
        self.loss_read = math.nan
        self.workload = workload
        model = workload.model
        precision.float32_matmul(self.knobs)
        precision.weights(self.knobs, model)
        kernels.qkv_streams(self.knobs, model)
        kernels.loss_chunks(self.knobs, model)
        kernels.checkpoint_activations(self.knobs, model)
        self._layers = schedules.LayerDrop(self.knobs, model)
        self._curriculum = schedules.Curriculum(self.knobs, workload)
        kernels.channels_last(self.knobs, model)
        model = kernels.compiled(self.knobs, model)
        if self.knobs["parallelism"] == "data_parallel":
            self.model = replicas.wrapped(self.knobs, model, workload.loss, context.devices)
            self._loss = replicas.loss(self.knobs, workload.loss)
        else:
            self.model = parallel.wrapped(self.knobs, model, context.device)
            self._loss = workload.loss
        self.optimizer = parallel.optimizer(self.knobs, workload.optimizer, self.model)
        kernels.optimizer_kernels(self.knobs, self.optimizer)
        self.scaler = precision.gradient_scaler(self.knobs, context.device)
        source = feeding.loader(
            workload,
            self.knobs,
            rank=context.rank,
            world_size=context.world_size,
            replicas=request.replicas,
            seed=request.seed,
        )
        batches = self.clock.watched(self._spanned("loader", feeding.endless(source)))
        moved = feeding.on_device(batches, self.knobs, context.device)
        self.batches = self._spanned("batch", moved)
        process.garbage_collection(self.knobs)
        workers = context.world_size * request.replicas
        self.samples_per_step = (
            self.knobs["micro_batch"] * self.knobs["accumulation_steps"] * workers
        )

    def step(self) -> None:
        """One optimizer step: all micro-batches, gradient exchange, update, logging when due."""
        self._layers.begin(self.steps_done)
        self._curriculum.begin(self.steps_done)
        accumulation = self.knobs["accumulation_steps"]
        for micro_batch in range(accumulation):
            last = micro_batch == accumulation - 1
            with parallel.gradient_sync(self.model, last_micro_batch=last):
                batch = self._curriculum.cut(next(self.batches))
                with kernels.attention(self.knobs):
                    with self.span("forward"), precision.autocast(self.knobs, self.device):
                        loss = self._loss(self.model, batch)
                    if self.steps_done:  # the first step may compile its backward pass, too
                        self.progressed()
                    with self.span("backward"):
                        self.scaler.scale(loss / accumulation).backward()
        with self.span("optimizer"):
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=self.knobs["set_to_none"])
        self.loss = loss.detach()
        self.steps_done += 1
        self.samples_done += self.samples_per_step * self._curriculum.part
        self.progressed()
        if self.steps_done % self.knobs["log_interval"] == 0:
            with self.span("read"):
                self.read_loss()

    def begin_block(self) -> None:
        """Count and time from here on."""
        self._block_start = (self.steps_done, self.samples_done)
        self.clock.start()

    def block(
        self,
        trial: str,
        index: int,
        columns: tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]],
        observed: Observed,
    ) -> BlockReport:
        """The report of the block that is over. A shortened sample counts by its share of tokens.

        Args:
            trial: its name.
            index: of the block.
            columns: each with a value per rank: seconds, seconds of waiting, loss, peak bytes.
            observed: what else was seen.
        """
        seconds, waits, losses, peaks = columns
        if self._replicas > 1:
            observed = Observed(**{**observed, "replicas": self._replicas})
        steps, samples = self.steps_done - self._block_start[0], round(self.samples_of_block())
        return BlockReport(
            trial=trial,
            index=index,
            steps=steps,
            samples=samples,
            tokens=samples * self.workload.tokens_per_sample,
            seconds=max(seconds),
            rank_seconds=tuple(seconds),
            wait_seconds=max(waits),
            loss=sum(losses) / len(losses),
            peak_bytes=int(max(peaks)),
            observed=observed,
        )

    def samples_of_block(self) -> float:
        """Samples over all ranks since it began."""
        return self.samples_done - self._block_start[1]

    @property
    def inspectable(self) -> bool:
        """Whether one may look at operators one by one: it would keep torch.compile from compiling, for
        good, and does not see what the threads of several devices do."""
        return bool(self.knobs["compile"] == "none" and len(self._devices) == 1)

    def peak_bytes(self) -> int:
        """Of the device that takes most; of a process that does the work of several ranks on the CPU,
        each one's share."""
        peak = max(map(memory.peak_bytes, self._devices))
        return peak if self.device.type == "cuda" else peak // self._replicas

    def read_loss(self) -> None:
        """Bring the loss to the host, as a progress line does: a true synchronisation point.

        Raises:
            NonFiniteLoss: it is NaN or infinite.
        """
        self.loss_read = float(self.loss)
        if not math.isfinite(self.loss_read):
            raise NonFiniteLoss(f"the loss is {self.loss_read}, read at step {self.steps_done}")

    def _spanned(self, name: str, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self.span(name):
                batch = next(batches)
            yield batch


def run_blocks(
    loop: TrainingLoop,
    request: TrialRequest,
    context: RankContext,
    report: Callable[[BlockReport], None],
) -> None:
    """Train block after block; on rank 0 report each."""
    fewest = max(request.blocks.min_steps, schedules.fewest_steps(loop.knobs))
    plan = replace(request.blocks, min_steps=fewest)
    length = BlockLength(plan, loop.knobs["log_interval"])
    observers = BlockObservers(loop.model, context.devices, node=context.local_rank == 0)
    for index in range(request.blocks.max_blocks):
        steps = length.steps
        loop.loss_read = math.nan
        observers.start()
        loop.begin_block()
        for _ in range(steps):
            loop.step()
            observers.marks.mark()
        if math.isnan(loop.loss_read):
            loop.read_loss()
        seconds = loop.clock.stop()
        timed = (seconds, loop.clock.wait_seconds, loop.loss_read, loop.peak_bytes())
        ranks = gather((*timed, *observers.stop()), context.world_size)
        all_seconds, waits, losses, peaks, *seen = zip(*ranks, strict=True)
        length.learn(index, max(all_seconds))
        if context.rank == 0:
            columns = (all_seconds, waits, losses, peaks)
            report(loop.block(request.trial, index, columns, together(seen)))


def gather(mine: tuple[float, ...], world_size: int) -> list[tuple[float, ...]]:
    """Every rank's numbers, on every rank: all of them must choose the same next block."""
    sent = torch.tensor(mine, dtype=torch.float64)
    received = [torch.empty_like(sent) for _ in range(world_size)]
    dist.all_gather(received, sent)
    return [tuple(tensor.tolist()) for tensor in received]
