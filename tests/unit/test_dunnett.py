"""Which of several is the best."""

import numpy as np
import pytest
from scipy import special

from autotune.measurement.contrasts import critical_value


def test_with_one_rival_it_is_student():
    for df in (3, 10, 40):
        for sure in (0.95, 0.99999):
            assert critical_value(1, df, sure) == special.stdtrit(df, sure)


@pytest.mark.parametrize(
    ("rivals", "df", "expected"), [(2, 10, 2.15), (3, 12, 2.29), (4, 20, 2.30), (3, 120, 2.08)]
)
def test_the_table_of_dunnett(rivals, df, expected):
    """Dunnett 1955, table 1a, one-sided 95 %."""
    assert critical_value(rivals, df, 0.95) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("rivals", "df", "sure", "expected"),
    [(2, 2, 0.95, 3.804), (4, 8, 0.999, 5.450), (3, 4, 0.9999, 16.197), (2, 2, 0.9995, 40.09)],
)
def test_far_out_in_the_tail_where_the_first_of_many_looks_is(rivals, df, sure, expected):
    """By adaptive integration over both variables."""
    assert critical_value(rivals, df, sure) == pytest.approx(expected, rel=0.003)


def test_nothing_to_compare_with_and_nothing_known():
    assert critical_value(0, 5, 0.95) == 0.0
    assert critical_value(2, 0, 0.95) == np.inf
