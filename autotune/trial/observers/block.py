"""All that is observed of a block besides its time: on each rank, then put together over the ranks."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from autotune.trial.observers import communication, device, settling
from autotune.trial.observers.contention import NodeLoad
from autotune.trial.observers.device import DeviceWatch
from autotune.trial.observers.timing import StepMarks
from autotune.trial.protocol import Observed


class BlockObservers:
    """One rank's observers. All but `marks` look only between blocks."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, node: bool) -> None:
        """Attach to a model on these devices; `node`: this rank also watches the node that it is on."""
        self.marks = StepMarks(devices[0])
        self._model = model
        self._devices = devices
        self._load = NodeLoad() if node else None
        self._settled = settling.so_far(devices)
        self._nvidia = [DeviceWatch(device) for device in devices]
        communication.sample(model)

    def start(self) -> None:
        """Just before a block. Nothing here may take long on one rank: the others would wait for it in
        their timed steps."""
        self.marks.start()

    def stop(self) -> tuple[float, ...]:
        """Just after a block, and before the ranks meet: this rank's part for `together`."""
        load = self._load.shares() if self._load else None
        settled = settling.so_far(self._devices)
        news, self._settled = settled.since(self._settled), settled
        return (
            *self.marks.percentiles(),
            communication.exposed_seconds(self._model),
            load.foreign if load else math.nan,
            load.idle if load else math.nan,
            news.compilations,
            news.compile_seconds,
            news.alloc_retries,
            *device.together([watch.state() for watch in self._nvidia]),
        )


def together(columns: Sequence[Sequence[float]]) -> Observed:
    """What the ranks saw of a block, from the columns of their `BlockObservers.stop`."""
    p50, p95, longest, exposed, foreign, idle, compilations, compiling, retries, *states = columns
    observed = Observed(
        step_p50=max(p50),
        step_p95=max(p95),
        step_max=max(longest),
        compilations=int(max(compilations)),
        compile_seconds=max(compiling),
        alloc_retries=int(max(retries)),
    )
    if not any(map(math.isnan, exposed)):
        observed["exposed_seconds"] = list(exposed)
    nodes = [(f, i) for f, i in zip(foreign, idle, strict=True) if not math.isnan(f)]
    observed["foreign_cpu"], observed["idle_cpu"] = max(nodes)
    seen = device.together([device.DeviceState(*rank) for rank in zip(*states, strict=True)])
    known = {name: value for name, value in seen._asdict().items() if not math.isnan(value)}
    return cast(Observed, {**observed, **known})
