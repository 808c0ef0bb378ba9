"""Statistics of timed blocks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measurement.estimate import (
    Ratio,
    drift_within,
    effective_size,
    estimate,
    paired_ratio,
    steady,
)

positive = st.floats(0.01, 1e6)


@given(st.lists(positive, min_size=1, max_size=30), positive)
def test_the_rate_is_all_units_over_all_seconds(seconds, units):
    found = estimate([units] * len(seconds), seconds)
    assert found.rate == pytest.approx(units * len(seconds) / sum(seconds))


@given(st.lists(positive, min_size=2, max_size=30), positive)
def test_the_unit_of_time_does_not_change_the_relative_interval(seconds, scale):
    units = [100.0] * len(seconds)
    once = estimate(units, seconds).half_width
    scaled = estimate(units, [s * scale for s in seconds]).half_width
    assert scaled == pytest.approx(once, rel=1e-6, abs=1e-9)


def test_one_block_says_nothing_about_the_spread():
    assert math.isinf(estimate([10], [1.0]).half_width)


def test_equal_blocks_have_no_spread():
    assert estimate([10] * 5, [1.0] * 5).half_width == 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_correlated_values_never_count_for_more(values):
    assert 1 <= effective_size(values) <= len(values)


def test_a_drift_counts_for_few_values():
    assert effective_size(np.arange(50.0)) < 10


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        seconds = 1 / (100 * (1 + 0.03 * generator.standard_normal(12)))
        found = estimate([1.0] * 12, seconds)
        hits += found.low <= 100 <= found.high
    assert 930 <= hits <= 985


def test_the_interval_covers_the_truth_also_for_correlated_blocks():
    generator = np.random.default_rng(2)
    hits = 0
    for _ in range(500):
        noise = np.zeros(60)
        for i in range(1, 60):
            noise[i] = 0.5 * noise[i - 1] + 0.02 * generator.standard_normal()
        found = estimate([1.0] * 60, 1 / (100 * (1 + noise)))
        hits += found.low <= 100 <= found.high
    assert hits >= 440


def test_steady_needs_five_blocks_without_drift():
    assert steady([1.0] * 5)
    assert not steady([1.0] * 4)
    assert steady([1.0, 1.04, 0.96, 1.04, 0.96])
    assert not steady([1.0, 1.2, 0.8, 1.2, 0.8])
    assert not steady([1.0, 1.005, 1.01, 1.015, 1.02])
    assert steady([3.0, 2.0, 1.0, 1.0, 1.001, 0.999, 1.0, 1.0])


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=10))
def test_a_ratio_and_its_inverse_agree(pairs):
    first, second = zip(*pairs, strict=True)
    forth, back = paired_ratio(first, second), paired_ratio(second, first)
    assert forth.value * back.value == pytest.approx(1)
    assert forth.low <= forth.value <= forth.high


def test_what_disturbs_a_whole_round_cancels():
    rounds = [1.0, 0.5, 0.8, 0.9]
    found = paired_ratio([110 * r for r in rounds], [100 * r for r in rounds])
    assert found.value == pytest.approx(1.1)
    assert found.high - found.low < 1e-9


def test_one_round_says_nothing():
    found = paired_ratio([2.0], [1.0])
    assert (found.low, found.high) == (0.0, math.inf)


@pytest.mark.parametrize(
    ("low", "high", "distinguishable", "faster"),
    [
        (1.01, 1.2, True, True),
        (0.8, 0.99, True, False),
        (0.9, 1.1, False, False),
        (1.0, 1.1, False, False),
        (0.9, 1.0, False, False),
        (0.0, math.inf, False, False),
    ],
)
def test_ratio_is_distinguishable_where_its_interval_excludes_one(
    low, high, distinguishable, faster
):
    ratio = Ratio(1.0, low, high)
    assert (ratio.distinguishable, ratio.faster) == (distinguishable, faster)


def test_ratio_whose_interval_is_beyond_the_range_of_a_float_has_no_bounds():
    assert Ratio.around(2.0, 952.0) == Ratio.around(2.0, math.inf) == Ratio(2.0, 0.0, math.inf)
    assert Ratio.around(2.0, math.log(2)) == Ratio(2.0, 1.0, 4.0)


def test_runs_that_get_faster_show_a_drift():
    rng = np.random.default_rng(0)
    runs = [
        [100 * rng.normal(1, 0.03), 101 * rng.normal(1, 0.03), 110 * rng.normal(1, 0.03), 111.0]
        for _ in range(8)
    ]
    found = drift_within(runs)
    assert found is not None
    assert 1.02 < found.low < 1.1 < found.high


def test_runs_that_scatter_about_one_speed_show_no_drift():
    rng = np.random.default_rng(0)
    found = drift_within([list(rng.normal(100, 20, 6)) for _ in range(20)])
    assert found is not None
    assert not found.distinguishable


def test_drift_of_two_runs_is_unknown():
    assert drift_within([[1.0, 2.0]] * 2 + [[1.0]]) is None


def _warm_up(first: float, blocks_to_settle: float, scatter: float) -> tuple[float, float]:
    """Return the mean length of warm-ups in blocks, and the bias of the ten blocks that follow."""
    draw = np.random.default_rng(0)
    lengths, biases = [], []
    truth = 1 + first * np.exp(-np.arange(60) / blocks_to_settle)
    for _ in range(400):
        seen = truth * (1 + scatter * draw.standard_normal(60))
        length = next(count for count in range(5, 50) if steady(seen[:count]))
        lengths.append(length)
        biases.append(truth[length : length + 10].mean() - 1)
    return float(np.mean(lengths)), float(np.mean(biases))


@pytest.mark.parametrize(
    ("first", "blocks_to_settle", "longest", "most_bias"),
    [(0.0, 1.0, 7.5, 0.0), (0.2, 3.0, 16, 0.003), (0.2, 5.0, 16, 0.012), (0.2, 8.0, 16, 0.035)],
)
def test_scatter_does_not_lengthen_the_warm_up_and_a_drift_does(
    first: float, blocks_to_settle: float, longest: float, most_bias: float
) -> None:
    length, bias = _warm_up(first, blocks_to_settle, scatter=0.04)
    assert length < longest
    assert bias <= most_bias
