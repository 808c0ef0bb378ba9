"""When a search ends because another trial is not worth its cost."""

import numpy as np
import pytest

from autotune.search.performance_model import Prediction
from autotune.spec import BudgetSpec
from autotune.study.budget import Budget

SIGMA = 0.01


def expecting(gain=0.0, left=0.0, surprise=1.0):
    """A prediction that nine draws in ten have so much left."""
    draws = np.where(np.arange(100) < 90, left, 0.0)
    return Prediction({}, 1.0, (), gain, draws, surprise)


def reasons(predictions, first=6, **limits):
    budget = Budget(BudgetSpec(**limits), 2)
    return [
        budget.why_not_worth_it(one, number, SIGMA) for number, one in enumerate(predictions, first)
    ]


def test_two_in_a_row_end_the_search():
    assert [bool(reason) for reason in reasons([expecting()] * 3)] == [False, True, True]
    between = [expecting(), expecting(gain=0.1), expecting(), expecting()]
    assert [bool(reason) for reason in reasons(between)] == [False, False, False, True]


def test_the_same_trials_asked_twice_are_no_two_in_a_row():
    budget = Budget(BudgetSpec(), 2)
    assert not any(budget.why_not_worth_it(expecting(), 6, SIGMA) for _ in range(3))


@pytest.mark.parametrize(
    "worth",
    [{"gain": 0.006}, {"left": 0.03}, {"surprise": 4.0}],
    ids=["a trial would bring much", "much may be left", "the model does not hold"],
)
def test_the_search_goes_on_while(worth):
    assert not any(reasons([expecting(**worth)] * 4))


def test_not_before_six_trials_nor_where_nobody_asks_for_it():
    assert not any(reasons([expecting()] * 5, first=1))
    assert not any(reasons([expecting()] * 4, least_gain=0))
    assert not any(reasons([None] * 4))


def test_who_wants_large_gains_only_is_content_sooner():
    large = [expecting(gain=0.2, left=0.2)] * 2
    assert not any(reasons(large))
    assert "are worth it (budget.least_gain 30.00%" in reasons(large, least_gain=0.3)[-1]
