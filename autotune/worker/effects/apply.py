"""All effects of a configuration together, in the order in which they fit each other.

The built-in loop is the first caller. Settings that must precede the model (threads, environment,
allocator) are in effects.process, and a rank applies them first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parallel import DistributedDataParallel

from autotune.worker.effects import (
    feeding,
    kernels,
    parallel,
    precision,
    process,
    schedules,
    updating,
)
from autotune.worker.effects.kernels import ChunkedLoss, SplitProjection, takes_float8
from autotune.worker.effects.parallel import Loss, blocks
from autotune.worker.protocol import Knobs
from autotune.worker.workload import Workload, optimizers_of

ON_FORWARD = (
    *("activation_checkpointing", "channels_last", "compile", "compile_scope"),
    *("loss_chunks", "qkv_streams"),
)
"""Knobs that act on the forward pass of the bare model, which running processes can undo."""
_IN_GRAPH = ("attention", "micro_batch", "precision")
"""Further knobs that a compiled graph is made for."""
ATTENTION = "attention"
"""Seen in a profile only: a model may call it anywhere."""


class Applied:
    """Configuration applied to one training.

    Call once, in this order: `model` or `take_over`, `updates`, `source`, `batches`. Then, for
    every optimizer step, call `step` for its micro-batches, each with its `forward` and `backward`;
    the result of `updates` takes the step.
    """

    def __init__(
        self,
        knobs: Knobs,
        devices: Sequence[torch.device],
        *,
        shorten: schedules.Shorten | None = None,
        tokens_per_sample: int = 0,
    ) -> None:
        """Prepare the configuration.

        Args:
            knobs: a value for every knob.
            devices: of this rank; the first holds the model and takes the batches.
            shorten: as in Workload.
            tokens_per_sample: as in Workload.

        Raises:
            ValueError: a knob shortens samples, and these cannot be shortened.
        """
        self.scaler = precision.gradient_scaler(knobs, devices[0])
        self._knobs = knobs
        self._devices = devices
        self._optimizers: list[torch.optim.Optimizer] = []
        self._layers: schedules.LayerDrop
        self._one_process = knobs["parallelism"] == "data_parallel"
        self._curriculum = schedules.Curriculum(knobs, shorten, tokens_per_sample)

    def model(self, model: nn.Module, loss: Loss) -> nn.Module:
        """Move the bare model to the device, apply the model's knobs, and wrap it for its parallelism.

        Args:
            model: bare, on any device.
            loss: of the training; some configurations compute it inside the model.

        Raises:
            ValueError: a knob acts on something that the model does not have.
        """
        knobs = self._knobs
        self._tf32 = precision.float32_matmul(knobs)
        precision.weights(knobs, model)
        kernels.cudnn_benchmark(knobs)
        kernels.flash_attention(knobs)
        self._bare = kernels.BareModel(kernels.converted_to_float8(knobs, model))
        model = self._acted_on(self._bare.model)
        if self._one_process:
            self._model = parallel.replicated(knobs, model, loss, self._devices)
        else:
            self._model = parallel.wrapped(knobs, model, self._devices[0])
        return self._model

    def take_over(self, before: "Applied") -> nn.Module:
        """Return the model as an earlier configuration has wrapped it.

        This one differs from it only in knobs that can be undone (search_spaces.constraints). The
        earlier one must not be used any more.
        """
        before._tf32.undo()
        self._tf32 = precision.float32_matmul(self._knobs)
        self._bare, self._layers, self._model = before._bare, before._layers, before._model
        if not self._leaves_model_of(before):
            self._act_anew(before)
        if self._knobs["optimizer_kernels"] == before._knobs["optimizer_kernels"]:
            self._optimizers = before._optimizers
        else:
            for optimizer in before._optimizers:
                optimizer.state.clear()  # also where other references to it remain
        return self._model

    def _acted_on(self, model: nn.Module) -> nn.Module:
        """Apply the knobs that act on the forward pass of a bare model."""
        knobs = self._knobs
        kernels.qkv_streams(knobs, model)
        kernels.loss_chunks(knobs, model)
        kernels.checkpoint_activations(knobs, model)
        self._layers = schedules.LayerDrop(knobs, model)
        kernels.channels_last(knobs, model)
        return kernels.compiled(knobs, model)

    def _leaves_model_of(self, before: "Applied") -> bool:
        """Return whether the model can stay as it is, compiled code included."""
        compiles = self._knobs["compile"] != "none"
        names = ON_FORWARD + (_IN_GRAPH if compiles else ())
        return all(self._knobs[name] == before._knobs[name] for name in names)

    def _act_anew(self, before: "Applied") -> None:
        """Undo what the earlier configuration did to the model, and apply this one.

        The compiler forgets everything, as in a new process: it would compile another micro-batch
        for a size that may change.
        """
        if before._knobs["compile"] != "none":
            torch.compiler.reset()
        model = self._acted_on(self._bare.restored())
        if isinstance(self._model, DistributedDataParallel):
            self._model.module = model
        else:
            self._model = model
        for optimizer in before._optimizers:
            kernels.lay_out_state(optimizer)

    def loss(self, loss: Loss) -> Loss:
        """Return a function that computes the loss of a batch with the wrapped model."""
        return parallel.replica_loss(self._knobs, loss) if self._one_process else loss

    def updates(self, workload: Workload) -> updating.Updates:
        """Return the updates of the wrapped model's weights, as the workload defines them.

        Raises:
            ValueError: a knob acts on something that the workload does not have.
            TypeError: it has made something else than optimizers.
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
        kernels.scale_after_updates(self._knobs, optimizer, self._model)
        return optimizer

    def source(
        self, workload: Workload, *, rank: int, world_size: int, seed: int, replicas: int
    ) -> Iterator[Any]:
        """Return batches of one rank without end: see feeding.source."""
        return feeding.source(
            workload, self._knobs, rank=rank, world_size=world_size, seed=seed, replicas=replicas
        )

    def batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Move the loader's batches to the device, and cut them as the model takes them."""
        return map(self._curriculum.cut, feeding.on_device(batches, self._knobs, self._devices[0]))

    def step(self, number: int) -> Iterator[AbstractContextManager[None]]:
        """Yield the micro-batches of a step: a context for each one's forward and backward pass.

        Args:
            number: of the step, from 0.
        """
        process.garbage_collection(self._knobs, number)
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
        """Return a context for the forward pass and the loss."""
        return precision.autocast(self._knobs, self._devices[0])

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of a micro-batch, with its share of the step."""
        self.scaler.scale(loss / self._knobs["accumulation_steps"]).backward()

    @property
    def part(self) -> float:
        """Return the share of a full sample's tokens that a sample of this step has."""
        return self._curriculum.part

    @property
    def fewest_steps(self) -> int:
        """Return the fewest steps of a block that stands for the whole training."""
        return schedules.fewest_steps(self._knobs)

    @property
    def inspectable(self) -> bool:
        """Return whether operators may be inspected one by one.

        Inspection would stop torch.compile from compiling, for good, and does not see the operators
        in the threads of several devices.
        """
        return bool(self._knobs["compile"] == "none" and len(self._devices) == 1)


