"""Probe of an unmodified script's training, step by step.

It observes optimizer steps by torch's own hooks, samples by what loaders yield, and the loss where
the backward pass begins.
"""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import dataloader

from autotune.worker import failure
from autotune.worker.effects.precision import is_skipped
from autotune.worker.gradients import parameters_of
from autotune.worker.inject import asked, detected, repeats
from autotune.worker.inject.accumulation import Accumulation
from autotune.worker.inject.batch_samples import samples as guess
from autotune.worker.inject.changes import ScriptObjects
from autotune.worker.inject.draws import Batch, Draws, Source
from autotune.worker.inject.graph import reached
from autotune.worker.inject.leader import Leader
from autotune.worker.inject.rows import Rows
from autotune.worker.inject.steps import after_steps, before_steps
from autotune.worker.inject.tokens import Tokens
from autotune.worker.observers import communication
from autotune.worker.patches import wrapping
from autotune.worker.protocol import Outcome

_SOURCE = "_source_seen_by_autotune"
"""Attribute of a loader's iterator: a Source."""
_STEP_FAILED = Outcome.ERROR, "a step of an optimizer failed"


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a step computes its gradients by a closure."""
    return any(map(callable, (*args, kwargs.get("closure"))))


def _samples(source: Source, batch: Any, known: int | None, *, iterable: bool) -> int:
    """Return the samples of a batch: by its loader, else by its contents; 0 where nothing tells them.

    The last batch of an iterable data set may have fewer than the loader has asked for.
    """
    if known is not None and not iterable:
        return known
    shown = guess(batch)
    if known is None:
        source.guessed = True
        return shown
    source.agrees = source.agrees or shown == known
    return min(shown or known, known) if source.agrees else known


class ScriptProbe:
    """Observer of a script's training.

    Attributes:
        counts_tokens: whether `tokens` are counted.
        padded: whether padding may be among the tokens.
        draws: batches of loaders, and which of them are trained on.
        saw_loader: whether any batch that was trained on came from a loader.
        guessed: whether samples were counted by tensors, as a loader did not know them.
        wait_seconds: spent waiting for loaders since `wait_seconds` was last set.
        loss: last one that a backward pass began with, on its device; None before there is one.
        records_loss: whether the loss of the following backward passes will be read.
        first_backward: collectives that the process had begun when the first backward pass began;
            None before there is one.
        accumulation: micro-batches of its steps.
        scaled: whether a GradScaler has scaled a loss.
        failed: outcome and cause of a backward pass or step that was not completed; None once an
            optimizer has stepped since.
    """

    def __init__(
        self,
        built: ScriptObjects | None = None,
        *,
        counts_tokens: bool = False,
        trained: Callable[[Sequence[Batch]], None] | None = None,
        first_loss: Callable[[torch.Tensor], None] | None = None,
    ) -> None:
        """Prepare the probe.

        Args:
            counts_tokens: whether to count `tokens`.
            trained: see Draws.
            first_loss: called with the loss that the first backward pass begins with.
        """
        self.built = built or ScriptObjects()
        self.draws = Draws(trained)
        self.accumulation = Accumulation()
        self._leader = Leader(self.accumulation, self.draws)
        self.rows: Rows | None = None
        self.saw_loader = False
        self.guessed = False
        self.wait_seconds = 0.0
        self.loss: torch.Tensor | None = None
        self.records_loss = True
        self.first_backward: int | None = None
        self.scaled = False
        self.failed: tuple[Outcome, str] | None = None
        self.counts_tokens = counts_tokens
        self.padded = False
        self._first_loss = first_loss
        self._unscaled: torch.Tensor | None = None
        self._threaded = False
        self._formats = detected.Formats()
        self._recomputation = detected.Recomputation()
        self._of_loader: dict[str, Any] = {}
        self._last_evaluated: Callable[[], nn.Module | None] = lambda: None

    @property
    def leader(self) -> Optimizer | None:
        """Return the optimizer whose steps are those of the training; None before the first one."""
        return self._leader.optimizer

    @property
    def steps_left_out(self) -> int:
        """Return the steps of the training that do not count, see Leader."""
        return self._leader.steps_left_out

    @property
    def samples(self) -> int:
        """Return the samples trained on so far, of batches from loaders."""
        return self.draws.samples

    @property
    def may_be_in_step(self) -> bool:
        """Return whether a step may have begun that no optimizer has completed.

        Without a loader, nothing tells where a forward pass begins.
        """
        return not self.saw_loader or self.draws.untrained or self.accumulation.pending

    @property
    def flushes(self) -> bool:
        """Return whether steps with fewer micro-batches than others are the last of an epoch."""
        return 0 < self.accumulation.falls <= self.draws.begun

    @property
    def full_samples(self) -> int:
        """Return the samples of as many steps if no epoch ended with a shorter batch or step."""
        steps = self.accumulation.missing if self.flushes else 0
        return self.samples + self.draws.missing + steps * max(self.draws.sizes, default=0)

    @property
    def samples_ahead(self) -> int:
        """Return the most samples that a thread has drawn ahead of the backward passes."""
        return self.accumulation.drawn_ahead * max(self.draws.sizes, default=0)

    @property
    def tokens(self) -> int:
        """Return the tokens of these samples, where a sample is a row of whole numbers."""
        return self.draws.tokens

    def watch(
        self,
        *,
        went_on: Callable[[], None],
        taken: Callable[[], None],
        at_gradients: Callable[[], None] | None = None,
    ) -> None:
        """Observe the script from now on.

        All of this is on the path of every step, and none of it is in the processor's caches then:
        the less it touches, the better.

        Args:
            went_on: called whenever the script makes progress.
            taken: called after every step of the training.
            at_gradients: called when the gradients of such a step are complete: before it, or after
                one that computes them by itself.
        """
        self._watch_loaders(went_on)
        self._watch_backward(went_on)
        self._watch_scalers()
        self._formats.watch()
        self._recomputation.watch()
        if at_gradients:
            self._watch_gradients(at_gradients)

        accumulation, leader = self.accumulation, self._leader
        compares = at_gradients is not None

        def before_step(*_: Any) -> None:
            self.failed = _STEP_FAILED
            accumulation.begins()

        def after_step(optimizer: Optimizer, *_: Any) -> None:
            self.failed = None
            if compares and is_skipped(optimizer):
                return  # as where the update is not fused: there the scaler does not call it
            if leader.takes(optimizer):
                accumulation.ends(self.draws.batches)
                taken()

        before_steps(before_step)
        after_steps(after_step)

    def _watch_gradients(self, at_gradients: Callable[[], None]) -> None:
        leader = self._leader

        def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            computed = leader.leads(optimizer) and not _has_closure(args, kwargs)
            if computed and not is_skipped(optimizer):
                at_gradients()

        def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if optimizer is leader.optimizer and _has_closure(args, kwargs):
                at_gradients()

        before_steps(before_step)
        after_steps(after_step)

    def detected(self) -> dict[str, Any]:
        """Return knob -> value that the script has in force, as far as it shows after a step."""
        found = {**self._of_loader, **self._recomputation.detected(), **detected.compilation()}
        if self.leader is not None:
            found |= detected.optimizer_settings(self.leader)
            trained = [*parameters_of(self.leader)]
            found["precision"] = self._formats.detected(trained)
            found |= detected.memory_format(trained)
        if self.built.model is not None:
            found |= detected.ddp_settings(self.built.model)
        return found

    def _watch_loaders(self, went_on: Callable[[], None] | None = None) -> None:
        asked.watch()
        repeats.watch(self.draws)
        self._watch_evaluation()
        self._watch_new_epochs()
        iterator = dataloader._BaseDataLoaderIter
        clock, learns, draws = time.perf_counter, torch.is_grad_enabled, self.draws

        @wrapping(iterator, "__next__")
        def watched(fetch: Any, loader: Any) -> Any:
            source = loader.__dict__.get(_SOURCE)
            if source is not None and not source.trained:
                draws.asks(source)
            quiet, began = draws.quiet, clock()
            try:
                batch = fetch(loader)
            except StopIteration:
                if source is not None:
                    source.exhausted = True
                raise
            index = asked.take(loader)
            if learns():
                self.wait_seconds += clock() - began
                if self.rows is not None:
                    self.rows.saw(loader, batch, index)
                samples = asked.samples(loader, index)
                if source is not None and source.trained and source.known and samples:
                    # The case of nearly every batch. The next backward pass reports progress.
                    draws.drew(Batch(source, samples, 0, quiet, draws.quiet))
                    return batch
                self._saw(loader, batch, samples, quiet)
            if went_on is not None:
                went_on()
            return batch

    def _watch_new_epochs(self) -> None:
        """Notice where an iterator begins anew, as those of persistent workers do."""
        iterator = dataloader._BaseDataLoaderIter

        @wrapping(iterator, "_reset")
        def begun_anew(reset: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
            asked.forget(loader)
            if self.rows is not None:
                self.rows.begin_epoch(loader)
            if (source := loader.__dict__.pop(_SOURCE, None)) is not None:
                self.draws.forget(source)
            return reset(loader, *args, **kwargs)

    def _watch_evaluation(self) -> None:
        """Observe where gradients are disabled, and which model is put into evaluation mode."""
        draws = self.draws

        for kind in (torch.no_grad, torch.inference_mode):

            @wrapping(kind, "__enter__")
            def entered(enter: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
                draws.quiet += 1
                return enter(context, *args, **kwargs)

        @wrapping(torch.set_grad_enabled, "__init__")
        def chosen(choose: Any, context: Any, mode: bool) -> None:
            draws.quiet += not mode
            choose(context, mode)

        @wrapping(nn.Module, "eval")
        def evaluated(evaluate: Any, module: nn.Module) -> Any:
            self._last_evaluated = weakref.ref(module)
            return evaluate(module)

    def _saw(self, loader: Any, batch: Any, samples: int | None, quiet: int) -> None:
        """Take in a batch.

        Args:
            samples: in it, where the iterator knows.
            quiet: number of times that gradients had been disabled when it was asked for.
        """
        source = loader.__dict__.get(_SOURCE)
        if source is None:
            source = Source(weakref.ref(loader), loader._dataset)
            if self.counts_tokens:
                source.text = Tokens()
            loader.__dict__[_SOURCE] = source
        iterable = asked.is_iterable(loader)
        count = _samples(source, batch, samples, iterable=iterable)
        source.known = samples is not None and not source.text and not iterable
        source.evaluating = source.evaluating and self._evaluates()
        tokens = self._tokens(source.text, batch) if source.text else 0
        self.draws.drew(Batch(source, count, tokens, quiet, self.draws.quiet))

    def _tokens(self, text: Tokens, batch: Any) -> int:
        found = text.of(batch)
        self.padded = self.padded or text.padded
        return found

    def _evaluates(self) -> bool:
        model = self.built.inner or self._last_evaluated()
        return model is not None and not model.training

    def _trained(self, loss: torch.Tensor) -> None:
        """Take in that a backward pass begins."""
        self.accumulation.passes += 1
        if self.rows is not None:
            self.rows.learned()
        for source in self.draws.backward(lambda: reached(loss)):
            self.saw_loader = True
            self.guessed = self.guessed or source.guessed
            self._threaded = self._threaded or source.thread != threading.get_ident()
            if (loader := source.iterator()) is not None:
                self._of_loader = detected.loader_settings(loader)
        if self._threaded:
            self.accumulation.draws_ahead(self.draws.batches)

    def _watch_backward(self, went_on: Callable[[], None]) -> None:

        @wrapping(torch.Tensor, "backward")
        def watched(backward: Any, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self._trained(loss)
            if self.first_backward is None:
                self.first_backward = communication.collectives()
                if self._first_loss:
                    self._first_loss(loss)
            if self.records_loss:
                self._record_loss(loss)
            try:
                backward(loss, *args, **kwargs)
            except Exception as error:
                # In words: the error itself would keep the tensors of its frames.
                what = f"{type(error).__name__}: {failure.message_of(error)}"
                self.failed = failure.outcome_of_error(error), f"a backward pass failed ({what})"
                raise
            went_on()

    def _record_loss(self, loss: torch.Tensor) -> None:
        if loss.numel() == 1:
            self.loss = loss.detach() if self._unscaled is None else self._unscaled
            self._unscaled = None

    def _watch_scalers(self) -> None:
        """Record the loss before an fp16 scaler multiplies it, and steps that it skips."""

        @wrapping(torch.amp.GradScaler, "scale")
        def watched(scale: Any, scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            self.scaled = self.scaled or scaler.is_enabled()
            records = self.records_loss and isinstance(outputs, torch.Tensor)
            if records and outputs.numel() == 1:
                self._unscaled = outputs.detach()
            return scale(scaler, outputs)

        @wrapping(torch.amp.GradScaler, "step")
        def stepped(
            step: Any, scaler: torch.amp.GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any
        ) -> Any:
            self._leader.stepped = False
            found = step(scaler, optimizer, *args, **kwargs)
            if not self._leader.stepped:
                self._leader.skips(optimizer)
            return found
