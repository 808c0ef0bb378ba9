"""Short loss trajectory, step by step: what two configurations compute, not how fast.

Besides the loss, each step reports the norm of the gradient that the optimizer sees, and whether
the replicas of the model are still alike: a wrong loss scale hides behind Adam, and a gradient that
is not exchanged hides behind a loss that falls all the same. The first steps are taken without
dropout, and report sketches of their gradients and of how far they have moved the weights.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer

from autotune.worker.effects.compression import averaged_gradients
from autotune.worker.effects.precision import is_skipped
from autotune.worker.patches import wrapping
from autotune.worker.protocol import STEPS_WITHOUT_DROPOUT, BlockReport, Observed, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.loop import TrainingLoop
from autotune.worker.rank.model_draws import ON_DEVICE, ModelDraws
from autotune.worker.rank.rendezvous import RankFigures
from autotune.worker.rank.sketch import Sketched, Sketcher
from autotune.worker.rank.training import Training

_NO_RATE = ("keep", "scale", "temp")
"""Parts of names of numbers that are no rate of what is dropped."""
_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module")
"""Names that wrappers put into those of parameters."""


class ReplicaSums(NamedTuple):
    """Two sums that are equal for equal replicas of a model."""

    weights: float
    """Sum of all parameters."""
    size: float
    """Sum of their magnitudes."""


def sums_of(parameters: Iterable[Tensor]) -> ReplicaSums:
    """Return the sums of one replica; sharded parameters are gathered."""
    weights = size = 0.0
    for parameter in parameters:
        values = whole(parameter.detach()).double()
        weights += float(values.sum())
        size += float(values.abs().sum())
    return ReplicaSums(weights, size)


def spread(replicas: Sequence[ReplicaSums]) -> float:
    """Return how far the replicas lie apart, relative to their size."""
    totals = [one.weights for one in replicas]
    return (max(totals) - min(totals)) / max(*(one.size for one in replicas), 1e-30)


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor, gathered if it is sharded over the ranks."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Switch dropout off meanwhile, and nothing else: normalisation goes on training.

    A module that holds a dropout rate itself has none meanwhile, as attention passes its rate on. It
    goes on training: others ask it whether to recompute activations, and cuDNN whether a backward
    pass follows.
    """
    quiet = _silenced(model)
    try:
        yield
    finally:
        _resume(quiet)


@contextmanager
def without_dropout_anywhere() -> Iterator[None]:
    """Switch dropout off meanwhile in every model that is run: a script builds its own."""
    quiet: list[_Silenced] = []

    def silence(module: nn.Module, _: Any) -> None:
        # The outermost module comes first, before anything in it is compiled.
        if not torch.compiler.is_compiling():
            quiet.extend(_silenced(module))

    hook = register_module_forward_pre_hook(silence)
    try:
        yield
    finally:
        hook.remove()
        _resume(quiet)


