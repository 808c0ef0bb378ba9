"""When the baseline runs again, from the records alone."""

import itertools

import pytest

from autotune.analysis.calibration import Calibration
from autotune.measurement.noise import PRIOR_SIGMA
from search_spaces import defaults
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt

BASELINE = defaults()
NUMBERS = itertools.count(1)


def attempt(purpose, *, state="COMPLETE", rate=100.0, **knobs):
    figures = {"throughput": rate, "block_half_width": 0.0} if state == "COMPLETE" else {}
    number = next(NUMBERS)
    result = AttemptResult(AttemptState(state), **figures)
    at = 60.0 * number
    return StoredAttempt(number, 0, purpose, 0, 1, {**BASELINE, **knobs}, at, at + 1, result)


def such(*attempts):
    return Attempts(attempts, BASELINE)


def baseline_and(*others):
    return such(attempt(Purpose.SEARCH), *others)


def again(**changes):
    return attempt(Purpose.CALIBRATE, **changes)


PLAN = Calibration(first_runs=3, prior_sigma=None, blocks=lambda _: ())


def test_nothing_runs_again_before_the_baseline_has_a_figure():
    assert PLAN.due(such()) is None
    assert PLAN.due(such(attempt(Purpose.SEARCH, state="RUNNING"))) is None
    assert PLAN.due(such(attempt(Purpose.SEARCH, state="OOM"))) is None
    assert PLAN.due(such(attempt(Purpose.SEARCH, micro_batch=64))) is None


def test_the_first_runs_come_before_the_search_goes_on():
    assert PLAN.due(baseline_and()).knobs == BASELINE
    assert PLAN.due(baseline_and(again())) is not None
    assert PLAN.due(baseline_and(again(), again())) is None


def test_a_run_that_is_under_way_or_failed_is_not_asked_for_twice_and_a_lost_one_is():
    assert PLAN.due(baseline_and(again(state="RUNNING"), again(state="ERROR"))) is None
    assert PLAN.due(baseline_and(again(state="LOST"), again())) is not None
    assert PLAN.due(baseline_and(again(state="ABANDONED"), again())) is not None


def test_another_run_every_eight_trials_shows_drift():
    trials = [attempt(Purpose.SEARCH, micro_batch=64) for _ in range(7)]
    assert PLAN.due(baseline_and(again(), again(), *trials)) is not None
    assert PLAN.due(baseline_and(again(), again(), again(), *trials)) is None
    assert PLAN.due(baseline_and(again(), again(), *trials[:6])) is None


def test_one_run_means_never_again():
    never = Calibration(first_runs=1, prior_sigma=None, blocks=lambda _: ())
    trials = [attempt(Purpose.SEARCH, micro_batch=64) for _ in range(20)]
    assert never.due(baseline_and(*trials)) is None
    assert never.noise(baseline_and(*trials)).sigma_run == PRIOR_SIGMA


def test_noise_is_that_of_the_baseline_alone_and_begins_with_what_is_known():
    known = Calibration(first_runs=3, prior_sigma=0.004, blocks=lambda _: ())
    assert known.noise(such()).sigma_run == 0.004
    runs = baseline_and(again(rate=110.0), again(rate=90.0), again(state="ERROR"))
    others = [attempt(Purpose.SEARCH, micro_batch=64, rate=500.0)]
    found = known.noise(such(*runs, *others))
    assert found.runs == 3
    assert found.sigma_run == pytest.approx(0.071, abs=0.005)
