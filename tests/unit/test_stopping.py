"""When a search ends because another trial is not worth its cost."""

from datetime import datetime, timedelta

import numpy as np
import optuna
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, TrialState

from autotune.config import BudgetSpec
from autotune.search.performance_model import Prediction
from autotune.study.policy import STUDY
from autotune.study.stopping import Budget, ExpectedGainStopping, TrialEconomics
from search_spaces import defaults
from storage import (
    AttemptResult,
    Attempts,
    AttemptState,
    Purpose,
    SearchEndCause,
    StoredAttempt,
)

SIGMA = 0.01
DAY = 24.0


def expecting(gain=0.0, left=0.0, surprise=1.0):
    """A prediction that nine draws in ten have so much left."""
    draws = np.where(np.arange(100) < 90, left, 0.0)
    return Prediction({}, 1.0, (), gain, draws, surprise, 10)


def trials(rates) -> list[FrozenTrial]:
    """One after another, failed where there is no rate."""
    began = datetime(2026, 1, 1)
    made = []
    for number, rate in enumerate(rates):
        trial = optuna.trial.create_trial(
            params={"x": number},
            distributions={"x": IntDistribution(0, 1000)},
            value=rate,
            state=TrialState.FAIL if rate is None else TrialState.COMPLETE,
        )
        trial.number = number
        trial.datetime_complete = began + timedelta(seconds=number)
        made.append(trial)
    return made


def reasons(
    predictions, first=6, *, seconds=1.0, rounds=10, expected_job_hours=168.0, min_improvement=None
):
    """After each trial from this one on, asked anew each time, as a daemon that has just begun."""
    known = dict(enumerate(predictions, first))
    found = []
    for number in known:
        worth = ExpectedGainStopping(
            TrialEconomics(expected_job_hours, rounds, min_improvement),
            lambda some: known.get(len(some)),
        )
        end = worth.why_enough(trials([100.0] * number), seconds, SIGMA)
        found.append(end.text if end else "")
    return found


def test_two_in_a_row_end_the_search():
    assert [bool(reason) for reason in reasons([expecting()] * 3)] == [False, True, True]
    between = [expecting(), expecting(gain=0.1), expecting(), expecting()]
    assert [bool(reason) for reason in reasons(between)] == [False, False, False, True]


def test_the_same_trials_asked_twice_are_no_two_in_a_row():
    now = {6: expecting(gain=0.1), 7: expecting()}
    worth = ExpectedGainStopping(TrialEconomics(168.0, 10), lambda some: now[len(some)])
    assert not any(worth.why_enough(trials([100.0] * 7), 1.0, SIGMA) for _ in range(3))


def test_which_trial_was_the_last_is_told_by_their_ends():
    several = trials([100.0] * 8)
    several[2].datetime_complete = several[-1].datetime_complete + timedelta(seconds=1)
    asked = []

    def predict(some):
        asked.append({trial.number for trial in some})
        return expecting()

    assert ExpectedGainStopping(TrialEconomics(168.0, 10), predict).why_enough(several, 1.0, SIGMA)
    assert asked[-1] == set(range(8)) - {2}


@pytest.mark.parametrize(
    "worth",
    [{"gain": 0.006}, {"left": 0.03}, {"surprise": 4.0}],
    ids=["a trial would bring much", "much may be left", "the model does not hold"],
)
def test_the_search_goes_on_while(worth):
    assert not any(reasons([expecting(**worth)] * 4))


def test_not_before_six_trials_nor_where_nobody_asks_for_it():
    assert not any(reasons([expecting()] * 6, first=1))
    assert not any(reasons([expecting()] * 4, min_improvement=0))
    assert not any(reasons([None] * 4))


def test_who_wants_large_gains_only_is_content_sooner():
    large = [expecting(gain=0.2, left=0.2)] * 2
    assert not any(reasons(large))
    assert "are worth it (budget.min_improvement 30.00%" in reasons(large, min_improvement=0.3)[-1]


def test_gain_that_is_next_to_nothing_is_told_as_less_than_the_finest_figure():
    told = reasons([expecting(gain=0.00001)] * 2)[-1]
    assert told.startswith("another trial is expected to bring less than 0.01%, less than the ")


def test_a_trial_has_to_pay_for_itself_within_the_job():
    twice = [expecting(gain=0.01)] * 2
    minutes = 10 * 60.0  # of a day they are 0.7 %
    assert not any(reasons(twice, seconds=minutes, expected_job_hours=DAY))
    assert not any(reasons(twice, seconds=2 * minutes, expected_job_hours=7 * DAY))
    told = reasons(twice, seconds=2 * minutes, expected_job_hours=DAY)[-1]
    assert "another trial is expected to bring 1.00%, less than the 1.39% that are worth it" in told
    assert "(1.2e+03 s are 0.014 of a job of 24 hours, objective.expected_job_hours" in told


