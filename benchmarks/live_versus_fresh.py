"""Is a configuration as fast in processes that have trained another one as in its own?

    python benchmarks/live_versus_fresh.py [--json] [--cycles N] [--profiled]

Per value of a knob that acts on a step: processes that were launched with the defaults and took it over,
processes that were launched with it, and others launched with it (A/A), all resident at once. They
train short blocks in turn, forth and back, each of them as often in the middle. Each figure is the ratio
of the throughput to that of the second, with its 95 % interval over the cycles; a live one that agrees
has 1 in it as often as the A/A has. The same of processes in which the defaults were profiled, as those
that the first trial of a study takes over.
"""

import argparse
import itertools
import json
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from autotune.measurement.cycles import abba_order
from autotune.measurement.estimate import Ratio, paired_ratio
from autotune.runs.one_off import Shape, as_timed
from autotune.runs.request_shapes import profiled
from autotune.worker.protocol import BlockPlan, BlockReport, TrialReport, TrialRequest
from launchers.agents import Node
from launchers.local import LocalLink
from launchers.slot import AgentSlot
from search_spaces import CATALOGUE, defaults
from search_spaces.knob import STEP

WORKERS = 2
WARM_UP = 6
"""Blocks of each before they take turns."""
BLOCKS = BlockPlan(seconds=0.15, min_steps=2, max_blocks=1_000_000)
GPT = ("autotune.workloads.gpt:build", {"layers": 2, "d_model": 64, "heads": 2, "length": 32})
IMAGES = ("autotune.workloads.images:build", {"size": 48, "width": 8})
USUAL = {"micro_batch": 16, "log_interval": 10}
LIVE, FRESH, AGAIN = range(3)
CASES: list[tuple[dict[str, Any], dict[str, Any], tuple[str, dict[str, Any]]]] = [
    ({"micro_batch": 8}, {}, GPT),
    ({"accumulation_steps": 4}, {}, GPT),
    ({"precision": "bf16"}, {}, GPT),
    ({"precision": "fp16"}, {}, GPT),
    ({"optimizer_kernels": "foreach"}, {}, GPT),
    ({"optimizer_kernels": "fused"}, {}, GPT),
    ({"set_to_none": False}, {}, GPT),
    ({"attention": "unfused"}, {}, GPT),
    ({"log_interval": 1}, {}, GPT),
    ({"num_workers": 1}, {}, IMAGES),
    ({"persistent_workers": True}, {"num_workers": 1}, IMAGES),
    ({"prefetch_factor": 4}, {"num_workers": 1}, IMAGES),
]
ON_CUDA: list[tuple[dict[str, Any], dict[str, Any], tuple[str, dict[str, Any]]]] = [
    ({"precision": "tf32"}, {}, GPT),
    ({"attention": "efficient"}, {"precision": "bf16"}, GPT),
    ({"pin_memory": True}, {}, IMAGES),
    ({"stream_prefetch": True}, {"pin_memory": True}, IMAGES),
]
LOOKED_AT = [({}, {}, GPT), ({}, {}, IMAGES)]


class Baton:
    """Order of the members that train: forth and back, from the moment that all have warmed up."""

    def __init__(self, members: int, cycles: int) -> None:
        # A member in the middle always follows another, so each is there in turn.
        self._order = [
            member
            for cycle in range(cycles)
            for member in abba_order([(n + cycle) % members for n in range(members)])
        ]
        self._warm = [0] * members
        self._changed = threading.Condition()
        self.rates: list[list[float]] = [[] for _ in range(members)]

    def take(self, member: int, block: BlockReport) -> bool:
        """Take in a block; wait for the turn of the next one. True: it was the last."""
        with self._changed:
            if self._warm[member] < WARM_UP:
                self._warm[member] += 1
            else:
                self.rates[member].append(block.samples / block.seconds)
                self._order.pop(0)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_next(member))
            return not self._order

    def leave(self) -> None:
        """One is over, or has failed: so are all."""
        with self._changed:
            self._order.clear()
            self._changed.notify_all()

    def _is_next(self, member: int) -> bool:
        if not self._order:
            return True
        for other, warm in enumerate(self._warm):  # one after another
            if warm < WARM_UP:
                return member == other
        return self._order[0] == member


