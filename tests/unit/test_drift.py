"""When a job counts as slower than its configuration promises."""

import math

import pytest

from autotune.measurement.drift import (
    Change,
    Drift,
    Promise,
    rate_of_job,
)
from autotune.measurement.estimate import paired_ratio
from autotune.measurement.policy import MEASUREMENT


def test_the_bound_is_that_of_the_next_run() -> None:
    """Student's interval for one more value: t * s * sqrt(1 + 1/n)."""
    rates = [100.0, 103.0, 98.0, 101.0]
    mean = paired_ratio(rates, [1.0] * 4)
    promise = Promise(mean.value, mean.low, mean.high, len(rates))
    logs = [math.log(rate) for rate in rates]
    centre = sum(logs) / 4
    spread = math.sqrt(sum((log - centre) ** 2 for log in logs) / 3)
    expected = math.exp(centre - 3.182446 * spread * math.sqrt(1 + 1 / 4))
    assert promise.bound == pytest.approx(expected, rel=1e-6)
    assert promise.bound < mean.low


@pytest.mark.parametrize(("low", "rounds"), [(0.0, 4), (90.0, 1), (90.0, 0)])
def test_without_an_interval_nobody_can_tell(low: float, rounds: int) -> None:
    assert Promise(100.0, low, math.inf, rounds).bound == 0.0


def test_a_drift_is_said_once_as_it_begins_and_once_as_it_ends() -> None:
    drift = Drift(90.0)
    told = [drift(rate) for rate in [80.0] * 8 + [95.0] * 5 + [80.0] * 2]
    assert told == [
        *[None] * (MEASUREMENT.checks_in_a_row - 1),
        Change.BEGAN,
        *[None] * (8 - MEASUREMENT.checks_in_a_row),
        *[None] * (MEASUREMENT.checks_in_a_row - 1),
        Change.OVER,
        *[None] * (5 - MEASUREMENT.checks_in_a_row),
        *[None] * 2,
    ]
    assert not drift.drifted


def test_a_bad_minute_is_none() -> None:
    drift = Drift(90.0)
    assert not any(drift(rate) for rate in [80.0, 80.0, 91.0] * 20)


def test_a_pause_does_not_show() -> None:
    """An evaluation of ten seconds is one block, a checkpoint another."""
    blocks = [100.0] * 40
    blocks[10], blocks[30] = 3.0, 7.0
    assert rate_of_job({0: list(blocks), 1: list(blocks)}, 2) == 200.0


def test_a_job_that_is_slower_all_along_shows() -> None:
    assert rate_of_job({0: [80.0] * 40}, 1) == 80.0


def test_ranks_of_other_nodes_count_like_those_of_this_one() -> None:
    assert rate_of_job({0: [100.0] * 9, 1: [98.0] * 9}, 8) == pytest.approx(4 * 198.0)


def test_where_one_rank_draws_for_all_its_samples_are_all() -> None:
    assert rate_of_job({0: [100.0] * 9, 1: [0.0] * 9}, 2) == 100.0


def test_few_blocks_tell_nothing() -> None:
    assert rate_of_job({0: [100.0] * (MEASUREMENT.fewest_blocks_of_check - 1)}, 1) is None
    assert rate_of_job({}, 1) is None
