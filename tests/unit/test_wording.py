"""Figures in words."""

import pytest

from autotune.analysis.wording import quantity
from autotune.views.sections import change_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (5e-5, "0.00005"),
        (0.0123456, "0.0123"),
        (2.0, "2"),
        (99.96, "100"),
        (1234.5, "1,234"),
    ],
)
def test_quantity_has_its_meaningful_digits_without_an_exponent(value: float, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1e-16, "0"), (-1e-16, "0"), (-0.5, "−0.5"), (5e-5, "+0.00005")]
)
def test_error_of_the_arithmetic_is_no_change(value: float, text: str) -> None:
    assert change_text(value) == text
