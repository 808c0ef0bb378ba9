"""Built-in data-parallel training loop, cut into blocks."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import Subset

from autotune.worker.effects.apply import Applied
from autotune.worker.gradients import held
from autotune.worker.observers.statistics import batch_norms
from autotune.worker.protocol import BlockReport, Observed, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.rendezvous import RankFigures, among_ranks
from autotune.worker.rank.training import Span, Training, convolves, no_span
from autotune.worker.workload import Workload, check_loss

_MOST_HALVINGS = 24
"""Largest number of halvings of the loss scale, which is 2**16 at first."""
_SPARE = 4
"""Factor by which gradients may grow in the steps that follow."""


def of_longest(workload: Workload, request: TrialRequest) -> Workload:
    """Return the workload with a dataset of nothing but its longest samples.

    Raises:
        ValueError: the workload does not name them.
    """
    if workload.longest is None or workload.dataset is None:
        raise ValueError(
            "the workload does not say which samples are the longest: Workload.longest"
        )
    count = request.knobs["micro_batch"] * request.world_size * request.replicas
    places = list(workload.longest(count))
    if not places:
        raise ValueError(f"Workload: `longest` gave no places for {count} samples")
    again = list(itertools.islice(itertools.cycle(places), count))
    return dataclasses.replace(workload, dataset=Subset(workload.dataset, again))


class _Overflow(NamedTuple):
    found: float


def _is_finite(gradient: torch.Tensor) -> bool:
    """Return whether this rank's part of a gradient is finite."""
    return bool(held(gradient).isfinite().all())


class TrainingLoop(Training):
    """Training of a workload on one rank: model, optimizer and data under a configuration."""

    def __init__(
        self,
        workload: Workload,
        request: TrialRequest,
        context: RankContext,
        progressed: Callable[[], None],
        span: Span = no_span,
        before: Applied | None = None,
    ) -> None:
        """Apply the configuration.

        Args:
            workload: to train.
            progressed: called after every step, and every forward pass except those of the first.
            span: entered around every part of a step.
            before: configuration that the workload's model has had in this process.
        """
        super().__init__(request, context, among_ranks(context.world_size))
        self.workload = workload
        self.span = span
        self.progressed = progressed
        self.log_interval = self.knobs["log_interval"]
        self._samples_per_step = _samples_per_step(request)
        self.applied = Applied(
            self.knobs,
            context.devices,
            shorten=workload.shorten,
            tokens_per_sample=workload.tokens_per_sample,
        )
        self.fewest_steps = self.applied.fewest_steps
        self.inspectable = self.applied.inspectable
        if before is None:
            self.model = self.applied.model(workload.model, workload.loss)
        else:
            self.model = self.applied.take_over(before)
        self.updates = self.applied.updates(workload)
        self._loss = self.applied.loss(workload.loss)
        self._batches = self._feed(request, context)

    def close(self) -> None:
        """End the training: stop fetching batches, and drop gradients."""
        self._batches = iter(())
        self.model.zero_grad(set_to_none=True)

    def reconfigured(self, request: TrialRequest, context: RankContext) -> "TrainingLoop":
        """Return a loop for the same model under a configuration that its process can take over.

        This loop is closed. The new one is timed, so that no part of it is marked.
        """
        return TrainingLoop(self.workload, request, context, self.progressed, before=self.applied)

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
        """Take one optimizer step: all micro-batches, gradient exchange, update, logging when due."""
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
        if self.steps_done % self.log_interval == 0:
            with self.span("read"):
                self.read_loss()

    def settle_scale(self) -> None:
        """Lower the scale of an fp16 loss until the gradients of the first step do not overflow.

        That step is then not skipped. Its samples are kept for it.
        """
        scaler = self.applied.scaler
        if not scaler.is_enabled():
            return
        batches = [next(self._batches) for _ in range(self.knobs["accumulation_steps"])]
        for _ in range(_MOST_HALVINGS):
            for micro_batch, batch in zip(self.applied.step(0), batches, strict=True):
                with micro_batch:
                    with self.applied.forward():
                        loss = self._loss(self.model, batch)
                    self.applied.backward(loss)
            self.progressed()
            gradients = (p.grad for p in self.model.parameters() if p.grad is not None)
            mine = _Overflow(float(not all(map(_is_finite, gradients))))
            self.model.zero_grad(set_to_none=self.knobs["set_to_none"])
            if not any(rank.found for rank in self.gather(mine)):
                break
            scaler.update(scaler.get_scale() / 2)
        scaler.update(scaler.get_scale() / _SPARE)
        self._batches = itertools.chain(batches, self._batches)

    def take(self, steps: Iterable[None]) -> None:
        """Take an optimizer step for each item."""
        for _ in steps:
            self.step()

    def tokens(self, samples: int) -> int:
        """Return the number of tokens in some samples."""
        return samples * self.workload.tokens_per_sample

    def block(
        self, trial: str, index: int, ranks: Sequence[RankFigures], observed: Observed
    ) -> BlockReport:
        if not index and self.workload.longest is not None:
            observed = Observed(**{**observed, "tells_longest": 1})
        if not index and (found := batch_norms(self.model.modules())):
            rows = " over the rows of all ranks" if self._merges_rows else ""
            observed = Observed(**{**observed, "batch_dependent": f"{found}{rows}"})
        if not index and convolves(self.model.parameters()):
            observed = Observed(**{**observed, "convolutions": 1})
        return super().block(trial, index, ranks, observed)

    @property
    def _merges_rows(self) -> bool:
        """True if one forward pass computes the rows of all ranks, as data_parallel on the CPU."""
        return self._replicas > 1 and self._devices[0].type == "cpu"

    def _spanned(self, name: str, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self.span(name):
                batch = next(batches)
            yield batch


def _samples_per_step(request: TrialRequest) -> int:
    """Return the samples of a step over all ranks."""
    workers = request.world_size * request.replicas
    return int(request.knobs["micro_batch"] * request.knobs["accumulation_steps"] * workers)
