"""A short loss trajectory, step by step: what two configurations compute, not how fast.

Beside the loss, each step reports the norm of the gradient that the optimizer sees, and whether the
replicas of the model are still alike: a wrong loss scale hides behind Adam, and a gradient that is not
exchanged behind a loss that falls all the same.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from autotune.trial.effects.compression import averaged_gradients
from autotune.trial.protocol import BlockReport, Observed, TrialRequest
from autotune.trial.rank.loop import RankContext, TrainingLoop, gather


def run_trajectory(
    loop: TrainingLoop,
    request: TrialRequest,
    context: RankContext,
    report: Callable[[BlockReport], None],
) -> None:
    """Take `request.trajectory` optimizer steps; on rank 0 report each as a block of one step."""
    norms: list[float] = []
    loop.optimizer.register_step_pre_hook(
        lambda optimizer, *_: norms.append(_norm(averaged_gradients(optimizer)))
    )
    for index in range(request.trajectory):
        norms.clear()
        loop.begin_block()
        with _counting_flops(only=index == 0 and loop.inspectable) as flops:
            loop.step()
        seconds = loop.clock.stop()
        loss = float(loop.loss)
        # fp16: the scaler skips a step whose gradients overflow; there is no norm then.
        norm = norms[-1] if norms else math.nan
        weights = [_whole(p.detach()).double() for p in loop.model.parameters()]
        total = float(sum(p.sum() for p in weights))
        size = float(sum(p.abs().sum() for p in weights))
        mine = (seconds, loop.clock.wait_seconds, loss, loop.peak_bytes(), norm)
        ranks = gather((*mine, total, size), context.world_size)
        all_seconds, waits, losses, peaks, all_norms, totals, sizes = zip(*ranks, strict=True)
        if context.rank:
            continue
        observed = Observed(replica_spread=(max(totals) - min(totals)) / max(*sizes, 1e-30))
        if not math.isnan(norm):
            observed["gradient_norm"] = max(all_norms)
        if flops is not None:
            mine_alone = loop.samples_of_block() / context.world_size
            observed["flops_per_sample"] = flops.get_total_flops() / mine_alone
        columns = (all_seconds, waits, losses, peaks)
        report(loop.block(request.trial, index, columns, observed))


def _norm(gradients: Iterable[Tensor]) -> float:
    squares = [_whole(g.detach()).double().square().sum() for g in gradients]
    return math.sqrt(float(sum(squares)))


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
