"""What runs cost, by those that are recorded."""

import pytest

from autotune.analysis.costs import Costs, Pace
from autotune.measurement.settling import Onset
from search_spaces import defaults

BASELINE = defaults()
BATCHES = {**BASELINE, "micro_batch": 16}
BUCKETS = {**BASELINE, "bucket_cap_mb": 1}
LAUNCH, SWITCH, TRAINED = 30.0, 0.1, 8.0


def pace(startup: float, trained: float = TRAINED, *, live: bool = False) -> Pace:
    return Pace(BASELINE, startup, Onset(0.5, 0.2), False, 8.0, trained, live)


def test_before_anything_is_known_all_trials_cost_the_same() -> None:
    costs = Costs([])
    assert costs.expected(BATCHES, None) == costs.expected(BUCKETS, BASELINE) > 0


def test_a_trial_costs_its_launch_and_what_trials_take() -> None:
    costs = Costs([pace(LAUNCH)])
    assert costs.expected(BATCHES, None) == LAUNCH + TRAINED


def test_a_launch_is_spared_where_a_resident_can_take_it_over() -> None:
    costs = Costs([pace(LAUNCH)])
    assert costs.expected(BATCHES, BASELINE) == TRAINED
    assert costs.expected(BUCKETS, BASELINE) == LAUNCH + TRAINED


def test_a_switch_costs_what_switches_have_cost() -> None:
    costs = Costs([pace(LAUNCH), *[pace(SWITCH, 2.0, live=True)] * 3])
    assert costs.startup == LAUNCH
    assert costs.expected(BATCHES, BASELINE) == pytest.approx(SWITCH + 2.0)
    assert costs.expected(BATCHES, None) == LAUNCH + TRAINED


def test_long_steps_take_as_long_as_they_take() -> None:
    costs = Costs([pace(LAUNCH)])
    long = {**BASELINE, "micro_batch": 800}
    assert costs.expected(long, None) == pytest.approx(LAUNCH + 3 * 20.0)


def test_first_steps_in_processes_that_are_there_tell_nothing_of_others() -> None:
    slow = Pace(BASELINE, LAUNCH, Onset(4.0, 0.2), False, 8.0, TRAINED)
    costs = Costs([slow, *[pace(SWITCH, live=True)] * 9])
    assert costs.settling == Costs([slow]).settling
