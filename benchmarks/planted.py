"""Shipped workloads with a slow-down of known size planted in them, for benchmarks/fidelity.py."""

import dataclasses
import math
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import default_collate

import autotune
from autotune.worker import workload as workloads
from autotune.worker.observers.block import RankObservation, Settling
from autotune.worker.observers.contention import NodeShares
from autotune.worker.observers.device import DeviceState
from autotune.worker.observers.moments import StepMoments
from autotune.worker.observers.timing import StepTimes
from autotune.worker.rank import training


def build(
    *,
    factory: str,
    args: dict[str, Any],
    slow: str = "",
    idle: float = 0.0,
    observers: bool = True,
) -> autotune.Workload:
    """Return a workload that idles for so long in each step.

    Args:
        factory: `module:function` of the workload.
        args: for it.
        slow: 'all' ranks, one 'rank', or the 'loader' of all ranks.
        idle: seconds of each forward pass, or each batch of the loader.
        observers: off: nothing of a block is observed but its time.
    """
    if not observers:
        training.BlockObservers = Blind  # type: ignore[misc,assignment]
    built = workloads.build(factory, args)
    if slow == "loader":
        collate = built.collate or default_collate

        def slow_collate(samples: list[Any]) -> Any:
            wait(idle)
            return collate(samples)

        return dataclasses.replace(built, collate=slow_collate)

    def slow_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        if slow == "all" or (slow == "rank" and dist.get_rank() == 0):
            wait(idle)
        return built.loss(model, batch)

    return dataclasses.replace(built, loss=slow_loss)


def wait(seconds: float) -> None:
    """On the processor: a sleep is too coarse."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Blind:
    """Stands in for BlockObservers and observes nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.marks = self

    def mark(self) -> None:
        """Take in the end of a step."""

    def resume(self) -> None:
        """Others have had the devices."""

    def start(self, index: int) -> None:
        """Just before a block."""

    def stop(self) -> RankObservation:
        """Just after a block."""
        no_steps, idle = StepTimes(0.0, 0.0, 0.0, StepMoments()), NodeShares(0.0, 1.0)
        return RankObservation(no_steps, math.nan, idle, Settling(0, 0.0, 0), DeviceState())
