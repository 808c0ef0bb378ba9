"""Steps that are timed one by one tell how exact a run is, and how far its processes lie apart."""

import dataclasses
import random
from pathlib import Path

import pytest

from autotune.measurement.policy import MEASUREMENT
from autotune.measurement.step_series import StepSeries
from autotune.worker.observers.moments import StepMoments
from autotune.worker.protocol import BlockReport, Observed
from launchers.replay.device import Recorded, read_device

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


def test_few_steps_never_have_an_interval_of_their_own_size() -> None:
    series = StepSeries.of(blocks([0.120, 0.125, 0.118, 0.131, 0.122], size=2))
    assert series is not None
    assert series.half_width < 0.3