def _module_of(kind: type) -> Callable[[nn.Module], bool]:
    return lambda model: _any_module(model, lambda module: isinstance(module, kind))


def _any_module(model: nn.Module, wanted: Callable[[nn.Module], bool]) -> bool:
    return any(map(wanted, model.modules()))


_OF_MODEL: Mapping[str, Callable[[nn.Module], bool]] = {
    "blocks": lambda model: bool(blocks(model)),
    "buffers": lambda model: next(model.buffers(), None) is not None,
    "chunked loss": _module_of(ChunkedLoss),
    "convolutions": _module_of(_ConvNd),
    "float8 layers": lambda model: _any_module(model, takes_float8),
    "image convolutions": kernels.has_image_convolutions,
    "split projections": _module_of(SplitProjection),
}


def _in_model(there: Callable[[nn.Module], bool]) -> Callable[[Workload], bool]:
    return lambda workload: there(workload.model)


TARGETS: Mapping[str, Callable[[Workload], bool]] = {
    **{target: _in_model(there) for target, there in _OF_MODEL.items()},
    "dataset": lambda workload: workload.batches is None,
    "optimizer": lambda workload: workload.optimizer is not None,
    "shortened samples": lambda workload: bool(workload.shorten and workload.tokens_per_sample),
}
"""Target of a knob, as its entry in the catalogue names it -> tells whether a workload has it."""


def lacking(workload: Workload) -> list[str]:
    """Return the targets that a workload has not."""
    return [target for target, there in TARGETS.items() if not there(workload)]


def targets_in(root: nn.Module) -> list[str]:
    """Return the targets that a root of a script has, of those that lie in a model.

    It stays the module that it is: of its layers only those below it can be replaced.
    """
    of_root = {**_OF_MODEL, "float8 layers": kernels.has_float8_layers}
    return [target for target, there in of_root.items() if there(root)]
