"""Events that make a step slow once: compilation, and retries of the allocator."""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch


class Settling(NamedTuple):
    """Counters since the process began."""

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
