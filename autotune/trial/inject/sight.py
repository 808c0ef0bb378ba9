"""What a script shows of its training, step by step, though nobody has changed it.

Optimizer steps show in torch's own hooks; samples in what its loaders yield; the loss where the backward
pass begins.
"""

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader

from autotune.trial.inject import own
from autotune.trial.inject.batches import size
from autotune.trial.inject.changes import Built
from autotune.trial.observers import communication

_DRAWN = "_drawn_seen_by_autotune"
"""Of an iterator of a loader."""


class AtStep(Protocol):
    """Called at a step of the optimizer."""

    def __call__(self, *, by_closure: bool) -> None:
        """
        Args:
            by_closure: the gradients are computed within the step, by a function that it is given.
        """


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(args or kwargs) and any(map(callable, (*args, kwargs.get("closure"))))


@dataclass
class _Drawn:
    """From an iterator of a loader, with gradients on, since the last backward pass.

    Many turn gradients off only inside the loop that evaluates, so that its batches come with them on.

    Attributes:
        loader: the iterator, while it is there.
        evaluated: some of it while the model was evaluating.
        trained: earlier batches of this iterator were trained on.
    """

    loader: weakref.ref[Any]
    batches: int = 0
    samples: int = 0
    tokens: int = 0
    evaluated: bool = False
    trained: bool = False

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
        self.leader: Optimizer | None = None
        self.first_backward: int | None = None
        self._unscaled: torch.Tensor | None = None
        self._formats = own.Formats()
        self._recomputation = own.Recomputation()
        self._of_loader: dict[str, Any] = {}
        self._waiting: list[_Drawn] = []

    def watch(self, *, went_on: Callable[[], None], before: AtStep, after: AtStep) -> None:
        """Look at everything that the script does from now on.

        Args:
            went_on: called whenever the script shows that it is alive.
            before: called before every step of the leader.
            after: called after it.
        """
        self._watch_loaders(went_on)
        self._watch_backward(went_on)
        self._watch_scalers()
        self._formats.watch()
        self._recomputation.watch()

        def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self.leader = self.leader or optimizer
            if optimizer is self.leader:
                before(by_closure=_has_closure(args, kwargs))

        def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            went_on()
            if optimizer is self.leader:
                after(by_closure=_has_closure(args, kwargs))

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

    def _watch_loaders(self, went_on: Callable[[], None]) -> None:
        iterator = dataloader._BaseDataLoaderIter
        fetch = iterator.__next__

        def watched(loader: Any) -> Any:
            asked = time.perf_counter()
            try:
                batch = fetch(loader)
            except StopIteration:
                self._exhausted(loader)
                raise
            if torch.is_grad_enabled():
                self.wait_seconds += time.perf_counter() - asked
                self._saw(loader, batch)
            went_on()
            return batch

        iterator.__next__ = watched  # type: ignore[method-assign, assignment]

    def _saw(self, loader: Any, batch: Any) -> None:
        # This is on the way of every batch, and finds nothing of its own in the processor's caches: the
        # fewer objects, the better.
        drawn = getattr(loader, _DRAWN, None)
        if drawn is None:
            drawn = _Drawn(weakref.ref(loader))
            setattr(loader, _DRAWN, drawn)
        if not drawn.batches:
            self._waiting.append(drawn)
        samples, tokens = size(batch)
        drawn.batches += 1
        drawn.samples += samples
        drawn.tokens += tokens
        if self._evaluates():
            drawn.evaluated = True

    def _evaluates(self) -> bool:
        model = self.built.model
        return model is not None and not model.module.training

    def _exhausted(self, loader: Any) -> None:
        # Loaders with persistent workers keep their iterator, others forget what nobody trained on.
        drawn = getattr(loader, _DRAWN, None)
        if drawn is None:
            return
        if drawn.trained:
            self._count(loader, drawn)
        elif getattr(loader, "_persistent_workers", False):
            drawn.clear()

    def _trained(self) -> None:
        """A backward pass: what was drawn is what is trained on."""
        if not self._waiting:
            return
        evaluates = self._evaluates()
        waiting, self._waiting = self._waiting, []
        for drawn in waiting:
            loader = drawn.loader()
            if loader is None:
                continue  # left before anything was trained on it
            if drawn.trained or evaluates or not drawn.evaluated:
                self._count(loader, drawn)
            else:
                drawn.clear()

    def _count(self, loader: Any, drawn: _Drawn) -> None:
        if drawn.batches:
            self.saw_loader = True
            if not drawn.trained:
                self._of_loader = own.of_loader(loader)
            self.samples += drawn.samples
            self.tokens += drawn.tokens
            drawn.clear()
            drawn.trained = True

    def _watch_backward(self, went_on: Callable[[], None]) -> None:
        backward: Callable[..., None] = torch.Tensor.backward

        def watched(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self._trained()
            if self.first_backward is None:
                self.first_backward = communication.collectives()
            if loss.numel() == 1:
                self.loss = loss.detach() if self._unscaled is None else self._unscaled
                self._unscaled = None
            backward(loss, *args, **kwargs)
            went_on()

        torch.Tensor.backward = watched  # type: ignore[assignment, method-assign]

    def _watch_scalers(self) -> None:
        """fp16: the backward pass begins with the loss times a scale that changes."""
        scale = torch.amp.GradScaler.scale

        def watched(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            if isinstance(outputs, torch.Tensor) and outputs.numel() == 1:
                self._unscaled = outputs.detach()
            return scale(scaler, outputs)

        torch.amp.GradScaler.scale = watched  # type: ignore[method-assign, assignment]
