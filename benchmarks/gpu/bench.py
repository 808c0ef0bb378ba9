"""Scale of the measurements on a device, or of a rehearsal, and trials at that scale."""

import dataclasses
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.config.workload_kinds import spread
from autotune.measurement.stop_rule import Limits
from autotune.runs import request_shapes, study_setup
from autotune.runs.monitors import FitMonitor, RunMonitor, TimedMonitor
from autotune.runs.one_off import Shape, as_timed
from autotune.worker.protocol import BlockPlan, BlockReport, Timeouts, TrialRequest
from launchers import Launcher, Resources, section_of
from search_spaces import Facts, defaults

BENCHMARKS = Path(__file__).parent.parent
Figures = dict[str, Any]
_NUMBERS = itertools.count(1)
_LEAST_STARTUP, _MOST_STARTUP = 60.0, 300.0
"""Seconds for a first step: max-autotune compiles for minutes, and a part has a time limit."""


@dataclass(frozen=True)
class Work:
    """A workload with the configuration from which knobs are varied."""

    factory: str
    args: dict[str, Any]
    knobs: dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """Scale of the measurements.

    Attributes:
        device: 'cuda', or 'cpu' to rehearse.
        works: by the names of benchmarks/knobs.py, and the Transformer.
        limits: of a trial.
        compiled: of one that compiles.
        blocks: of both.
        rounds: in turn, of every comparison.
        values: of knobs that a part compares; None: all that can act.
        most_micro_batch: beyond which no edge of memory is looked for.
        table: configurations of a replay table.
        study: measurement section and budget of a whole study.
    """

    device: str
    works: dict[str, Work]
    limits: Limits
    compiled: Limits
    blocks: BlockPlan
    rounds: int
    values: int | None
    most_micro_batch: int
    table: int
    study: dict[str, Any]

    def resources(self, workers: int = 1) -> Resources:
        """Return the resources of trials that have the device for themselves, or share it."""
        return Resources(workers, 1 / workers if self.device == "cuda" else 0, 1, 1)


_GPT = {"layers": 12, "d_model": 1024, "heads": 16, "length": 1024}
GPU = Scale(
    device="cuda",
    works={
        "gpt": Work("autotune.workloads.gpt:build", _GPT, {"micro_batch": 16, "precision": "bf16"}),
        "transformer": Work(
            "autotune.workloads.transformer:build", {}, {"micro_batch": 64, "precision": "bf16"}
        ),
        "convnet": Work(
            "autotune.workloads.convnet:build",
            {"size": 64, "width": 128, "blocks": 8},
            {"micro_batch": 128, "precision": "bf16"},
        ),
        "images": Work(
            "autotune.workloads.images:build",
            {"size": 64, "width": 32},
            {"micro_batch": 64, "precision": "bf16"},
        ),
    },
    limits=Limits(warmup=2.0, longest=2.0, precision=0.003),
    compiled=Limits(warmup=15.0, longest=2.0, precision=0.003),
    blocks=BlockPlan(seconds=0.3, min_steps=2),
    rounds=3,
    values=None,
    most_micro_batch=4096,
    table=48,
    study={"budget": {"trials": 25}, "measurement": {"warmup": "3s", "max_measure_time": "4s"}},
)
_SMALL = {"layers": 1, "d_model": 16, "heads": 2, "length": 16}
REHEARSAL = Scale(
    device="cpu",
    works={
        "gpt": Work("autotune.workloads.gpt:build", _SMALL, {"micro_batch": 2}),
        "transformer": Work(
            "autotune.workloads.transformer:build",
            {"layers": 1, "d_model": 16, "d_ff": 32, "heads": 2, "vocabulary": 64, "length": 8},
            {"micro_batch": 2},
        ),
        "convnet": Work(
            "autotune.workloads.convnet:build",
            {"size": 8, "width": 4, "blocks": 1},
            {"micro_batch": 2},
        ),
        "images": Work(
            "autotune.workloads.images:build", {"size": 8, "width": 2}, {"micro_batch": 2}
        ),
    },
    limits=Limits(warmup=0.01, longest=0.02, precision=0.5),
    compiled=Limits(warmup=0.01, longest=0.02, precision=0.5),
    blocks=BlockPlan(seconds=0.01, min_steps=2),
    rounds=2,
    values=2,
    most_micro_batch=16,
    table=2,
    study={
        "budget": {"trials": 2},
        "measurement": {
            "block_seconds": 0.01,
            "min_steps": 2,
            "warmup": 0.01,
            "max_measure_time": 0.02,
            "finalists": 1,
            "rounds": 2,
            "ablation_rounds": 0,
            "baseline_runs": 1,
        },
    },
)


