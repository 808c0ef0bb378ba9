"""Observations of a block besides its time: made on each rank, then combined over the ranks."""

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import nn

from autotune.worker.observers import communication, device, reserve
from autotune.worker.observers.contention import NodeLoad, NodeShares
from autotune.worker.observers.device import DeviceState, DeviceWatch
from autotune.worker.observers.energy import ProcessorWatch
from autotune.worker.observers.timing import StepMarks, StepTimes
from autotune.worker.protocol import Observed


class Settling(NamedTuple):
    """Counters, since the process began, of events that make a step slow once."""

    compilations: int
    compile_seconds: float
    alloc_retries: int

    def since(self, before: "Settling") -> "Settling":
        """Return the differences to an earlier reading."""
        return Settling(
            self.compilations - before.compilations,
            self.compile_seconds - before.compile_seconds,
            self.alloc_retries - before.alloc_retries,
        )


class RankObservation(NamedTuple):
    """Observations of a block by one rank."""

    steps: StepTimes
    exposed_seconds: float
    """NaN where DDP has not timed a step yet, or there is no DDP."""
    node: NodeShares
    settling: Settling
    devices: DeviceState
    ready_batches: float
    """NaN without a loader's workers."""


class BlockObservers:
    """Observers of one rank. All but `marks` measure only between blocks."""

    def __init__(
        self,
        model: nn.Module,
        devices: Sequence[torch.device],
        *,
        node: bool,
        first: bool = True,
        alone: bool = True,
    ) -> None:
        """Attach to a model on these devices.

        Args:
            node: whether this rank also observes its node.
            first: whether no earlier rank shares its device; this one reports the device's energy.
            alone: whether no other trial may be on its device.
        """
        self.marks = StepMarks(devices[0])
        self._model = model
        self._devices = devices
        self._load = NodeLoad() if node else None
        self._settled = read_counters(devices)
        self._watches: list[DeviceWatch | ProcessorWatch] = [
            DeviceWatch(device, first=first, alone=alone)
            if device.type == "cuda"
            else ProcessorWatch(first=node, alone=alone)
            for device in devices[: None if devices[0].type == "cuda" else 1]
        ]

    def resume(self, *, follows: bool = False) -> None:
        """Start counters anew, as time has passed that belongs to no block.

        Args:
            follows: True if an untimed step is still under way, so that the energy is not known.
        """
        for watch in self._watches:
            watch.restart(known=not follows)
        if self._load:
            self._load.shares()

    def start(self, index: int) -> None:
        """Begin block `index`.

        Nothing here may take long on one rank: the others would wait for it in their timed steps.
        """
        communication.sample(self._model, index, self._devices[0])
        self.marks.start()

    def stop(self) -> RankObservation:
        """Return the observations of the block that is over, before the ranks synchronise."""
        load = self._load.shares() if self._load else NodeShares()
        settled = read_counters(self._devices)
        news, self._settled = settled.since(self._settled), settled
        return RankObservation(
            self.marks.percentiles(),
            communication.exposed_seconds(self._model),
            load,
            news,
            device.together([watch.state() for watch in self._watches]),
            reserve.ready_batches(),
        )


def together(ranks: Sequence[RankObservation]) -> Observed:
    """Combine the observations of all ranks of a block."""
    observed = Observed(
        step_p50=max(rank.steps.p50 for rank in ranks),
        step_p95=max(rank.steps.p95 for rank in ranks),
        step_max=max(rank.steps.longest for rank in ranks),
        compilations=int(max(rank.settling.compilations for rank in ranks)),
        compile_seconds=max(rank.settling.compile_seconds for rank in ranks),
        alloc_retries=int(max(rank.settling.alloc_retries for rank in ranks)),
    )
    slowest = max((rank.steps.moments for rank in ranks), key=lambda moments: moments.mean)
    if slowest.steps:
        observed["step_moments"] = list(slowest)
    exposed = [rank.exposed_seconds for rank in ranks]
    if not any(map(math.isnan, exposed)):
        observed["exposed_seconds"] = exposed
    ready = [rank.ready_batches for rank in ranks]
    if not any(map(math.isnan, ready)):
        observed["ready_batches"] = ready
    nodes = [rank.node for rank in ranks if not math.isnan(rank.node.foreign)]
    observed["foreign_cpu"], observed["idle_cpu"] = max(nodes)
    seen = device.together([rank.devices for rank in ranks])
    known = {name: value for name, value in seen._asdict().items() if not math.isnan(value)}
    return cast(Observed, {**observed, **known})


def read_counters(devices: Sequence[torch.device]) -> Settling:
    """Read the counters; retries are summed over the devices."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    graphs, seconds = 0, 0.0
    if dynamo is not None:
        graphs = int(dynamo.counters["stats"]["unique_graphs"])
        seconds = sum(dynamo.compilation_time_metrics.get("_compile.compile_inner", ()))
    on_cuda = (torch.cuda.memory_stats(device) for device in devices if device.type == "cuda")
    retries = sum(int(stats.get("num_alloc_retries", 0)) for stats in on_cuda)
    return Settling(graphs, float(seconds), retries)
