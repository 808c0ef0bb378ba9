"""Trials that were measured before the noise between runs was."""

import math

import pytest

from autotune.analysis.noise_backfill import error_of, errors_of_early, with_known_noise
from autotune.measurement.policy import MEASUREMENT
from search_spaces import defaults
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt
from tests.support.records import in_order

BASELINE = defaults()
ASSUMED, FOUND = 0.02, 0.07


def attempt(purpose, sigma_run, *, trial=0, round_=0, rate=100.0, **knobs):
    result = AttemptResult(
        AttemptState.COMPLETE,
        throughput=rate,
        sigma_run=sigma_run,
        block_half_width=0.03,
        block_freedom=9.0,
    )
    return StoredAttempt(0, trial, purpose, round_, 1, {**BASELINE, **knobs}, 0.0, 1.0, result, 1)


def such(*attempts):
    return Attempts(in_order(*attempts), BASELINE)


def noise(attempts):
    return [one.result.sigma_run for one in with_known_noise(attempts)]


FIRST = (
    attempt(Purpose.SEARCH, ASSUMED),
    attempt(Purpose.SEARCH, ASSUMED, trial=1, micro_batch=8),
)


def test_until_the_baseline_has_run_again_what_was_assumed_stands():
    assert noise(such(*FIRST)) == [ASSUMED, ASSUMED]


def test_what_was_measured_before_has_the_noise_that_was_found_since():
    later = attempt(Purpose.SEARCH, FOUND, trial=2, micro_batch=16)
    again = attempt(Purpose.CALIBRATE, ASSUMED)
    assert noise(such(*FIRST, again, later)) == [ASSUMED, FOUND, ASSUMED, FOUND]


def test_the_baseline_stays_what_others_look_up():
    later = attempt(Purpose.SEARCH, FOUND, trial=2, micro_batch=16)
    attempts = such(*FIRST, attempt(Purpose.CALIBRATE, ASSUMED), later)
    assert attempts.baseline() in with_known_noise(attempts)


def test_a_trial_beside_the_baseline_says_nothing_of_runs_by_themselves():
    beside_it = attempt(Purpose.PAIRED, FOUND, round_=2)
    paired = attempt(Purpose.SEARCH, FOUND / 2, trial=2, micro_batch=16)
    again = attempt(Purpose.CALIBRATE, ASSUMED)
    assert noise(such(*FIRST, again, beside_it, paired)) == [
        ASSUMED,
        FOUND,
        ASSUMED,
        FOUND,
        FOUND / 2,
    ]


def test_who_has_shown_no_speed_stays_as_it_is():
    failed = attempt(Purpose.SEARCH, None, trial=1, micro_batch=64)
    later = attempt(Purpose.SEARCH, FOUND, trial=2)
    again = attempt(Purpose.CALIBRATE, ASSUMED)
    assert noise(such(FIRST[0], failed, again, later)) == [ASSUMED, None, ASSUMED, FOUND]


@pytest.mark.parametrize("beside", [80.0, 125.0])
def test_who_ran_by_itself_may_be_off_by_what_turns_make_of_the_baseline(beside):
    beside_it = attempt(Purpose.PAIRED, ASSUMED, round_=2, rate=beside)
    paired = attempt(Purpose.SEARCH, ASSUMED / 2, trial=2, micro_batch=16)
    off = math.hypot(ASSUMED, math.log(1.25))
    assert noise(such(*FIRST, beside_it, paired)) == [
        ASSUMED,
        pytest.approx(off),
        ASSUMED,
        ASSUMED / 2,
    ]


def test_a_trial_beside_the_baseline_from_the_start_is_what_it_was_told_to_be():
    beside_it = attempt(Purpose.PAIRED, ASSUMED, round_=1, rate=80.0)
    paired = attempt(Purpose.SEARCH, ASSUMED / 2, trial=1, micro_batch=16)
    assert noise(such(FIRST[0], beside_it, paired)) == [ASSUMED, ASSUMED, ASSUMED / 2]
    assert errors_of_early(such(FIRST[0], beside_it, paired)) == {}


