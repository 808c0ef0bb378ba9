"""What a script shows of its training, step by step, though nobody has changed it.

Optimizer steps show in torch's own hooks; samples in what its loaders yield; the loss where the backward
pass begins.
"""

import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader

from autotune.worker.inject import own
from autotune.worker.inject.batches import likeness, size
from autotune.worker.inject.changes import Built
from autotune.worker.observers import communication

_DRAWN = "_drawn_seen_by_autotune"
"""Of an iterator of a loader."""


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a step computes its gradients by itself, by a function that it is given."""
    return any(map(callable, (*args, kwargs.get("closure"))))


@dataclass(slots=True)
class _Drawn:
    """From an iterator of a loader, with gradients on, since the last backward pass.

    Many turn gradients off only inside the loop that evaluates, so that its batches come with them on.

    Attributes:
        loader: the iterator, while it is there.
        evaluated: some of it while the model was evaluating.
        trained: earlier batches of this iterator were trained on.
        alike: what the last batch had that tells its size: see batches.likeness.
        rows: samples of the last batch.
        numbers: tokens of the last batch.
    """

    loader: weakref.ref[Any]
    batches: int = 0
    samples: int = 0
    tokens: int = 0
    evaluated: bool = False
    trained: bool = False
    alike: Any = None
    rows: int = 0
    numbers: int = 0

    def clear(self) -> None:
        """All is counted, or not to be."""
        self.batches = self.samples = self.tokens = 0
        self.evaluated = False


class Sight:
    """What was seen so far.

    Attributes:
        samples: of batches from loaders that a backward pass has followed: what a script evaluates does
            not count.
        tokens: of them, where a sample is a row of whole numbers.
        saw_loader: whether there were any.
        wait_seconds: spent waiting for loaders since `wait_seconds` was last set.
        loss: the last one that a backward pass began with, on its device; None before there is one.
        built: what the script has built.
        looks_at_loss: whether anybody will want the loss of the backward passes to come.
        first_backward: collectives that the process had begun when the first backward pass began; None
            before there is one.
        leader: the optimizer that stepped first; its steps are those of the training.
    """

    def __init__(self, built: Built | None = None) -> None:
        self.built = built or Built()
        self.samples = 0
        self.tokens = 0
        self.saw_loader = False
        self.wait_seconds = 0.0
        self.loss: torch.Tensor | None = None
        self.looks_at_loss = True
        self.leader: Optimizer | None = None
        self.first_backward: int | None = None
        self._unscaled: torch.Tensor | None = None
        self._overflows: Counter[int] = Counter()
        self._taken = False
        self._formats = own.Formats()
        self._recomputation = own.Recomputation()
        self._of_loader: dict[str, Any] = {}
        self._waiting: list[_Drawn] = []
        self._ahead = self._tokens_ahead = 0

    def watch(
        self,
        *,
        went_on: Callable[[], None],
        taken: Callable[[], None],
        at_gradients: Callable[[], None] | None = None,
    ) -> None:
        """Look at everything that the script does from now on.

        All of this is on the way of every step, and finds nothing of its own in the processor's caches:
        the less it touches, the better.

        Args:
            went_on: called whenever the script shows that it is alive.
            taken: called after every step of the leader.
            at_gradients: called when the gradients of such a step are there: before it, or after one
                that computes them by itself.
        """
        self._watch_loaders(went_on)
        self._watch_backward(went_on)
        self._watch_scalers()
        self._formats.watch()
        self._recomputation.watch()
        if at_gradients:
            self._watch_gradients(at_gradients)

        def after_step(optimizer: Optimizer, *_: Any) -> None:
            self._taken = True
            if self.leader is None:
                self.leader = optimizer
            if optimizer is self.leader:
                taken()

        register_optimizer_step_post_hook(after_step)

    @property
    def steps_left_out(self) -> int:
        """Steps that the leader has not taken, as a gradient was too large for fp16."""
        return self._overflows[id(self.leader)]

    def _watch_gradients(self, at_gradients: Callable[[], None]) -> None:
        def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self.leader = self.leader or optimizer
            if optimizer is self.leader and not _has_closure(args, kwargs):
                at_gradients()

        def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if optimizer is self.leader and _has_closure(args, kwargs):
                at_gradients()

        register_optimizer_step_pre_hook(before_step)
        register_optimizer_step_post_hook(after_step)

    def own(self) -> dict[str, Any]:
        """What the script has in force, as far as it shows after a step: knob -> value."""
        found = {**self._of_loader, **self._recomputation.own()}
        if self.leader is not None:
            found |= own.of_optimizer(self.leader)
            groups = self.leader.param_groups
            found["precision"] = self._formats.own(p for group in groups for p in group["params"])
        if self.built.model is not None:
            found |= own.of_model(self.built.model)
        return found

    def _watch_loaders(self, went_on: Callable[[], None] | None = None) -> None:
        iterator = dataloader._BaseDataLoaderIter
        fetch = iterator.__next__
        clock, learns = time.perf_counter, torch.is_grad_enabled

        def watched(loader: Any) -> Any:
            asked = clock()
            try:
                batch = fetch(loader)
            except StopIteration:
                self._exhausted(loader)
                raise
            if learns():
                self.wait_seconds += clock() - asked
                drawn = getattr(loader, _DRAWN, None)
                if drawn is not None and drawn.trained and drawn.alike == likeness(batch):
                    # So it is with nearly every batch. The backward pass to come shows life enough.
                    self._ahead += drawn.rows
                    self._tokens_ahead += drawn.numbers
                    return batch
                self._saw(loader, batch)
            if went_on is not None:
                went_on()
            return batch

        iterator.__next__ = watched  # type: ignore[method-assign, assignment]

    def _saw(self, loader: Any, batch: Any) -> None:
        drawn = getattr(loader, _DRAWN, None)
        if drawn is None:
            drawn = _Drawn(weakref.ref(loader))
            setattr(loader, _DRAWN, drawn)
        drawn.alike = likeness(batch)
        drawn.rows, drawn.numbers = size(batch)
        if drawn.trained:
            self._ahead += drawn.rows
            self._tokens_ahead += drawn.numbers
            return
        if not drawn.batches:
            self._waiting.append(drawn)
        drawn.batches += 1
        drawn.samples += drawn.rows
        drawn.tokens += drawn.numbers
        if self._evaluates():
            drawn.evaluated = True

    def _evaluates(self) -> bool:
        inner = self.built.inner
        return inner is not None and not inner.training

    def _exhausted(self, loader: Any) -> None:
        # Loaders with persistent workers keep their iterator, others forget what nobody trained on.
        drawn = getattr(loader, _DRAWN, None)
        if (
            drawn is not None
            and not drawn.trained
            and getattr(loader, "_persistent_workers", False)
        ):
            drawn.clear()

    def _trained(self) -> None:
        """A backward pass: what was drawn is what is trained on."""
        self.samples += self._ahead
        self.tokens += self._tokens_ahead
        self._ahead = self._tokens_ahead = 0
        if self._waiting:
            self._train_first()

    def _train_first(self) -> None:
        """On iterators that nothing was trained on before."""
        evaluates = self._evaluates()
        waiting, self._waiting = self._waiting, []
        for drawn in waiting:
            loader = drawn.loader()
            if loader is None:
                continue  # left before anything was trained on it
            if drawn.batches and (evaluates or not drawn.evaluated):
                self.saw_loader = drawn.trained = True
                self._of_loader = own.of_loader(loader)
                self.samples += drawn.samples
                self.tokens += drawn.tokens
            drawn.clear()

    def _watch_backward(self, went_on: Callable[[], None]) -> None:
        backward: Callable[..., None] = torch.Tensor.backward

        def watched(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self._trained()
            if self.first_backward is None:
                self.first_backward = communication.collectives()
            if self.looks_at_loss:
                self._look_at(loss)
            backward(loss, *args, **kwargs)
            went_on()

        torch.Tensor.backward = watched  # type: ignore[assignment, method-assign]

    def _look_at(self, loss: torch.Tensor) -> None:
        if loss.numel() == 1:
            self.loss = loss.detach() if self._unscaled is None else self._unscaled
            self._unscaled = None

    def _watch_scalers(self) -> None:
        """fp16: the backward pass begins with the loss times a scale that changes."""
        scale = torch.amp.GradScaler.scale

        def watched(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            looks = self.looks_at_loss and isinstance(outputs, torch.Tensor)
            if looks and outputs.numel() == 1:
                self._unscaled = outputs.detach()
            return scale(scaler, outputs)

        torch.amp.GradScaler.scale = watched  # type: ignore[method-assign, assignment]
        step = torch.amp.GradScaler.step

        def stepped(
            scaler: torch.amp.GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any
        ) -> Any:
            self._taken = False
            found = step(scaler, optimizer, *args, **kwargs)
            if not self._taken:
                self._overflows[id(optimizer)] += 1
            return found

        torch.amp.GradScaler.step = stepped  # type: ignore[method-assign, assignment]
