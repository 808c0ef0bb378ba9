"""The training loop in this process, alone in a gloo group: DistributedDataParallel does all that
it does among many, and its communication hook shows what would travel."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autotune
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.loop import TrainingLoop
from tests.support.trials import knobs, of_one_rank

CPU = torch.device("cpu")
MIB = 2**20
LAYERS, WIDTH = 8, 256
LAYER_BYTES = 4 * (WIDTH**2 + WIDTH)


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def settings_of_torch() -> Iterator[None]:
    precision, tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.manual_seed(0)
    yield
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = tf32


def stack() -> nn.Module:
    """2 MiB of parameters in eight equal layers."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def regression(
    model: nn.Module | None = None, *, samples: int = 64, width: int = WIDTH, rate: float = 0.1
) -> autotune.Workload:
    """Plain least squares with plain SGD, on data that do not depend on anything."""
    model = model or stack()
    generator = torch.Generator().manual_seed(1)
    data = [
        (torch.randn(width, generator=generator), torch.randn(width, generator=generator))
        for _ in range(samples)
    ]
    return autotune.Workload(
        model=model,
        dataset=data,
        loss=lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
    )


def training(workload: autotune.Workload, **changes: Any) -> TrainingLoop:
    request = of_one_rank(knobs(**changes))
    return TrainingLoop(workload, request, RankContext(0, 0, 1, (CPU,)), lambda: None)


@dataclasses.dataclass
class Traffic:
    """What DistributedDataParallel sends, seen from its communication hook."""

    sizes: list[int] = dataclasses.field(default_factory=list)
    storages: set[int] = dataclasses.field(default_factory=set)

    def watch(self, model: DistributedDataParallel) -> "Traffic":
        model.register_comm_hook(None, self._hook)
        return self

    def _hook(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        self.sizes.append(buffer.numel() * buffer.element_size())
        self.storages.add(buffer.untyped_storage().data_ptr())
        sent: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        sent.set_result(buffer)
        return sent

    def of(self, loop: TrainingLoop, steps: int = 1) -> list[int]:
        """Bytes of each bucket that so many steps send."""
        self.sizes.clear()
        for _ in range(steps):
            loop.step()
        return list(self.sizes)


def settled(loop: TrainingLoop) -> Traffic:
    """The traffic once the buckets have been rebuilt in the order in which gradients come."""
    traffic = Traffic().watch(loop.model)
    loop.step()
    loop.step()
    return traffic
