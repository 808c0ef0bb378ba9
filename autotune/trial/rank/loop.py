"""The built-in data-parallel training loop, cut into blocks."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from autotune.trial.effects.apply import Applied
from autotune.trial.observers import memory
from autotune.trial.observers.timing import BlockClock
from autotune.trial.protocol import BlockReport, Observed, TrialRequest
from autotune.trial.rank.context import RankContext
from autotune.trial.rank.gathering import RankFigures
from autotune.trial.workload import Workload, check_loss

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
        self.workload = workload
        self.knobs = request.knobs
        self.span = span
        self.progressed = progressed
        self.clock = BlockClock(context.device)
        self.steps_done = 0
        self.samples_done = 0.0
        self.loss_read = math.nan
        self._block_start = (0, 0.0)
        self._replicas = request.replicas
        self._alone = request.devices_per_rank >= 1
        self._devices = context.devices
        self._samples_per_step = _samples_per_step(request)
        self.applied = Applied(
            self.knobs,
            context.devices,
            shorten=workload.shorten,
            tokens_per_sample=workload.tokens_per_sample,
        )
        self.model = self.applied.model(workload.model, workload.loss)
        self.updates = self.applied.updates(workload)
        self._loss = self.applied.loss(workload.loss)
        self._batches = self._feed(request, context)

    def _feed(self, request: TrialRequest, context: RankContext) -> Iterator[Any]:
        source = self.applied.source(
            self.workload,
            rank=context.rank,
            world_size=context.world_size,
            replicas=request.replicas,
            seed=request.seed,
        )
        loaded = self.clock.watched(self._spanned("loader", source))
        return self._spanned("batch", self.applied.batches(loaded))

    def step(self) -> None:
        """One optimizer step: all micro-batches, gradient exchange, update, logging when due."""
        for micro_batch in self.applied.step(self.steps_done):
            batch = next(self._batches)
            with micro_batch:
                with self.span("forward"), self.applied.forward():
                    loss = self._loss(self.model, batch)
                if self.steps_done:  # the first step may compile its backward pass, too
                    self.progressed()
                else:
                    check_loss(loss)
                with self.span("backward"):
                    self.applied.backward(loss)
        with self.span("optimizer"):
            self.updates.take(self.steps_done)
        self.loss = loss.detach()
        self.steps_done += 1
        self.samples_done += self._samples_per_step * self.applied.part
        self.progressed()
        if self.steps_done % self.knobs["log_interval"] == 0:
            with self.span("read"):
                self.read_loss()

    def read_loss(self) -> None:
        """Bring the loss to the host, as a progress line does: a true synchronisation point.

        Raises:
            NonFiniteLoss: it is NaN or infinite.
        """
        self.loss_read = float(self.loss)
        if not math.isfinite(self.loss_read):
            raise NonFiniteLoss(f"the loss is {self.loss_read}, read at step {self.steps_done}")

    def begin_block(self) -> None:
        """Count and time from here on."""
        self._block_start = (self.steps_done, self.samples_done)
        self.loss_read = math.nan
        self.clock.start()

    def end_block(self) -> RankFigures:
        """Of the block until here. A loss that was not read in it is read now, when nothing is timed any
        more."""
        seconds = self.clock.stop()
        if math.isnan(self.loss_read):
            self.loss_read = float(self.loss)
        return RankFigures(seconds, self.clock.wait_seconds, self.loss_read, self._peak_bytes())

    def block(
        self, trial: str, index: int, ranks: Sequence[RankFigures], observed: Observed
    ) -> BlockReport:
        """The report of the block that is over. A shortened sample counts by its share of tokens.

        Args:
            trial: its name.
            index: of the block.
            ranks: what each of them tells.
            observed: what else was seen.
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
            tokens=samples * self.workload.tokens_per_sample,
            seconds=max(seconds),
            rank_seconds=seconds,
            wait_seconds=max(rank.wait_seconds for rank in ranks),
            loss=sum(rank.loss for rank in ranks) / len(ranks),
            peak_bytes=int(max(rank.peak_bytes for rank in ranks)),
            observed=observed,
        )

    def samples_of_block(self) -> float:
        """Samples over all ranks since it began."""
        return self.samples_done - self._block_start[1]

    def _peak_bytes(self) -> int:
        """Of the device that takes most; of a process that does the work of several ranks on the CPU,
        each one's share."""
        peak = max(memory.peak_bytes(device, alone=self._alone) for device in self._devices)
        return peak if self._devices[0].type == "cuda" else peak // self._replicas

    def _spanned(self, name: str, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self.span(name):
                batch = next(batches)
            yield batch


def _samples_per_step(request: TrialRequest) -> int:
    """Over all ranks."""
    workers = request.world_size * request.replicas
    return int(request.knobs["micro_batch"] * request.knobs["accumulation_steps"] * workers)
