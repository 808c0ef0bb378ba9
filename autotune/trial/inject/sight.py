"""What a script shows of its training, step by step, though nobody has changed it.

Optimizer steps show in torch's own hooks; samples in what its loaders yield; the loss where the backward
pass begins.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader

FORMATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass
class _Yielded:
    """By an iterator of a loader since it began.

    Attributes:
        backward_passes: that there were before.
        samples: with gradients on.
        tokens: of them.
    """

    backward_passes: int
    samples: int = 0
    tokens: int = 0


class Sight:
    """What was seen so far.

    Attributes:
        samples: that loaders have yielded while gradients were on: what a script evaluates does not
            count, nor what a loader has yielded from beginning to end without a backward pass.
        tokens: of them, where a sample is a row of whole numbers.
        saw_loader: whether any did.
        wait_seconds: spent waiting for loaders since `wait_seconds` was last set.
        loss: the last one that a backward pass began with, on its device; None before there is one.
        model: the last model in DistributedDataParallel; None where there is none.
        own: knob -> the value that the script has by itself, of those that show: the workers of the
            loader that yielded last, the format of autocast around the model.
        leader: the optimizer that stepped first; its steps are those of the training.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.tokens = 0
        self.saw_loader = False
        self.wait_seconds = 0.0
        self.loss: torch.Tensor | None = None
        self.model: nn.Module | None = None
        self.leader: Optimizer | None = None
        self.own: dict[str, Any] = {}
        self._unscaled: torch.Tensor | None = None
        self._backward_passes = 0
        self._yielded: WeakKeyDictionary[Any, _Yielded] = WeakKeyDictionary()

    def watch(
        self, *, went_on: Callable[[], None], before: Callable[[], None], after: Callable[[], None]
    ) -> None:
        """Look at everything that the script does from now on.

        Args:
            went_on: called whenever the script shows that it is alive.
            before: called before every step of the leader.
            after: called after it.
        """
        self._watch_loaders(went_on)
        self._watch_backward(went_on)
        self._watch_scalers()
        self._watch_models()

        def before_step(optimizer: Optimizer, *_: Any) -> None:
            self.leader = self.leader or optimizer
            if optimizer is self.leader:
                before()

        def after_step(optimizer: Optimizer, *_: Any) -> None:
            went_on()
            if optimizer is self.leader:
                after()

        register_optimizer_step_pre_hook(before_step)
        register_optimizer_step_post_hook(after_step)

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
                self.saw_loader = True
                self.own["loader_workers"] = loader._num_workers
                rows, tokens = size(batch)
                self.samples += rows
                self.tokens += tokens
                seen = self._yielded.setdefault(loader, _Yielded(self._backward_passes))
                seen.samples += rows
                seen.tokens += tokens
            went_on()
            return batch

        iterator.__next__ = watched  # type: ignore[method-assign, assignment]

    def _exhausted(self, loader: Any) -> None:
        # Many turn gradients off inside the loop that evaluates, so that its batches come with them on.
        seen = self._yielded.pop(loader, None)
        if seen and seen.backward_passes == self._backward_passes:
            self.samples -= seen.samples
            self.tokens -= seen.tokens

    def _watch_backward(self, went_on: Callable[[], None]) -> None:
        backward: Callable[..., None] = torch.Tensor.backward

        def watched(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self._backward_passes += 1
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

    def _watch_models(self) -> None:
        build = DistributedDataParallel.__init__

        def watched(wrapper: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
            build(wrapper, *args, **kwargs)
            self.model = wrapper
            wrapper.register_forward_pre_hook(self._look_at_format)

        DistributedDataParallel.__init__ = watched  # type: ignore[method-assign, assignment]

    def _look_at_format(self, wrapper: nn.Module, _: Any) -> None:
        if "precision" not in self.own:
            device = next(wrapper.parameters()).device.type
            on = torch.is_autocast_enabled(device)
            told = torch.get_autocast_dtype(device) if on else torch.float32
            self.own["precision"] = FORMATS.get(told, str(told))


def size(batch: Any) -> tuple[int, int]:
    """Samples and tokens of a batch: the rows of its first tensor, and where these are whole numbers
    all of them. A batch without tensors has as many samples as entries."""
    first = next(_tensors(batch), None)
    if first is None:
        return (len(batch), 0) if isinstance(batch, Sized) else (0, 0)
    if not first.dim():
        return 1, 0
    of_tokens = first.dim() == 2 and not (first.is_floating_point() or first.is_complex())
    return first.shape[0], first.numel() if of_tokens else 0


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        yield from _tensors(list(batch.values()))
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from _tensors(part)
