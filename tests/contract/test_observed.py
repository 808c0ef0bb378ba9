"""What is observed of a block besides its time, on real ranks."""

import dataclasses
import gzip
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autotune.config.workload_kinds import spread
from autotune.measurement.bottleneck import STRAGGLER, breakdown
from autotune.measurement.stop_rule import Limits, straggler_ratio
from autotune.runs.monitors import ProfileMonitor, TimedMonitor
from autotune.worker.protocol import BlockPlan, BlockReport, Observed, TrialRequest
from launchers import Launcher, Resources, section_of
from search_spaces import defaults
from storage import AttemptResult
from tests.support.trials import trial

SLEEP = 0.1
"""Seconds that a rank sleeps in a step: many times what others beside it delay it by."""


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    resources = Resources(workers=2, gpus_per_worker=None, cpus_per_worker=1, slots=1)
    folder = str(tmp_path_factory.mktemp("observed"))
    with section_of("local").open(resources, folder) as opened:
        yield opened


def measured(
    launcher: Launcher, folder: Path, *, seconds: float = 0.6, **arguments: Any
) -> tuple[AttemptResult, list[BlockReport]]:
    """A trial of the tiny workload, and its blocks."""
    judge = TimedMonitor(Limits(warmup=0.2, longest=seconds, precision=1e-9))
    report = launcher.slots[0].run_solo(tiny_trial(folder, arguments), judge)
    return judge.result(report), [seen.block for seen in judge.seen]


def tiny_trial(folder: Path, arguments: dict[str, Any]) -> TrialRequest:
    return trial(
        folder,
        args=arguments,
        knobs={**defaults(), "micro_batch": 4},
        blocks=BlockPlan(seconds=0.1, min_steps=2),
        import_paths=(str(Path(__file__).parent.parent / "workloads"),),
        log_dir=str(folder / "log"),
    )


def profiled(launcher: Launcher, folder: Path, **arguments: Any) -> Observed:
    """Return what a profile shows of the tiny workload."""
    judge = ProfileMonitor()
    request = dataclasses.replace(tiny_trial(folder, arguments), profile=4)
    result = judge.result(launcher.slots[0].run_solo(request, judge))
    assert result.state == "COMPLETE", result.cause
    return judge.seen[0].block.observed


def usual(of_each_block: Iterable[float | None]) -> float:
    """The median over the blocks that have it: DDP times one step in ten, and any may be slow."""
    return statistics.median(seen for seen in of_each_block if seen is not None)


def test_percentiles_of_steps_are_in_order_and_agree_with_the_block(
    launcher: Launcher, tmp_path: Path
) -> None:
    _, blocks = measured(launcher, tmp_path, sleep=0.01)
    for block in blocks[1:]:
        seen = block.observed
        assert 0.01 <= seen["step_p50"] <= seen["step_p95"] <= seen["step_max"]
        assert seen["step_p50"] * block.steps / 2 <= block.seconds
        assert seen["step_max"] <= block.seconds


@pytest.mark.slow
def test_the_rank_that_the_others_wait_for_shows(launcher: Launcher, tmp_path: Path) -> None:
    _, blocks = measured(launcher, tmp_path, seconds=2, sleep=SLEEP, slow_rank=1)
    timed = [seen for block in blocks if (seen := block.observed.get("exposed_seconds"))]
    waited = [usual(seconds[rank] for seconds in timed) for rank in (0, 1)]
    assert waited[0] > 0.75 * SLEEP  # rank 0 waits in its collectives for as long as rank 1 sleeps
    assert waited[1] < 0.5 * SLEEP
    assert usual(map(straggler_ratio, blocks)) > 2
    _, alike = measured(launcher, tmp_path / "alike", seconds=2, sleep=SLEEP)
    assert usual(map(straggler_ratio, alike)) < 1.5


def test_a_compilation_shows_in_its_block_and_is_no_part_of_the_estimate(
    launcher: Launcher, tmp_path: Path
) -> None:
    judge = TimedMonitor(Limits(warmup=0.2, longest=0.6, precision=1e-9))
    asked = tiny_trial(tmp_path, {"compiled": True})
    result = judge.result(launcher.slots[0].run_solo(asked, judge))
    assert result.state == "COMPLETE", result.cause
    first, *_ = judge.seen
    assert first.block.observed["compilations"] >= 1
    assert first.block.observed["compile_seconds"] > 0
    kept = [seen.block.observed["compilations"] for seen in judge.seen if seen.kept]
    assert kept
    assert not any(kept)


@contextmanager
def others_at_work() -> Iterator[None]:
    """Two other processes per processor that never rest."""
    count = subprocess.run(["nproc"], capture_output=True, text=True, check=True).stdout
    command = [sys.executable, "-c", "while True: pass"]
    hogs = [subprocess.Popen(command) for _ in range(2 * int(count))]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def test_blocks_that_others_disturb_are_repeated_three_times_then_kept_and_flagged(
    launcher: Launcher, tmp_path: Path
) -> None:
    with others_at_work():
        judge_result, blocks = measured(launcher, tmp_path, sleep=0.001)
    assert judge_result.contended
    assert usual(block.observed["foreign_cpu"] for block in blocks[1:]) > 0.4
    assert usual(block.observed["idle_cpu"] for block in blocks[1:]) < 0.1


def test_a_profile_says_what_a_step_is_made_of_and_leaves_its_trace(
    launcher: Launcher, tmp_path: Path
) -> None:
    observed = profiled(launcher, tmp_path, sleep=SLEEP)
    parts = observed["parts"]
    lacks = {"attention", "blocks", "convolutions", "image convolutions"}
    assert lacks <= {*observed["lacks"]} and "dataset" not in observed["lacks"]
    for rank in (0, 1):
        shares = {name: of_ranks[rank] for name, of_ranks in parts.items()}
        assert shares.pop("idle") == 0
        assert abs(sum(shares.values()) - 1) < 1e-6
        assert max(shares, key=shares.__getitem__) == "compute"
        with gzip.open(tmp_path / "log" / f"trace-{rank}.json.gz", "rt") as trace:
            names = [event.get("name") for event in json.load(trace)["traceEvents"]]
        assert names.count("autotune/step") == 4


def test_a_profile_tells_a_slow_rank_from_slow_communication(
    launcher: Launcher, tmp_path: Path
) -> None:
    made = breakdown(profiled(launcher, tmp_path, sleep=SLEEP, slow_rank=1)["parts"])
    assert max(made, key=made.__getitem__) == STRAGGLER
    assert made[STRAGGLER] > 0.6
    assert made["communication"] < 0.2


@pytest.mark.parametrize(
    ("parallelism", "told_first"),
    [("ddp", "BatchNorm"), ("data_parallel", "BatchNorm over the rows of all ranks")],
)
def test_batch_normalisation_of_a_workload_is_told(
    launcher: Launcher, tmp_path: Path, parallelism: str, told_first: str
) -> None:
    asked = tiny_trial(tmp_path, {"size": 8, "width": 4, "blocks": 1})
    knobs = {**asked.knobs, "parallelism": parallelism}
    factory = "autotune.workloads.convnet:build"
    request = spread(dataclasses.replace(asked, factory=factory, knobs=knobs))
    report = launcher.slots[0].run_solo(request, lambda block: block.index > 0)
    told = [block.observed.get("batch_dependent") for block in report.blocks[:2]]
    assert told == [told_first, None], report.cause
    assert [block.observed.get("convolutions") for block in report.blocks[:2]] == [1, None]
