"""How much error a look may spend."""

import numpy as np
import pytest
from scipy import special

from autotune.measurement.group_sequential import error_spent, look_level


def levels(looks, most, error):
    return [look_level(looks[: number + 1], most, error) for number in range(len(looks))]


def test_all_the_error_is_spent_when_all_rounds_are_there():
    assert error_spent(0.0, 0.025) == 0.0
    assert error_spent(1.0, 0.025) == pytest.approx(0.025)
    assert error_spent(7.0, 0.025) == error_spent(1.0, 0.025)


def test_a_single_look_at_the_end_is_an_ordinary_test():
    assert look_level([10], 10, 0.025) == pytest.approx(0.025, rel=1e-6)


@pytest.mark.parametrize(("looks", "most"), [([3, 5, 8, 10], 10), (list(range(3, 11)), 10)])
def test_equals_are_called_different_as_often_as_allowed(looks, most):
    """Two hundred thousand comparisons without a difference."""
    generator = np.random.default_rng(0)
    sums = generator.standard_normal((200_000, most)).cumsum(axis=1)
    seen = np.stack([sums[:, look - 1] / np.sqrt(look) for look in looks], axis=1)
    crossed = seen > -special.ndtri(levels(looks, most, 0.025))
    for number, look in enumerate(looks, 1):
        so_far = crossed[:, :number].any(axis=1).mean()
        assert so_far == pytest.approx(error_spent(look / most, 0.025), abs=0.0012)


def test_of_five_looks_the_first_spends_a_twenty_fifth_and_the_last_less_than_a_single_one():
    """Kim and DeMets's spending: what the first look spends is its level; later ones build on it."""
    found = levels([1, 2, 3, 4, 5], 5, 0.025)
    assert found[0] == pytest.approx(0.025 / 25, rel=1e-6)
    assert found == sorted(found)
    assert 0.016 < found[-1] < 0.025
