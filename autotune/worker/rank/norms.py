"""Norms of the gradients that optimizers see, and sketches of the first ones."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.worker.effects.compression import averaged_gradients
from autotune.worker.effects.precision import is_skipped
from autotune.worker.gradients import parameters_of, whole
from autotune.worker.inject.script_probe import ScriptProbe
from autotune.worker.protocol import STEPS_WITHOUT_DROPOUT, Observed
from autotune.worker.rank.loop import TrainingLoop
from autotune.worker.rank.model_draws import ON_DEVICE, ModelDraws
from autotune.worker.rank.quiet import without_dropout
from autotune.worker.rank.sketch import Sketched, Sketcher

_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module")
"""Names that wrappers put into those of parameters."""


class Norms(Protocol):
    """Source of the norm of the gradient that the optimizers see."""

    def clear(self) -> None:
        """Begin a step."""

    def of_step(self) -> float:
        """Return the norm of the step that is over; NaN where there was no update."""

    def observing(self, index: int) -> AbstractContextManager[Observed]:
        """Return a context around step `index` that yields further observations of it."""


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
        self._sketcher = Sketcher((_plain(name), p.numel()) for name, p in named)
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
        self._squares.append(_square(optimizer))
        if self._sketches:
            _sketch(self._sketcher, self._places, parameters_of(optimizer), _scale(optimizer))

    def _observe_own(self) -> None:
        self._squares.append(_sum_of_squares(_own(self._loop)))
        if self._sketches:
            _sketch(self._sketcher, self._places, self._places)


class LeaderNorms:
    """Norm of the gradient that the first optimizer sees, clipped if the script clips it."""

    def __init__(self, probe: ScriptProbe, rows: Callable[[], str]) -> None:
        """Prepare for the first step.

        Args:
            rows: returns a digest of the rows of the first step; empty if they are not known.
        """
        self._probe = probe
        self._rows = rows
        self._square = math.nan
        self._places: dict[nn.Parameter, int] = {}
        self._sketcher = Sketcher(())
        self._weights: list[list[Any]] = []
        self._seen = Observed()
        self.draws = ModelDraws()
        """Random numbers that the model draws in the first step."""

    def clear(self) -> None:
        """Begin a step."""
        self._square = math.nan

    def observe(self) -> None:
        """Take in the gradients, just before a step."""
        assert self._probe.leader is not None
        self._square = _square(self._probe.leader)
        if not self._places:
            self._observe_first(self._probe.leader)

    def first_taken(self) -> None:
        """Take in what the first step began with. Every rank must call it."""
        rows = self._rows()
        if rows and not self.draws.on_device:
            # The gradient is that of later rows where a GradScaler has left steps out (inf, fp16).
            began = [rows, self._weights, self._probe.steps_left_out]
            began += [self.draws.left] if self.draws.left else []
            start = hashlib.blake2b(json.dumps(began).encode(), digest_size=8)
            self._seen["start"] = start.hexdigest()
        else:
            self._seen = Observed(not_compared=ON_DEVICE if rows else self._why_no_rows())

    def _why_no_rows(self) -> str:
        batch = self._probe.rows.unread if self._probe.rows else ""
        if not batch:
            return "no sample of its first step was seen to come from a DataLoader"
        return (
            f"the samples of its first step cannot be read from a {batch} (have the DataLoader yield "
            "tensors, or lists, tuples or dicts of them)"
        )

    def of_step(self) -> float:
        """Return the norm of the step that is over."""
        return math.sqrt(self._square)

    def observing(self, index: int) -> AbstractContextManager[Observed]:
        """Return a context around step `index`; for the first, it yields what was seen before."""
        return nullcontext(self._seen if not index else Observed())

    def _observe_first(self, leader: Optimizer) -> None:
        names = _parameter_names(self._probe)
        self._places = {one: place for place, one in enumerate(parameters_of(leader))}
        self._sketcher = Sketcher(
            (names.get(parameter, f"parameter {place}"), parameter.numel())
            for parameter, place in self._places.items()
        )
        weights = self._sketcher.of(whole(parameter.detach()) for parameter in self._places)
        self._weights = [one.as_row() for one in weights]
        _sketch(self._sketcher, self._places, self._places, _scale(leader))
        self._seen["gradient"] = [one.as_row() for one in self._sketcher.done()]


def _parameter_names(probe: ScriptProbe) -> dict[nn.Parameter, str]:
    """Return the names of parameters of a model under DistributedDataParallel."""
    inner = probe.built.inner
    named = inner.named_parameters() if inner is not None else ()
    return {parameter: _plain(name) for name, parameter in named}


def _plain(name: str) -> str:
    """Return the name of a parameter without those of wrappers."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _square(optimizer: Optimizer) -> float:
    """Return the square of the gradient's norm before an update; NaN where it will be skipped."""
    if is_skipped(optimizer):
        return math.nan
    return _sum_of_squares(averaged_gradients(optimizer)) / _scale(optimizer) ** 2


def _scale(optimizer: Optimizer) -> float:
    """Return the scale of fp16 that a fused update removes by itself; 1 where there is none."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)


def _sketch(
    sketcher: Sketcher,
    places: Mapping[nn.Parameter, int],
    parameters: Iterable[nn.Parameter],
    scale: float = 1.0,
) -> None:
    """Add the gradients of parameters to a sketch.

    Args:
        places: of parameters in the sketch; others are left out.
        scale: of the gradients.
    """
    for parameter in parameters:
        if parameter.grad is not None and parameter in places:
            gradient = whole(parameter.grad.detach())
            sketcher.add(places[parameter], gradient if scale == 1 else gradient.double() / scale)


def _own(loop: TrainingLoop) -> Iterator[Tensor]:
    return (p.grad for p in loop.model.parameters() if p.grad is not None)


def _sum_of_squares(gradients: Iterable[Tensor]) -> float:
    return float(sum(whole(g.detach()).double().square().sum() for g in gradients))
