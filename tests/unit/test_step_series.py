"""Steps that are timed one by one tell how exact a run is, and how far its processes lie apart."""

import dataclasses
import random
import statistics
from pathlib import Path

import pytest

from autotune.measurement.measure import Measure
from autotune.measurement.policy import MEASUREMENT
from autotune.measurement.step_series import StepSeries, variance_of_mean_step
from autotune.worker.observers.moments import StepMoments
from autotune.worker.protocol import BlockReport, Observed
from benchmarks.recorded_device import Recorded, read_device

BLOCK = BlockReport("t", 0, 1, 4, 0, 0.5, (0.5,), 0.1, 2.0, 1000)
TABLE = Path(__file__).parents[2] / "benchmarks/tables/h200-gpt2-124m.jsonl"


def blocks(steps: list[float], size: int = 4) -> list[BlockReport]:
    """Return the reports of these steps in blocks of a size."""
    chunks = [steps[at : at + size] for at in range(0, len(steps), size)]
    return [
        dataclasses.replace(
            BLOCK,
            index=index,
            seconds=sum(chunk),
            observed=Observed(step_moments=list(StepMoments.of(chunk))),
        )
        for index, chunk in enumerate(chunks)
    ]


def test_digests_of_blocks_give_mean_and_variance_of_all_steps() -> None:
    series = StepSeries.of(blocks([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))
    assert series is not None
    assert (series.count, series.mean, series.variance) == pytest.approx((8, 4.5, 6.0))


def test_blocks_without_digest_tell_no_series() -> None:
    assert StepSeries.of([BLOCK, BLOCK, BLOCK, *blocks([1.0, 2.0, 3.0])]) is None
    assert StepSeries.of([]) is None


def test_interval_of_correlated_steps_holds_the_truth() -> None:
    draw, held = random.Random(0), 0
    for _ in range(600):
        level, steps = draw.gauss(0, 1), []
        for _ in range(24):
            level = 0.4 * level + draw.gauss(0, 0.84**0.5)
            steps.append(1.0 + 0.01 * level)
        series = StepSeries.of(blocks(steps))
        assert series is not None
        held += abs(series.mean - 1.0) <= series.half_width
    assert 0.90 <= held / 600 <= 0.99


def test_recorded_configurations_that_wait_for_the_host_are_told_from_those_that_compute() -> None:
    def waits(one: Recorded) -> bool:
        series = StepSeries.of(blocks(list(one.steps)))
        return series is not None and series.process_sigma() == MEASUREMENT.waiting_processes

    long_series = [one for one in read_device(TABLE).recorded if len(one.steps) > 12]
    waiting = [one for one in long_series if one.config["micro_batch"] <= 4]
    assert all(map(waits, (one for one in waiting if one.config["precision"] == "bf16")))
    assert not any(waits(one) for one in long_series if one.config["micro_batch"] >= 8)


def padded(draw: random.Random, seconds_per_token: float, seconds: float) -> list[BlockReport]:
    """Return blocks of three steps whose batches are as long as their longest sequence.

    Args:
        seconds_per_token: what a step takes of this.
        seconds: and of that, whatever its length.
    """
    found = []
    for _ in range(15):
        tokens = [8 * round(max(draw.lognormvariate(4.8, 0.6) for _ in range(8))) for _ in range(3)]
        steps = [seconds * draw.gauss(1, 0.1) + seconds_per_token * each for each in tokens]
        found += [dataclasses.replace(one, tokens=sum(tokens)) for one in blocks(steps, 3)]
    return [dataclasses.replace(one, steps=3, samples=24) for one in found]


def test_batches_of_different_length_are_no_waiting_for_the_host() -> None:
    told = padded(random.Random(0), seconds_per_token=4e-5, seconds=0.001)
    assert StepSeries.of(told) is None
    assert Measure("tokens").estimate(told).half_width < 0.01


def test_steps_that_wait_for_the_host_do_so_with_batches_of_different_length() -> None:
    series = StepSeries.of(padded(random.Random(0), seconds_per_token=4e-7, seconds=0.1))
    assert series is not None and series.process_sigma() == MEASUREMENT.waiting_processes


def test_few_steps_never_have_an_interval_of_their_own_size() -> None:
    series = StepSeries.of(blocks([0.120, 0.125, 0.118, 0.131, 0.122], size=2))
    assert series is not None
    assert series.half_width < 0.3


def compiled() -> list[float]:
    """Return the recorded steps of a compiled configuration: a wave of slow ones among 27."""
    recorded = read_device(TABLE).recorded
    wanted = {"micro_batch": 32, "compile": "default", "optimizer_kernels": "fused"}
    alike = (one for one in recorded if wanted.items() <= one.config.items())
    return list(next(one.steps for one in alike if one.config["float8"] == "none"))


def test_blocks_of_one_step_tell_the_correlation_of_neighbours() -> None:
    one_each, four_each = (StepSeries.of(blocks(compiled(), size)) for size in (1, 4))
    assert one_each is not None and four_each is not None
    assert one_each.pairs == len(compiled()) - 1
    assert one_each.correlation == pytest.approx(four_each.correlation, abs=0.15)
    assert one_each.half_width > 0.9 * four_each.half_width
    assert one_each.process_sigma() == MEASUREMENT.computing_processes


@pytest.mark.parametrize("size", [1, 2, 4])
def test_waves_of_slow_steps_are_no_waiting_for_the_host(size: int) -> None:
    """A wave half as slow again as the recorded one scatters as much as a device that waits."""
    usual = statistics.median(compiled())
    slower = [step + 0.6 * (step - usual) * (step > 1.03 * usual) for step in compiled()]
    series = StepSeries.of(blocks(slower, size))
    assert series is not None
    assert series.jitter > MEASUREMENT.waiting_jitter
    assert series.process_sigma() == MEASUREMENT.computing_processes


def test_run_that_missed_the_slow_wave_has_the_variance_of_all_runs() -> None:
    quiet, wave = (StepSeries.of(blocks(part)) for part in (compiled()[:12], compiled()[12:]))
    assert quiet is not None and wave is not None
    alone = variance_of_mean_step([quiet], [quiet.count])
    together = variance_of_mean_step([quiet, wave], [quiet.count])
    assert together.value > 3 * alone.value
    assert together.df > 0


def test_variance_of_a_mean_falls_with_the_steps_that_count() -> None:
    series = StepSeries.of(blocks(compiled()))
    assert series is not None
    few, many = (variance_of_mean_step([series], [steps]).value for steps in (10.0, 40.0))
    assert few == pytest.approx(4 * many)
