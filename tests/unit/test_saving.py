"""Time and money that a recommendation saves."""

import pytest

from autotune.analysis.saving import Cost, Saving
from autotune.measurement.estimate import Ratio
from autotune.views.figure_text import ratio_text, short_ratio

COST = Cost.of(360.0, world_size=8, price=2.0)


def test_cost_counts_every_rank() -> None:
    assert (COST.device_hours, COST.money) == (pytest.approx(0.8), pytest.approx(1.6))
    assert Cost.of(360.0, world_size=8, price=None).money is None


def test_saving_of_a_job_has_the_bounds_of_its_speed_up() -> None:
    found = Saving.of(Ratio(1.25, 1.2, 1.3), COST, job_hours=100.0, world_size=8, price=2.0)
    assert found is not None and found.money is not None
    assert found.hours.value == pytest.approx(20.0)
    assert found.hours.low == pytest.approx(100.0 * (1 - 1 / 1.2))
    assert found.hours_per_day.value == pytest.approx(4.8)
    assert found.money.value == pytest.approx(320.0)
    assert found.payback_seconds == pytest.approx(360.0 / 0.25)


def test_saving_of_a_vague_speed_up_is_that_of_its_lower_bound() -> None:
    found = Saving.of(Ratio(2.0, 1.25, 8.0), COST, job_hours=100.0, world_size=8, price=None)
    assert found is not None
    assert found.hours.value == found.hours.low == pytest.approx(20.0)
    assert found.money is None


def test_speed_up_that_may_be_none_saves_nothing() -> None:
    assert Saving.of(Ratio(1.1, 0.99, 1.2), COST, 100.0, 8, None) is None


@pytest.mark.parametrize(
    ("ratio", "text", "short"),
    [
        (Ratio(1.14, 1.10, 1.19), "1.14x (1.10 to 1.19)", "1.14x (1.10 to 1.19)"),
        (Ratio(1.14, 0.52, 2.49), "not distinguishable from 1 (0.52 to 2.49)", "? (0.52 to 2.49)"),
        (Ratio(0.9, 0.85, 0.95), "0.90x (0.85 to 0.95)", "0.90x (0.85 to 0.95)"),
        (Ratio(1.3, 0.0, float("inf")), "1.30x, once", "1.30x, once"),
        (Ratio(1.0, 1.0, 1.0), "1.00x", "1.00x"),
    ],
    ids=["known", "unknown", "slower", "once", "itself"],
)
def test_ratio_whose_interval_contains_one_has_no_figure(
    ratio: Ratio, text: str, short: str
) -> None:
    assert ratio_text(ratio) == text
    assert short_ratio(ratio) == short
