"""Which of several is the best."""

import numpy as np
import pytest
from scipy import special

from autotune.measurement.best import comparison


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