@dataclass(frozen=True)
class Run:
    """One trial, in short; figures of blocks are medians over those that count.

    Attributes:
        rate: samples per second; None unless it was measured.
        half_width: relative, of the 95 % interval that its blocks give.
        compile_seconds: of the whole trial.
        wall_seconds: with its start.
    """

    state: str
    cause: str
    rate: float | None
    half_width: float | None
    step_p50: float | None
    step_p95: float | None
    compile_seconds: float
    peak_bytes: int
    clock_mhz: float | None
    power_watts: float | None
    wall_seconds: float


class Bench:
    """Where a part measures, and until when."""

    def __init__(self, scale: Scale, folder: Path, output: Path) -> None:
        """Take in the folders.

        Args:
            folder: folder of files that are discarded.
            output: folder of tables that are kept.
        """
        self.scale = scale
        self.folder = folder
        self.output = output
        self.until = 0.0
        """End of the part that runs, by time.monotonic."""

    def left(self) -> float:
        """Seconds that the part still has."""
        return self.until - time.monotonic()

    @contextmanager
    def trials(self, workers: int = 1) -> Iterator["Trials"]:
        """Trials of so many ranks on the one device, one after another."""
        resources = self.scale.resources(workers)
        with section_of("local").open(resources, str(self.folder)) as launcher:
            yield Trials(self, launcher)


class Trials:
    """Makes trials on a slot."""

    def __init__(self, bench: Bench, launcher: Launcher) -> None:
        self._bench = bench
        self.launcher = launcher
        self.environment = launcher.slots[0].environment

    @property
    def facts(self) -> Facts:
        """Facts for constraints."""
        return study_setup.facts_of(self.launcher.site)

    def knobs(self, name: str, **changes: Any) -> dict[str, Any]:
        """Return the configuration of a workload from which knobs are varied, with these changes."""
        return {**defaults(), **self._bench.scale.works[name].knobs, **changes}

    def timed(self, name: str, knobs: dict[str, Any], **changes: Any) -> Run:
        """Run a timed trial; `changes` replace fields of its request."""
        scale = self._bench.scale
        judge = TimedMonitor(scale.limits if knobs["compile"] == "none" else scale.compiled)
        return self.run(name, knobs, judge, lambda a: dataclasses.replace(a, **changes))

    def fit(self, name: str, knobs: dict[str, Any]) -> Run:
        """Run a trial of a few steps, which tells whether it fits in memory."""
        return self.run(name, knobs, FitMonitor(), request_shapes.few_steps)

    def run(
        self, name: str, knobs: dict[str, Any], judge: RunMonitor, shape: Shape = as_timed
    ) -> Run:
        """Any trial."""
        work, slot = self._bench.scale.works[name], self.launcher.slots[0]
        startup = max(_LEAST_STARTUP, min(_MOST_STARTUP, self._bench.left()))
        trial = f"{name}-{next(_NUMBERS)}"
        asked = TrialRequest(
            trial=trial,
            factory=work.factory,
            args=work.args,
            knobs=knobs,
            world_size=self.launcher.ranks,
            seed=0,
            device=slot.device,
            devices_per_rank=slot.devices_per_rank,
            blocks=self._bench.scale.blocks,
            timeouts=Timeouts(startup=startup),
            import_paths=(str(BENCHMARKS),),
            log_dir=str(self._bench.folder / trial),
        )
        result = judge.result(slot.run_solo(shape(spread(asked)), judge))
        blocks = [seen.block for seen in judge.seen]
        kept = [seen.block for seen in judge.seen if seen.kept]
        return Run(
            state=str(result.state),
            cause=result.cause,
            rate=result.throughput,
            half_width=result.block_half_width,
            step_p50=_median(kept, "step_p50"),
            step_p95=_median(kept, "step_p95"),
            compile_seconds=sum(b.observed.get("compile_seconds", 0.0) for b in blocks),
            peak_bytes=result.peak_bytes,
            clock_mhz=_median(kept, "clock_mhz"),
            power_watts=_median(kept, "power_watts"),
            wall_seconds=result.wall_seconds,
        )


def in_turn(rounds: int, left: Callable[[], float], runs: dict[str, Callable[[], Run]]) -> Figures:
    """Run these, round by round in orders that are drawn, until the time is over.

    Returns:
        Their runs by name, as JSON, and `unfinished` where rounds are missing.
    """
    found: dict[str, list[Figures]] = {name: [] for name in runs}
    for number in range(rounds):
        if number and left() < 0:
            break
        for name in random.Random(number).sample(list(runs), len(runs)):
            found[name].append(dataclasses.asdict(runs[name]()))
    made = min(map(len, found.values()))
    return {"runs": found, **({"unfinished": True} if made < rounds else {})}


def rates(runs: list[Figures]) -> list[float | None]:
    """Return samples per second, round by round."""
    return [run["rate"] for run in runs]


def _median(blocks: list[BlockReport], name: str) -> float | None:
    values = [float(b.observed[name]) for b in blocks if name in b.observed]
    return statistics.median(values) if values else None
