"""A short loss trajectory, step by step: what two configurations compute, not how fast.

Beside the loss, each step reports the norm of the gradient that the optimizer sees, and whether the
replicas of the model are still alike: a wrong loss scale hides behind Adam, and a gradient that is not
exchanged behind a loss that falls all the same.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torch.optim import Optimizer

from autotune.trial.effects.compression import averaged_gradients
from autotune.trial.protocol import BlockReport, Observed, TrialRequest
from autotune.trial.rank.context import RankContext
from autotune.trial.rank.gathering import RankFigures
from autotune.trial.rank.loop import TrainingLoop
from autotune.trial.rank.training import Training


class _RankStep(NamedTuple):
    figures: RankFigures
    gradient_norm: float
    weights: float
    """Sum of all parameters."""
    size: float
    """Sum of their magnitudes."""


class Norms(Protocol):
    """The norm of the gradient that the optimizers see."""

    def clear(self) -> None:
        """Begin a step."""

    def of_step(self) -> float:
        """Of the step that is over; NaN where there was none."""


def run_trajectory(
    training: Training,
    norms: Norms,
    request: TrialRequest,
    context: RankContext,
    report: Callable[[BlockReport], None],
) -> Iterator[None]:
    """`request.trajectory` optimizer steps of a training that takes one whenever this yields; on rank 0
    report each as a block of one step."""
    for index in range(request.trajectory):
        norms.clear()
        training.begin_block()
        training.ends_with_next()
        with _counting_flops(only=index == 0 and training.inspectable) as flops:
            yield
        mine = _rank_step(training, norms.of_step())
        ranks: list[_RankStep] = training.gather(mine)
        if context.rank:
            continue
        observed = Observed(replica_spread=_spread(ranks))
        if not math.isnan(mine.gradient_norm):
            observed["gradient_norm"] = max(rank.gradient_norm for rank in ranks)
        if flops is not None:
            mine_alone = training.samples_of_block() / context.world_size
            observed["flops_per_sample"] = flops.get_total_flops() / mine_alone
        report(training.block(request.trial, index, [rank.figures for rank in ranks], observed))


def _rank_step(training: Training, gradient_norm: float) -> _RankStep:
    figures = training.end_block()
    weights = [_whole(p.detach()).double() for p in training.parameters()]
    return _RankStep(
        figures,
        gradient_norm=gradient_norm,
        weights=float(sum(p.sum() for p in weights)),
        size=float(sum(p.abs().sum() for p in weights)),
    )


def _spread(ranks: Sequence[_RankStep]) -> float:
    """How far the replicas of the model lie apart, relative to their size."""
    totals = [rank.weights for rank in ranks]
    return (max(totals) - min(totals)) / max(*(rank.size for rank in ranks), 1e-30)


class UpdateNorms:
    """Of the gradients of all parameters together, before they are clipped."""

    def __init__(self, loop: TrainingLoop) -> None:
        """Look at every update of a training."""
        self._updates = loop.updates
        self._squares: list[float] = []
        for optimizer in loop.updates.optimizers:
            optimizer.register_step_pre_hook(lambda one, *_: self._squares.append(square(one)))
        loop.updates.before_own = lambda: self._squares.append(_sum_of_squares(_own(loop)))

    def clear(self) -> None:
        """Begin a step."""
        self._squares.clear()

    def of_step(self) -> float:
        """The norm. fp16: the scaler skips an update whose gradients overflow; NaN then."""
        if not self._squares or math.isnan(sum(self._squares)):
            return math.nan
        before = self._updates.norm_before_clipping
        return math.sqrt(sum(self._squares)) if before is None else float(before)


def square(optimizer: Optimizer) -> float:
    """Of the norm of the gradient that the update is about to see; NaN where it will be skipped."""
    # fp16: a fused update takes the scale off by itself, and skips itself where gradients overflow.
    scale, overflow = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
    if overflow is not None and float(overflow):
        return math.nan
    found = _sum_of_squares(averaged_gradients(optimizer))
    return found if scale is None else found / float(scale) ** 2


def _own(loop: TrainingLoop) -> Iterator[Tensor]:
    return (p.grad for p in loop.model.parameters() if p.grad is not None)


def _sum_of_squares(gradients: Iterable[Tensor]) -> float:
    return float(sum(_whole(g.detach()).double().square().sum() for g in gradients))


def _whole(tensor: Tensor) -> Tensor:
    """The tensor, put together if the ranks hold parts of it."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


@contextmanager
def _counting_flops(*, only: bool) -> Iterator[Any]:
    if not only:
        yield None
        return
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        yield counter
