"""A workload whose blocks are timed twice: by autotune's clock, and by events of the device."""

import json
import time
from pathlib import Path
from typing import Any

import torch

import autotune
from autotune.worker import workload as workloads
from autotune.worker.observers.timing import BlockClock
from autotune.worker.rank import training


class HostEvent:
    """Stands in for an event of the device on the CPU."""

    def record(self) -> None:
        """Now."""
        self.at = time.perf_counter()

    def elapsed_time(self, other: "HostEvent") -> float:
        """Milliseconds until the other."""
        return 1e3 * (other.at - self.at)


def build(*, factory: str, args: dict[str, Any], out: str) -> autotune.Workload:
    """Return the workload; for every block it writes [seconds by events, by the clock] to `out`."""

    class TwoClocks(BlockClock):
        def start(self, *, follows: bool = False) -> None:
            super().start(follows=follows)
            self._ends = [event(self._device), event(self._device)]
            self._ends[0].record()

        def stop(self) -> float:
            self._ends[1].record()
            seconds = super().stop()
            with Path(out).open("a") as file:
                print(
                    json.dumps([self._ends[0].elapsed_time(self._ends[1]) / 1e3, seconds]),
                    file=file,
                )
            return seconds

    training.BlockClock = TwoClocks  # type: ignore[misc]
    return workloads.build(factory, args)


def event(device: torch.device) -> Any:
    """One that can be timed."""
    return torch.cuda.Event(enable_timing=True) if device.type == "cuda" else HostEvent()
