"""How far equal runs lie apart."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measurement.noise import RepeatedRun, run_noise, total_half_width
from autotune.measurement.policy import MEASUREMENT

NORMAL = 1.959964


def runs(rates, half_width=0.0, apart=60.0):
    return [RepeatedRun(rate, half_width, index * apart) for index, rate in enumerate(rates)]


def drawn(sigma, within, count, seed):
    """Rates of runs that differ by sigma, each known from its blocks up to `within`."""
    generator = np.random.default_rng(seed)
    spread = np.hypot(sigma, within)
    rates = 100 * np.exp(spread * generator.standard_normal(count))
    return runs(rates, half_width=NORMAL * within)


def test_before_anything_is_measured_the_prior_holds():
    assert run_noise([]).sigma_run == MEASUREMENT.prior_sigma
    assert run_noise(runs([100.0]), prior_sigma=0.07).sigma_run == 0.07


@pytest.mark.parametrize("sigma", [0.0, 0.005, 0.02, 0.05])
@pytest.mark.parametrize("within", [0.0, 0.01])
def test_many_runs_find_the_noise_between_them_and_not_that_of_their_blocks(sigma, within):
    found = np.mean([run_noise(drawn(sigma, within, 200, s)).sigma_run for s in range(20)])
    # Two runs' worth of the prior are left in two hundred.
    assert found == pytest.approx(np.hypot(sigma, 0.1 * MEASUREMENT.prior_sigma), abs=0.0012)


def test_a_few_quiet_runs_do_not_talk_the_noise_away():
    assert run_noise(runs([100.0, 100.0, 100.0])).sigma_run > 0.5 * MEASUREMENT.prior_sigma


def test_drift_is_found_and_its_absence_too():
    hours = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    slowing = [RepeatedRun(100 * np.exp(-0.05 * h), 0.0, 3600 * h) for h in hours]
    assert run_noise(slowing).drift_per_hour == pytest.approx(-0.05, rel=1e-6)
    steady = [dataclasses.replace(run, at=10 * run.at) for run in drawn(0.01, 0.0, 8, seed=1)]
    assert run_noise(steady).drift_per_hour == 0.0
    assert run_noise(steady[:3]).drift_per_hour is None


def test_what_minutes_show_is_no_drift_of_an_hour():
    slowing = [RepeatedRun(100 - 3 * minute, 0.0, 60.0 * minute) for minute in range(8)]
    assert run_noise(slowing).drift_per_hour is None


@given(
    st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=12),
    st.floats(0, 0.5),
    st.floats(1e-4, 0.2),
    st.floats(1e-3, 1e3),
)
def test_the_unit_of_the_rate_does_not_matter(rates, half_width, prior, scale):
    found = run_noise(runs(rates, half_width), prior)
    scaled = run_noise(runs([scale * rate for rate in rates], half_width), prior)
    assert scaled.sigma_run == pytest.approx(found.sigma_run, rel=1e-6, abs=1e-9)
    assert found.sigma_run >= 0.35 * prior or len(rates) > 3


@given(st.floats(0, 1), st.floats(0, 1))
def test_both_kinds_of_noise_widen_the_interval(blocks, sigma):
    total = total_half_width(blocks, sigma)
    assert total >= blocks
    assert total >= NORMAL * sigma - 1e-5
    assert total <= blocks + NORMAL * sigma + 1e-5


def test_a_drift_that_is_surely_one_is_no_noise():
    hours = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    generator = np.random.default_rng(4)
    noise = 0.001 * generator.standard_normal(len(hours))
    drifting = [
        RepeatedRun(100 * np.exp(-0.05 * h + e), 0.0, 3600 * h)
        for h, e in zip(hours, noise, strict=True)
    ]
    found = run_noise(drifting, prior_sigma=0.001)
    assert found.drift_per_hour == pytest.approx(-0.05, abs=0.002)
    assert found.sigma_run < 0.003


def test_how_well_the_noise_is_known_shows_in_the_interval_of_a_run():
    """Equal runs that differ by 5 %, of which three are seen, with a prior of 2 %."""
    outside, trusted = 0, 0
    generator = np.random.default_rng(7)
    for _ in range(2000):
        rates = 100 * np.exp(0.05 * generator.standard_normal(4))
        found = run_noise(runs(rates[:3]))
        assert found.df == pytest.approx(4.0)
        apart = abs(float(np.log(rates[3] / 100)))
        outside += apart > total_half_width(0.0, found.sigma_run, found.df)
        trusted += apart > total_half_width(0.0, found.sigma_run)
    # The prior is too low by more than half, and still half of what it would hide is seen.
    assert outside / 2000 < 0.13
    assert trusted / 2000 > 1.7 * outside / 2000


def test_the_standard_error_of_the_noise():
    many = [run_noise(drawn(0.02, 0.0, 9, seed)) for seed in range(300)]
    assert np.std([one.sigma_run for one in many]) == pytest.approx(many[0].error, rel=0.35)


def test_blocks_are_taken_at_the_error_that_their_interval_has():
    """Five blocks: Student's quantile of 2.78 and not 1.96."""
    assert RepeatedRun(100.0, 0.0278, 0.0, df=4.0).error == pytest.approx(0.01, rel=0.01)
    assert RepeatedRun(100.0, 0.0196, 0.0).error == pytest.approx(0.01, rel=0.01)


def test_four_runs_in_a_row_that_fall_by_chance_are_no_drift():
    """Of the 24 orders of four runs two are monotone: one study in twelve."""
    falling = [
        RepeatedRun(rate, 0.01, 900.0 * n) for n, rate in enumerate((103.0, 101.0, 99.0, 97.0))
    ]
    assert run_noise(falling).drift_per_hour is None
