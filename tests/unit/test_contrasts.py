"""The noise that arms and rounds do not explain."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from autotune.measurement.contrasts import Contrast, Variance, contrast, pooled, shrunk
from autotune.measurement.estimate import Ratio
from autotune.measurement.group_sequential import look_level, looks_after_each_round


def drawn(arms, rounds, sigma, seed):
    """Rounds that share what is ten times the noise; `sigma` of each arm."""
    generator = np.random.default_rng(seed)
    levels = generator.normal(0.0, 0.1, arms)
    return {
        number: {
            arm: float(100 * np.exp(levels[arm] + shared + generator.normal(0.0, sigma[arm])))
            for arm in range(arms)
        }
        for number, shared in enumerate(generator.normal(0.0, 0.1, rounds))
    }


def test_in_complete_rounds_it_is_the_residual_of_a_two_way_table():
    rates = drawn(4, 6, [0.01] * 4, seed=3)
    logs = np.log([[rates[number][arm] for arm in range(4)] for number in range(6)])
    left = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    found = pooled(rates)
    assert found.df == 3 * 5
    assert found.value == pytest.approx((left**2).sum() / 15)


def test_an_arm_that_dropped_out_still_tells_of_the_noise():
    rates = drawn(4, 6, [0.01] * 4, seed=3)
    for number in (4, 5):
        del rates[number][2]
    assert pooled(rates).df == 22 - (4 + 6 - 1)


@given(st.integers(2, 5), st.integers(2, 8), st.integers(0, 1000))
def test_the_unit_and_the_speed_of_a_round_do_not_matter(arms, rounds, seed):
    rates = drawn(arms, rounds, [0.02] * arms, seed)
    other = {n: {a: (3 + n) * r for a, r in of.items()} for n, of in rates.items()}
    assert pooled(other).value == pytest.approx(pooled(rates).value, rel=1e-6)
    assert contrast(other, 0, 1).value == pytest.approx(contrast(rates, 0, 1).value, abs=1e-9)


def test_two_arms_alone_are_compared_by_their_differences():
    rates = drawn(2, 7, [0.01, 0.01], seed=5)
    logs = np.log([of[1] / of[0] for of in rates.values()])
    found = contrast(rates, 1, 0)
    assert found.df == 6
    assert found.error == pytest.approx(np.std(logs, ddof=1) / np.sqrt(7))


def test_a_noisy_pair_is_not_taken_for_as_quiet_as_the_rest():
    """Pooled over all arms the error would be too small by a factor of 1.3."""
    sigma = [0.01, 0.03, 0.01, 0.01]
    errors = [contrast(drawn(4, 40, sigma, seed), 1, 0).error for seed in range(50)]
    true = np.hypot(0.01, 0.03) / np.sqrt(40)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(true, rel=0.06)


def test_student_of_the_pair_covers_what_it_says():
    """Of three rounds of four arms. The rest of the arms have twice the degrees of freedom that they
    count for, so it is rather too seldom that it misses."""
    missed = 0
    for seed in range(1000):
        found = contrast(drawn_equal(seed), 1, 0)
        missed += abs(found.value) > found.beyond(0.025)
    assert 0.02 < missed / 1000 < 0.055


def drawn_equal(seed):
    generator = np.random.default_rng(seed)
    return {n: dict(enumerate(np.exp(generator.normal(0.0, 0.02, 4)))) for n in range(3)}


def test_a_variance_is_drawn_towards_the_rest_by_the_weight_of_both():
    found = shrunk(Variance(4.0, 2.0), Variance(1.0, 4.0))
    assert found == Variance(2.0, 6.0)
    assert shrunk(Variance(0.0, 0.0), Variance(0.0, 0.0)).df == 0


def test_early_look_of_many_rounds_may_leave_a_ratio_without_bounds():
    rates = {1: {0: 100.0, 1: 130.0}, 2: {0: 100.0, 1: 156.0}}
    level = look_level(looks_after_each_round(3, 2), 50, 0.025)
    found = contrast(rates, 1, 0)
    assert found.ratio(level) == Ratio(math.exp(found.value), 0.0, math.inf)
    assert found.ratio(0.025).low > 0


def test_a_single_round_tells_no_error():
    assert contrast({1: {0: 100.0, 1: 120.0}}, 1, 0).beyond(0.025) == float("inf")


@pytest.mark.parametrize("value", [-0.03, 0.0, 0.01, 0.05])
@pytest.mark.parametrize("df", [2.0, 4.5, 30.0])
def test_what_a_choice_risks_is_what_it_loses_on_average(value, df):
    posterior = stats.t(df, loc=value, scale=0.02)
    lost = posterior.expect(lambda x: -x, ub=0.0)
    assert Contrast(value, 0.02, df).risk == pytest.approx(lost, rel=1e-4)


def test_who_knows_nothing_of_the_noise_risks_everything():
    assert Contrast(0.1, 0.01, 1.0).risk == np.inf
