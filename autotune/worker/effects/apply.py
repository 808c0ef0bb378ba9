"""All effects of a configuration together, in the order in which they go with each other.

The built-in loop is the first caller. What has to be so before a model is built (threads, environment,
allocator) is not here: effects.process has it, and a rank sees to it first.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from autotune.worker.effects import (
    feeding,
    float8,
    kernels,
    parallel,
    precision,
    process,
    replicas,
    schedules,
    updating,
)
from autotune.worker.effects.replicas import Loss
from autotune.worker.protocol import Knobs
from autotune.worker.workload import Workload, optimizers_of


class Applied:
    """A configuration at work in one training.

    Called once, in this order: `model` or `take_over`, `updates`, `source`, `batches`. Then, for every
    optimizer step, `step` for its micro-batches, each with its `forward` and `backward`, and what
    `updates` gave takes the step.
    """

    def __init__(
        self,
        knobs: Knobs,
        devices: Sequence[torch.device],
        *,
        shorten: schedules.Shorten | None = None,
        tokens_per_sample: int = 0,
    ) -> None:
        """Prepare.

        Args:
            knobs: a value for every knob.
            devices: of this rank; the first holds the model and takes the batches.
            shorten: as in Workload; so is tokens_per_sample.

        Raises:
            ValueError: a knob asks for samples to be shortened, which these cannot be.
        """
        self.scaler = precision.gradient_scaler(knobs, devices[0])
        self._knobs = knobs
        self._devices = devices
        self._optimizers: list[torch.optim.Optimizer] = []
        self._one_process = knobs["parallelism"] == "data_parallel"
        self._curriculum = schedules.Curriculum(knobs, shorten, tokens_per_sample)

    def model(self, model: nn.Module, loss: Loss) -> nn.Module:
        """The bare model, on the device, as the configuration has it and wrapped for its parallelism.

        Args:
            loss: of the training; some configurations compute it inside the model.

        Raises:
            ValueError: a knob acts on something that the model has not.
        """
        knobs = self._knobs
        self._tf32 = precision.float32_matmul(knobs)
        precision.weights(knobs, model)
        kernels.cudnn_benchmark(knobs)
        kernels.flash_attention(knobs)
        model = float8.converted(knobs, model)
        kernels.qkv_streams(knobs, model)
        kernels.loss_chunks(knobs, model)
        kernels.checkpoint_activations(knobs, model)
        self._layers = schedules.LayerDrop(knobs, model)
        kernels.channels_last(knobs, model)
        model = kernels.compiled(knobs, model)
        if self._one_process:
            self._model = replicas.wrapped(knobs, model, loss, self._devices)
        else:
            self._model = parallel.wrapped(knobs, model, self._devices[0])
        return self._model

    def take_over(self, before: "Applied") -> nn.Module:
        """The model as an earlier configuration has wrapped it, from which this one differs in what acts
        on a step alone (search_spaces.residency). The earlier one must not be used any more."""
        before._tf32.undo()
        self._tf32 = precision.float32_matmul(self._knobs)
        self._layers, self._model = before._layers, before._model
        if self._knobs["optimizer_kernels"] == before._knobs["optimizer_kernels"]:
            self._optimizers = before._optimizers
        else:
            for optimizer in before._optimizers:
                optimizer.state.clear()  # also where somebody holds on to it
        return self._model

    def loss(self, loss: Loss) -> Loss:
        """What computes the loss of a batch with the wrapped model."""
        return replicas.loss(self._knobs, loss) if self._one_process else loss

    def updates(self, workload: Workload) -> updating.Updates:
        """Of the weights of the wrapped model, as the workload has them.

        Raises:
            ValueError: a knob acts on something that the workload has not.
            TypeError: what it has made is no optimizer.
        """
        updating.check(self._knobs, workload)
        if workload.optimizer is not None and not self._optimizers:
            plain = optimizers_of(workload.optimizer(self._model.parameters()))
            updating.check_several(self._knobs, plain)
            self._optimizers = [self._optimizer(one) for one in plain]
        return updating.Updates(self._knobs, self._model, self.scaler, self._optimizers, workload)

    def _optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        optimizer = parallel.optimizer(self._knobs, plain, self._model)
        kernels.optimizer_kernels(self._knobs, optimizer)
        float8.scale_after_updates(self._knobs, optimizer, self._model)
        return optimizer

    def source(
        self, workload: Workload, *, rank: int, world_size: int, seed: int, replicas: int
    ) -> Iterator[Any]:
        """Batches of one rank without end: see feeding.source."""
        return feeding.source(
            workload, self._knobs, rank=rank, world_size=world_size, seed=seed, replicas=replicas
        )

    def batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The loader's batches on the device, as the model takes them."""
        return map(self._curriculum.cut, feeding.on_device(batches, self._knobs, self._devices[0]))

    def step(self, number: int) -> Iterator[AbstractContextManager[None]]:
        """One optimizer step: its micro-batches, each a context for its forward and backward pass.

        Args:
            number: of the step, from 0.
        """
        if not number:
            process.garbage_collection(self._knobs)
        self._layers.begin(number)
        self._curriculum.begin(number)
        for left in reversed(range(self._knobs["accumulation_steps"])):
            yield self._micro_batch(last=not left)

    @contextmanager
    def _micro_batch(self, *, last: bool) -> Iterator[None]:
        with (
            parallel.gradient_sync(self._model, last_micro_batch=last),
            kernels.attention(self._knobs),
        ):
            yield

    def forward(self) -> AbstractContextManager[Any]:
        """Around the forward pass and the loss."""
        return precision.autocast(self._knobs, self._devices[0])

    def backward(self, loss: torch.Tensor) -> None:
        """The gradients of a micro-batch, with its share of the step."""
        self.scaler.scale(loss / self._knobs["accumulation_steps"]).backward()

    @property
    def part(self) -> float:
        """Of a full sample that a sample of this step is, in tokens."""
        return self._curriculum.part

    @property
    def fewest_steps(self) -> int:
        """Of a block that is to stand for the whole training."""
        return schedules.fewest_steps(self._knobs)

    @property
    def inspectable(self) -> bool:
        """Whether one may look at operators one by one: it would keep torch.compile from compiling, for
        good, and does not see what the threads of several devices do."""
        return bool(self._knobs["compile"] == "none" and len(self._devices) == 1)