def test_what_the_confirmation_cannot_show_is_worth_nothing_however_long_the_job():
    economics = TrialEconomics(1e6, 10)
    assert economics.visible(SIGMA) == pytest.approx(1.96 * SIGMA * (2 / 10) ** 0.5)
    assert economics.least(1.0, SIGMA) == pytest.approx(0.1 * economics.visible(SIGMA))
    little = [expecting(gain=0.9 * economics.least(1.0, SIGMA))] * 2
    assert reasons(little, expected_job_hours=1e6)[-1]
    # More rounds show more.
    assert not any(reasons(little, expected_job_hours=1e6, rounds=50))


def never(_: object) -> Prediction:
    """A model that does not hold, and expects much."""
    return expecting(gain=1.0, left=1.0, surprise=100.0)


@pytest.mark.parametrize(
    ("rates", "ends"),
    [
        ([100.0] * 59, False),
        ([100.0] * 60, True),
        ([100.0] * 59 + [103.0], False),
        ([100.0] + [None] * 59, True),
        ([None] * 60, True),
        ([None] * 59 + [1.0], False),
        ([100.0 + number for number in range(100)], False),
    ],
    ids=["few", "the same", "better", "fails", "all fail", "runs at last", "climbs"],
)
def test_a_model_that_does_not_hold_ends_with_what_trials_bring(rates, ends):
    found = ExpectedGainStopping(TrialEconomics(168.0, 10), never).why_enough(
        trials(rates), 1.0, SIGMA
    )
    assert bool(found) is ends
    assert not ExpectedGainStopping(TrialEconomics(168.0, 10, 0.0), never).why_enough(
        trials(rates), 1.0, SIGMA
    )


def test_end_by_the_cost_of_a_trial_and_by_the_gain_asked_for_are_two_causes():
    def cause(min_improvement):
        rule = ExpectedGainStopping(TrialEconomics(168.0, 10, min_improvement), never)
        end = rule.why_enough(trials([100.0] * 60), 1.0, SIGMA)
        return end and end.cause

    assert cause(None) == SearchEndCause.NOT_WORTH_IT
    assert cause(0.1) == SearchEndCause.MIN_IMPROVEMENT
    assert cause(0.0) is None


def test_search_whose_trials_all_end_in_an_error_ends_for_that():
    failed = trials([None] * STUDY.broken_after)
    for trial in failed:
        trial.set_user_attr("end", AttemptState.ERROR)
    budget = Budget(BudgetSpec(trials=1000), world_size=1)
    end = budget.why_spent(failed, Attempts([], {}, ()))
    assert end is not None and end.cause == SearchEndCause.ALL_FAIL
    assert budget.why_spent(failed[1:], Attempts([], {}, ())) is None


@pytest.mark.parametrize(
    ("ends", "is_over"),
    [
        ([AttemptState.OOM] * 20, True),
        ([AttemptState.OOM, *[AttemptState.ERROR] * 19], True),
        ([AttemptState.PRUNED, *[AttemptState.CRASH] * 19], True),
        ([AttemptState.OOM, *[AttemptState.ERROR] * 18], False),
        ([AttemptState.COMPLETE, *[AttemptState.OOM] * 30], False),
    ],
)
def test_search_without_a_trial_that_runs_ends_whatever_they_fail_by(ends, is_over):
    ended = trials([1.0 if end == AttemptState.COMPLETE else None for end in ends])
    for trial, end in zip(ended, ends, strict=True):
        trial.set_user_attr("end", end)
    budget = Budget(BudgetSpec(min_improvement=0.0), world_size=1)
    found = budget.why_spent(ended, Attempts([], {}, ()))
    assert (found is not None and found.cause == SearchEndCause.ALL_FAIL) is is_over


def test_device_hours_have_what_running_trials_usually_take():
    def told(number, state, seconds):
        result = AttemptResult(state, wall_seconds=seconds)
        where = None if state == AttemptState.RUNNING else 1
        return StoredAttempt(
            number, number, Purpose.SEARCH, 0, 1, defaults(), number, None, result, where
        )

    budget = Budget(BudgetSpec(device_hours=1.0), world_size=2)
    ended = [told(number, AttemptState.COMPLETE, 450.0) for number in range(3)]
    running = told(3, AttemptState.RUNNING, 0.0)
    begun = trials([1.0] * 4)
    assert budget.why_spent(begun[:3], Attempts(ended, defaults())) is None
    begun[3].state = TrialState.RUNNING
    end = budget.why_spent(begun, Attempts([*ended, running], defaults()))
    assert end is not None and end.cause == SearchEndCause.DEVICE_HOURS
    assert end.text == "the budget of 1 device hours will be spent by what runs"


def test_speed_of_a_trial_that_may_not_be_recommended_hides_no_later_gains():
    rates = [1.0, 2.0, *[1.0] * 29, *[1.0 + 0.01 * step for step in range(29)]]
    rule = ExpectedGainStopping(TrialEconomics(168, 10), lambda _: None)
    assert rule.why_enough(trials(rates), 30.0, SIGMA) is not None
    assert rule.why_enough(trials(rates), 30.0, SIGMA, barred={1}) is None
