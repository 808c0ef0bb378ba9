"""When the baseline runs again, from the records alone."""

import itertools
from dataclasses import replace

import pytest

from autotune.measurement.measure import ENERGY, Measure
from autotune.measurement.policy import MEASUREMENT
from autotune.study.calibration import Calibration
from search_spaces import defaults
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt, StoredBlock
from tests.support.records import in_order

BASELINE = defaults()
NUMBERS = itertools.count(1)
HERE, THERE, BEYOND = 1, 2, 3


def attempt(purpose, *, state="COMPLETE", rate=100.0, environment=HERE, **knobs):
    figures = {"throughput": rate, "block_half_width": 0.0} if state == "COMPLETE" else {}
    number = next(NUMBERS)
    result = AttemptResult(AttemptState(state), **figures)
    at = 60.0 * number
    where = environment if state not in ("RUNNING", "ABANDONED") else None
    return StoredAttempt(number, 0, purpose, 0, 1, {**BASELINE, **knobs}, at, at + 1, result, where)


def such(*attempts):
    return Attempts(in_order(*attempts), BASELINE)


def baseline_and(*others):
    return such(attempt(Purpose.SEARCH), *others)


def again(**changes):
    return attempt(Purpose.CALIBRATE, **changes)


PLAN = Calibration(first_runs=3, prior_sigma=None, blocks=lambda _: ())


def due(attempts, *, slots=(HERE,), under_way=(), plan=PLAN):
    return plan.due(attempts, slots, under_way)


def test_nothing_runs_again_before_the_baseline_has_a_figure():
    assert due(such()) == []
    assert due(such(attempt(Purpose.SEARCH, state="OOM"))) == []
    assert due(such(attempt(Purpose.SEARCH, micro_batch=64))) == []
    running = such(attempt(Purpose.SEARCH, state="RUNNING"))
    assert due(running, under_way=[HERE]) == []


def trials(count, **changes):
    return [attempt(Purpose.SEARCH, micro_batch=64, **changes) for _ in range(count)]


def test_the_first_runs_come_once_three_more_trials_are_there():
    assert due(baseline_and(*trials(2))) == []
    assert due(baseline_and(*trials(3))) == [HERE]
    assert due(baseline_and(*trials(3), again())) == [HERE]
    assert due(baseline_and(*trials(3), again(), again())) == []


def test_a_run_that_is_under_way_or_failed_is_not_asked_for_twice_and_a_lost_one_is():
    under_way = again(state="RUNNING")
    assert due(baseline_and(*trials(3), under_way, again(state="ERROR")), under_way=[HERE]) == []
    assert due(baseline_and(*trials(3), again(state="LOST"), again())) == [HERE]
    assert due(baseline_and(*trials(3), again(state="ABANDONED"), again())) == [HERE]


def test_another_run_every_eight_trials_shows_drift():
    three = baseline_and(again(), again())
    eight = trials(8)
    assert due(such(*three, *eight)) == [HERE]
    assert due(such(*three, *eight, again())) == []
    assert due(such(*three, *eight[:7])) == []


def test_it_runs_once_on_every_other_node_and_there_as_soon_as_it_runs_at_all():
    slots = [HERE, THERE, HERE, BEYOND]
    begun = such(attempt(Purpose.SEARCH, state="RUNNING"))
    assert due(begun, slots=slots, under_way=[HERE]) == [THERE, BEYOND]
    assert due(begun, slots=slots, under_way=[HERE, THERE]) == [BEYOND]
    there = again(environment=THERE)
    assert due(baseline_and(there), slots=slots) == [BEYOND]
    assert due(baseline_and(there, *trials(3)), slots=slots) == [BEYOND, HERE]
    everywhere = [again(), again(), there, again(environment=BEYOND, state="ERROR")]
    assert due(baseline_and(*everywhere), slots=slots) == []


def test_who_has_moved_measures_the_noise_there():
    moved = baseline_and(*trials(3), again(), again())
    assert due(moved, slots=[THERE]) == [THERE]
    first = again(environment=THERE)
    assert due(such(*moved, first), slots=[THERE]) == []
    there = trials(3, environment=THERE)
    assert due(such(*moved, first, *there), slots=[THERE]) == [THERE]
    assert PLAN.noise(such(*moved, first)).runs == 3, (
        "one run shows none: it is still that of before"
    )
    second = again(environment=THERE)
    assert PLAN.noise(such(*moved, first, second)).runs == 2
    third = again(environment=THERE)
    assert due(such(*moved, first, *there, second), slots=[THERE]) == [THERE]
    assert due(such(*moved, first, *there, second, third), slots=[THERE]) == []


def test_who_moves_late_does_not_make_up_for_what_was_measured_before():
    began = baseline_and()
    moved = such(*began, *trials(80), *(again() for _ in range(12)))
    first, *more = [again(environment=THERE) for _ in range(3)]
    there = such(*moved, first, *trials(3, environment=THERE))
    assert due(such(*there, *more[:1]), slots=[THERE]) == [THERE]
    assert due(such(*there, *more), slots=[THERE]) == []
    five = trials(5, environment=THERE)
    assert due(such(*there, *more, *five), slots=[THERE]) == [THERE]


def test_a_node_that_loses_it_twice_is_left_alone():
    own = baseline_and(again(), again())
    lost = [again(environment=THERE, state="LOST") for _ in range(2)]
    assert due(such(*own, lost[0]), slots=[HERE, THERE]) == [THERE]
    assert due(such(*own, *lost), slots=[HERE, THERE]) == []


def test_one_run_means_never_again():
    never = Calibration(first_runs=1, prior_sigma=None, blocks=lambda _: ())
    twenty = trials(20)
    assert due(baseline_and(*twenty), slots=[HERE, THERE], plan=never) == []
    assert never.noise(baseline_and(*twenty)).sigma_run == MEASUREMENT.prior_sigma


def test_noise_is_that_of_the_baseline_alone_and_begins_with_what_is_known():
    known = Calibration(first_runs=3, prior_sigma=0.004, blocks=lambda _: ())
    assert known.noise(such()).sigma_run == 0.004
    runs = baseline_and(again(rate=110.0), again(rate=90.0), again(state="ERROR"))
    others = [attempt(Purpose.SEARCH, micro_batch=64, rate=500.0)]
    found = known.noise(such(*runs, *others))
    assert found.runs == 3
    assert found.sigma_run == pytest.approx(0.071, abs=0.005)


def test_exactness_of_an_earlier_version_is_that_of_what_the_study_compares_by():
    """Its runs have no degrees of freedom of their own: blocks have, here of an energy that drifts."""
    seconds = [1.0 + 0.01 * (-1) ** index for index in range(12)]
    blocks = [
        StoredBlock(
            index, 4, 16, 0, each, [each], 0.0, 1.0, 0, kept=True, observed={ENERGY: joules}
        )
        for index, (each, joules) in enumerate(zip(seconds, range(100, 124, 2), strict=True))
    ]
    plan = Calibration(3, None, lambda _: blocks, Measure(of_energy=True))

    def noise(freedom):
        runs = baseline_and(again(rate=110.0), again(rate=90.0))
        told = {"block_half_width": 0.1, "block_freedom": freedom}
        each = [replace(run, result=replace(run.result, **told)) for run in runs]
        return plan.noise(such(*each))

    assert noise(None) == noise(2.0) != noise(11.0)
