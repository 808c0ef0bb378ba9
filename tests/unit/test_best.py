"""Which of several is the best."""

import numpy as np
import pytest
from scipy import special

from autotune.measurement.best import chances, comparison


def test_with_one_rival_it_is_student():
    for freedom in (3, 10, 40):
        assert comparison(1, freedom) == pytest.approx(special.stdtrit(freedom, 0.95), rel=0.02)


@pytest.mark.parametrize(
    ("rivals", "freedom", "expected"), [(2, 10, 2.15), (3, 12, 2.29), (4, 20, 2.30), (3, 120, 2.08)]
)
def test_the_table_of_dunnett(rivals, freedom, expected):
    """Dunnett 1955, table 1a, one-sided 95 %."""
    assert comparison(rivals, freedom) == pytest.approx(expected, abs=0.02)


def test_nothing_to_compare_with_and_nothing_known():
    assert comparison(0, 5) == 0.0
    assert comparison(2, 0) == np.inf


def test_the_chance_to_be_the_best_is_counted_right():
    means, errors = [0.0, 0.01, 0.02, -0.05], [0.02, 0.01, 0.01, 0.001]
    draws = np.random.default_rng(0).normal(means, errors, (200_000, 4))
    counted = np.bincount(draws.argmax(axis=1), minlength=4) / len(draws)
    assert chances(means, errors) == pytest.approx(counted, abs=0.005)


def test_equals_have_equal_chances():
    assert chances([3.0] * 5, [0.1] * 5) == pytest.approx([0.2] * 5, abs=1e-6)