class Machine:
    """A slot for each member."""

    def __init__(self, folder: str, device: str) -> None:
        on_device = device == "cuda"
        ranks = 1 if on_device else WORKERS
        node = Node(lambda: LocalLink(folder, {}), ranks)
        self._folder, self._device, self._ranks = folder, device, ranks
        share = 1 / 3 if on_device else 0.0
        self.slots = [AgentSlot(f"s{n}", [node], gpus_per_worker=share) for n in range(3)]
        self._numbers = itertools.count()

    def request(self, knobs: dict[str, Any], kind: tuple[str, dict[str, Any]]) -> TrialRequest:
        """Run a trial whose processes stay."""
        name = f"live-{next(self._numbers)}"
        return TrialRequest(
            trial=name,
            factory=kind[0],
            args=kind[1],
            knobs={**defaults(), **USUAL, **knobs},
            world_size=self._ranks,
            seed=0,
            device=self._device,
            devices_per_rank=self.slots[0].devices_per_rank,
            blocks=BLOCKS,
            log_dir=f"{self._folder}/{name}",
            stays=True,
        )

    def close(self) -> None:
        """Nothing is left."""
        for slot in self.slots:
            slot.close()


def compared(
    machine: Machine,
    changes: dict[str, Any],
    beside: dict[str, Any],
    kind: tuple[str, dict[str, Any]],
    cycles: int,
    shape: Shape = as_timed,
) -> dict[str, Any]:
    """One value, live against fresh, and fresh against fresh.

    Args:
        shape: of the run that launches the processes which are taken over.
    """
    for slot in machine.slots:
        slot.dismiss()
    before = shape(machine.request(beside, kind))
    succeeded(machine.slots[LIVE].run_solo(before, lambda block: block.index >= WARM_UP))
    baton = Baton(len(machine.slots), cycles)

    def run(member: int) -> TrialReport:
        request = machine.request({**beside, **changes}, kind)
        try:
            return machine.slots[member].run_solo(request, lambda block: baton.take(member, block))
        finally:
            baton.leave()

    with ThreadPoolExecutor(len(machine.slots)) as pool:
        reports = list(pool.map(run, range(len(machine.slots))))
    taken_over = [bool(succeeded(report).resident_of) for report in reports]
    assert taken_over == [True, False, False], taken_over
    rates = [list(_by_cycle(found)) for found in baton.rates]
    return {
        "value": changes,
        "beside": beside,
        "after_a_profile": bool(before.profile),
        "workload": kind[0].split(".")[-1].partition(":")[0],
        "live": _shown(paired_ratio(rates[LIVE], rates[FRESH])),
        "equals": _shown(paired_ratio(rates[AGAIN], rates[FRESH])),
    }


def succeeded(report: TrialReport) -> TrialReport:
    """Return the run if it has not failed."""
    assert report.outcome is None, f"{report.cause}\n{report.log_tail}"
    return report


def _by_cycle(rates: Sequence[float]) -> Iterator[float]:
    """Forth and back together."""
    for forth, back in zip(rates[::2], rates[1::2], strict=False):
        yield 2 / (1 / forth + 1 / back)


def _shown(ratio: Ratio) -> dict[str, float]:
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cycles", type=int, default=40)
    parser.add_argument("--profiled", action="store_true", help="only after a profile")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cases = [*CASES, *ON_CUDA] if device == "cuda" else CASES
    cases = [] if given.profiled else cases
    shown = {name for case in cases for name in (*case[0], *case[1])}
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(str(Path(folder)), device)
        try:
            found = [compared(machine, *case, given.cycles) for case in cases]
            found += [compared(machine, *case, given.cycles, profiled) for case in LOOKED_AT]
        finally:
            machine.close()
    acting = {name for name, knob in CATALOGUE.items() if knob.acts_on == STEP}
    report = {"device": device, "cycles": given.cycles, "values": found}
    report["not_looked_at"] = sorted(acting - shown)
    if given.json:
        print(json.dumps(report, indent=2))
        return
    for one in found:
        live, equals = one["live"], one["equals"]
        what = "after a profile" if one["after_a_profile"] else one["value"]
        print(
            f"{what} on {one['workload']}: live {live['value']:.3f} "
            f"({live['low']:.3f} to {live['high']:.3f}), A/A {equals['value']:.3f} "
            f"({equals['low']:.3f} to {equals['high']:.3f})"
        )


if __name__ == "__main__":
    main()