def test_the_sampler_hears_of_the_errors_of_early_trials_alone():
    later = attempt(Purpose.SEARCH, FOUND, trial=2, micro_batch=16)
    attempts = such(*FIRST, attempt(Purpose.CALIBRATE, ASSUMED), later)
    told = {one.trial: error_of(one.result) for one in with_known_noise(attempts)}
    assert errors_of_early(attempts) == {1: told[1]}
    assert told[1] > FOUND
    assert errors_of_early(such(*FIRST)) == {}


WAITS, COMPUTES = MEASUREMENT.waiting_processes, MEASUREMENT.computing_processes


@pytest.mark.parametrize(
    ("recorded", "known"),
    [
        ([WAITS, COMPUTES, COMPUTES], [COMPUTES, COMPUTES, COMPUTES]),
        ([WAITS, COMPUTES], [WAITS, COMPUTES]),
        ([WAITS, WAITS, COMPUTES], [WAITS, WAITS, COMPUTES]),
    ],
    ids=["most runs compute", "one of two", "most runs wait"],
)
def test_trial_of_a_graph_waits_for_its_host_unless_most_of_its_runs_compute(
    recorded: list[float], known: list[float]
) -> None:
    own = attempt(Purpose.SEARCH, WAITS)
    trials = [
        attempt(Purpose.SEARCH, sigma, trial=number, micro_batch=32, log_interval=number)
        for number, sigma in enumerate(recorded, 1)
    ]
    assert noise(such(own, *trials)) == [WAITS, *known]


def test_runs_of_another_graph_tell_nothing_of_waiting() -> None:
    own, waiting = (
        attempt(Purpose.SEARCH, COMPUTES),
        attempt(Purpose.SEARCH, WAITS, trial=1, micro_batch=32),
    )
    others = [
        attempt(Purpose.SEARCH, COMPUTES, trial=number, micro_batch=32, compile="default")
        for number in (2, 3)
    ]
    assert noise(such(own, waiting, *others)) == [COMPUTES, WAITS, COMPUTES, COMPUTES]


def test_baseline_that_seemed_to_wait_stays_the_reference() -> None:
    own = attempt(Purpose.SEARCH, WAITS)
    others = [attempt(Purpose.SEARCH, COMPUTES, trial=n, pin_memory=True) for n in (1, 2)]
    assert noise(such(own, *others)) == [WAITS, COMPUTES, COMPUTES]


@pytest.mark.parametrize("alike, other", [(COMPUTES, WAITS), (WAITS, COMPUTES)])
def test_noise_that_steps_tell_is_of_their_own_trial_alone(alike: float, other: float) -> None:
    own, early = (
        attempt(Purpose.SEARCH, alike),
        attempt(Purpose.SEARCH, alike, trial=1, micro_batch=8),
    )
    again = attempt(Purpose.CALIBRATE, alike)
    later = attempt(Purpose.SEARCH, other, trial=2, micro_batch=16)
    assert noise(such(own, early, again, later)) == [alike, alike, alike, other]


def test_what_turns_make_of_the_baseline_widens_what_steps_tell() -> None:
    own, early = (
        attempt(Purpose.SEARCH, COMPUTES),
        attempt(Purpose.SEARCH, WAITS, trial=1, micro_batch=8),
    )
    beside = attempt(Purpose.PAIRED, COMPUTES, round_=2, rate=80.0)
    paired = attempt(Purpose.SEARCH, COMPUTES, trial=2, micro_batch=16)
    off = pytest.approx(math.hypot(WAITS, math.log(1.25)))
    assert noise(such(own, early, beside, paired)) == [COMPUTES, off, COMPUTES, COMPUTES]


def test_early_trial_whose_steps_told_nothing_gets_no_noise_of_other_steps() -> None:
    again = attempt(Purpose.CALIBRATE, FOUND)
    later = attempt(Purpose.SEARCH, WAITS, trial=2, micro_batch=16)
    assert noise(such(*FIRST, again, later)) == [ASSUMED, FOUND, FOUND, WAITS]