@contextmanager
def plain_autocast(device_type: str) -> Iterator[None]:
    """Run forward and loss under torch.autocast in bf16, and backward passes outside of it.

    It acts on whatever model is run, and shares no code with the knob `precision`.
    """
    learning, backwards = ExitStack(), False

    def begin(*_: Any) -> None:
        # The outermost module comes first; activations may be computed anew in a backward pass.
        if not (torch.is_autocast_enabled(device_type) or backwards) and torch.is_grad_enabled():
            learning.enter_context(torch.autocast(device_type, dtype=torch.bfloat16))

    # It stays, and does nothing afterwards: others may have changed the function meanwhile.
    @wrapping(torch.Tensor, "backward")
    def outside(backward: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal backwards
        learning.close()
        backwards = True
        try:
            backward(*args, **kwargs)
        finally:
            backwards = False

    hook = register_module_forward_pre_hook(begin)
    try:
        yield
    finally:
        hook.remove()
        learning.close()


class _Silenced(NamedTuple):
    """Attribute of a module by which it dropped something."""

    module: nn.Module
    name: str
    value: Any


def _silenced(model: nn.Module) -> list[_Silenced]:
    found = [
        _Silenced(module, name, value)
        for module in model.modules()
        if module.training
        for name, value in _dropping(module).items()
    ]
    for module, name, value in found:
        setattr(module, name, type(value)(0))
    return found


def _resume(silenced: Iterable[_Silenced]) -> None:
    for module, name, value in silenced:
        setattr(module, name, value)


def _dropping(module: nn.Module) -> dict[str, Any]:
    """Return the attributes by which a module drops something, and what they are.

    A module with another number for it, such as the share that is kept, does not train meanwhile.
    """
    several = {
        name: value
        for name, value in vars(module).items()
        if "drop" in name and isinstance(value, float) and value > 0
    }
    other = any(word in name for name in several for word in _NO_RATE)
    return {"training": True} if other or isinstance(module, _DropoutNd) else several


class _RankStep(NamedTuple):
    figures: RankFigures
    gradient_norm: float
    replica: ReplicaSums


class Norms(Protocol):
    """Source of the norm of the gradient that the optimizers see."""

    def clear(self) -> None:
        """Begin a step."""

    def of_step(self) -> float:
        """Return the norm of the step that is over; NaN where there was no update."""

    def observing(self, index: int) -> AbstractContextManager[Observed]:
        """Return a context around step `index` that yields further observations of it."""


def run_trajectory(
    training: Training,
    norms: Norms,
    request: TrialRequest,
    context: RankContext,
    report: Callable[[BlockReport], None],
) -> Iterator[None]:
    """Run `request.trajectory` optimizer steps of a training that takes one whenever this yields.

    Rank 0 reports each as a block of one step.
    """
    for index in range(request.trajectory):
        norms.clear()
        training.begin_block()
        training.ends_with_next()
        inspects = index == 0 and training.inspectable
        with norms.observing(index) as seen, _counting_flops(only=inspects) as flops:
            yield
        mine = _rank_step(training, norms.of_step())
        ranks: list[_RankStep] = training.gather(mine)
        if context.rank:
            continue
        observed = Observed(**seen, replica_spread=spread([rank.replica for rank in ranks]))
        if not math.isnan(mine.gradient_norm):
            observed["gradient_norm"] = max(rank.gradient_norm for rank in ranks)
        if flops is not None:
            mine_alone = training.samples_of_block() / context.world_size
            observed["flops_per_sample"] = flops.get_total_flops() / mine_alone
        report(training.block(request.trial, index, [rank.figures for rank in ranks], observed))


def _rank_step(training: Training, gradient_norm: float) -> _RankStep:
    figures = training.end_block()
    return _RankStep(figures, gradient_norm, sums_of(training.parameters()))


class UpdateNorms:
    """Norm of the gradients of all parameters together, before they are clipped.

    In the first steps it also sketches the gradients.
    """

    def __init__(self, loop: TrainingLoop) -> None:
        """Register hooks for every update of a training."""
        self._loop = loop
        self._updates = loop.updates
        self._squares: list[float] = []
        named = list(loop.model.named_parameters())
        self._places = {parameter: place for place, (_, parameter) in enumerate(named)}
        self._sketcher = Sketcher((plain(name), p.numel()) for name, p in named)
        self._sketches = False
        for optimizer in loop.updates.optimizers:
            optimizer.register_step_pre_hook(lambda one, *_: self._observe(one))
        loop.updates.before_own = self._observe_own

    def clear(self) -> None:
        """Begin a step."""
        self._squares.clear()

    def of_step(self) -> float:
        """Return the norm of the step; NaN where fp16 skips an update whose gradients overflow."""
        if not self._squares or math.isnan(sum(self._squares)):
            return math.nan
        before = self._updates.norm_before_clipping
        return math.sqrt(sum(self._squares)) if before is None else float(before)

    @contextmanager
    def observing(self, index: int) -> Iterator[Observed]:
        """Sketch a step if it is one of the first, and run it without dropout.

        The gradient of a model that draws random numbers on a CUDA device all the same is not told.
        """
        seen = Observed()
        if index >= STEPS_WITHOUT_DROPOUT:
            yield seen
            return
        if not index:
            self._loop.settle_scale()
        self._sketches, draws = True, ModelDraws()
        with without_dropout(self._loop.model), draws.watched():
            yield seen
        self._sketches = False
        gradient = [one.as_row() for one in self._unclipped(self._sketcher.done())]
        if draws.on_device:
            seen["not_compared"] = ON_DEVICE
        else:
            seen["gradient"] = gradient
        if draws.left:
            seen["start"] = draws.left

    def _unclipped(self, gradients: Sequence[Sketched]) -> Iterator[Sketched]:
        """Return the gradients as they were before they were clipped."""
        before = self._updates.norm_before_clipping
        clipped = math.sqrt(sum(one.norm**2 for one in gradients))
        factor = 1.0 if before is None or not clipped else float(before) / clipped
        return (one.scaled(factor) for one in gradients)

    def _observe(self, optimizer: Optimizer) -> None:
        self._squares.append(square(optimizer))
        if self._sketches:
            # fp16: a fused update removes the scale by itself.
            scale = getattr(optimizer, "grad_scale", None)
            self._sketch_gradients(
                (p for group in optimizer.param_groups for p in group["params"]),
                1.0 if scale is None else 1 / float(scale),
            )

    def _observe_own(self) -> None:
        self._squares.append(_sum_of_squares(_own(self._loop)))
        if self._sketches:
            self._sketch_gradients(self._places, 1.0)

    def _sketch_gradients(self, parameters: Iterable[nn.Parameter], factor: float) -> None:
        for parameter in parameters:
            if parameter.grad is not None and parameter in self._places:
                gradient = whole(parameter.grad.detach())
                scaled = gradient if factor == 1 else gradient.double() * factor
                self._sketcher.add(self._places[parameter], scaled)


def plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def square(optimizer: Optimizer) -> float:
    """Return the square of the gradient's norm before an update; NaN where it will be skipped."""
    if is_skipped(optimizer):
        return math.nan
    found = _sum_of_squares(averaged_gradients(optimizer))
    scale = getattr(optimizer, "grad_scale", None)  # fp16: a fused update removes it by itself
    return found if scale is None else found / float(scale) ** 2


def _own(loop: TrainingLoop) -> Iterator[Tensor]:
    return (p.grad for p in loop.model.parameters() if p.grad is not None)


def _sum_of_squares(gradients: Iterable[Tensor]) -> float:
    return float(sum(whole(g.detach()).double().square().sum() for g in gradients))


@contextmanager
def _counting_flops(*, only: bool) -> Iterator[Any]:
    if not only:
        yield None
        return
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        yield counter
