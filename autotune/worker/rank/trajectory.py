"""Short loss trajectory, step by step: what two configurations compute, not how fast.

Besides the loss, each step reports the norm of the gradient that the optimizer sees, and whether
the replicas of the model are still alike: a wrong loss scale hides behind Adam, and a gradient that
is not exchanged hides behind a loss that falls all the same. The first steps are taken without
dropout, and report sketches of their gradients and of how far they have moved the weights.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from autotune.worker.gradients import whole
from autotune.worker.protocol import BlockReport, Observed, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.norms import Norms
from autotune.worker.rank.rendezvous import RankFigures
from autotune.worker.rank.training import Training


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


class _RankStep(NamedTuple):
    figures: RankFigures
    gradient_norm: float
    replica: ReplicaSums


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


@contextmanager
def _counting_flops(*, only: bool) -> Iterator[Any]:
    if not only:
        yield None
        return
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        yield counter
