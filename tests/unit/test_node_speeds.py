"""Rates of several nodes, by what the baseline runs at on each."""

import itertools
import math

import pytest

from autotune.analysis.batches import best_per_batch
from autotune.analysis.finalists import ranked
from autotune.analysis.node_speeds import NodeSpeeds, at_home_speed
from autotune.analysis.outcomes import SearchBest
from search_spaces import defaults
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt

BASELINE = defaults()
HOME, FAR, NEW = 1, 2, 3
NUMBERS = itertools.count(1)
SURE = {"block_half_width": 1e-6, "sigma_run": 0.0}


def run(rate, environment=HOME, purpose=Purpose.CALIBRATE, doubt=SURE, trial=0, **knobs):
    result = AttemptResult(AttemptState.COMPLETE, throughput=rate, **doubt)
    number = next(NUMBERS)
    every = {**BASELINE, **knobs}
    return StoredAttempt(
        number, trial, purpose, 0, 1, every, number, number + 1, result, environment
    )


def own(rate=100.0, **more):
    return run(rate, purpose=Purpose.SEARCH, **more)


def trial(number, rate, environment):
    return run(rate, environment, Purpose.SEARCH, trial=number, micro_batch=2**number)


def such(*attempts):
    return Attempts(attempts, BASELINE)


def test_on_one_node_nothing_changes():
    attempts = such(own(), run(90.0), trial(1, 120.0, HOME))
    assert all(one is before for one, before in zip(at_home_speed(attempts), attempts, strict=True))


def test_a_rate_is_what_it_would_be_where_the_baseline_ran_first():
    attempts = such(own(), run(80.0, FAR), trial(1, 90.0, FAR), trial(2, 110.0, HOME))
    assert [one.result.throughput for one in at_home_speed(attempts)] == pytest.approx(
        [100.0, 100.0, 112.5, 110.0]
    )
    assert [one.trial for one in ranked(attempts)] == [1, 2, 0]


def test_what_is_told_of_trials_seen_once_is_of_such_rates():
    attempts = such(own(), run(80.0, FAR), trial(1, 90.0, FAR), trial(2, 110.0, HOME))
    assert SearchBest.of(attempts, None, ()).ratio.value == pytest.approx(1.125)
    told = {one.trial: one for one in best_per_batch(attempts, 2, {})}
    assert told[1].throughput == pytest.approx(112.5)
    assert told[1].speedup.value == pytest.approx(1.125)


def test_little_knowledge_of_a_node_counts_for_little():
    rough = {"block_half_width": 0.0, "sigma_run": 0.08}
    once = NodeSpeeds.of(such(own(), run(80.0, FAR, doubt=rough))).at(FAR)
    # As sure of the run as of nodes: half of what was seen.
    assert once.factor == pytest.approx(math.sqrt(1 / 0.8), rel=1e-3)
    assert once.error == pytest.approx(0.08 * math.sqrt(0.5), rel=1e-3)
    often = NodeSpeeds.of(such(own(), *(run(80.0, FAR, doubt=rough) for _ in range(9)))).at(FAR)
    assert once.factor < often.factor < 1 / 0.8
    assert often.error < once.error


def test_machines_that_are_not_alike_are_not_taken_for_nearly_alike():
    rough = {"block_half_width": 0.0, "sigma_run": 0.02}
    speed = NodeSpeeds.of(such(own(), run(50.0, FAR, doubt=rough))).at(FAR)
    assert speed.factor == pytest.approx(2.0)
    assert speed.error == pytest.approx(0.02, rel=1e-3)


def test_a_trial_is_stopped_early_for_being_slow_and_not_for_its_node():
    rough = {"block_half_width": 0.0, "sigma_run": 0.02}
    speeds = NodeSpeeds.of(such(own(), run(80.0, FAR, doubt=rough), trial(1, 1.0, NEW)))
    assert speeds.at(HOME).least(100.0) == 100.0
    assert 75.0 < speeds.at(FAR).least(100.0) < 80.0
    assert speeds.at(NEW).least(100.0) < 90.0, "nothing is known of it"


def test_of_a_node_on_which_it_has_not_run_nothing_but_doubt_is_known():
    attempts = such(own(), trial(1, 90.0, NEW))
    speed = NodeSpeeds.of(attempts).at(NEW)
    assert speed.factor == 1.0
    *_, changed = at_home_speed(attempts)
    assert changed.result.throughput == 90.0
    assert changed.result.sigma_run == pytest.approx(speed.error)


def test_before_the_baseline_has_run_several_nodes_are_all_in_doubt():
    assert NodeSpeeds.of(such(trial(1, 90.0, FAR))).at(FAR) == (1.0, 0.0)
    several = NodeSpeeds.of(such(trial(1, 90.0, FAR), trial(2, 90.0, NEW)))
    assert several.at(FAR) == several.at(NEW)
    assert several.at(FAR).factor == 1.0
    assert several.at(FAR).error > 0.05
