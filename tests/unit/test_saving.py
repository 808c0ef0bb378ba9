"""Time and money that a recommendation saves."""

import pytest

from autotune.analysis.saving import Cost, Saving
from autotune.analysis.wording import Rounding, Terms
from autotune.measurement.estimate import Ratio
from autotune.views.figure_text import (
    CI,
    UNKNOWN,
    bounds_text,
    claim,
    hours,
    least,
    percent,
    percent_form,
    ratio_text,
    saving_facts,
    short_ratio,
    signed_percent,
)

COST = Cost.of(360.0, world_size=8, price=2.0)


def test_cost_counts_every_rank() -> None:
    assert (COST.device_hours, COST.money) == (pytest.approx(0.8), pytest.approx(1.6))
    assert Cost.of(360.0, world_size=8, price=None).money is None


def test_saving_of_a_job_has_the_bounds_of_its_speed_up() -> None:
    found = Saving.of(
        Ratio(1.25, 1.2, 1.3), COST, expected_job_hours=100.0, world_size=8, price=2.0
    )
    assert found is not None and found.money is not None
    assert found.hours.value == pytest.approx(20.0)
    assert found.hours.low == pytest.approx(100.0 * (1 - 1 / 1.2))
    assert found.hours_per_day.value == pytest.approx(4.8)
    assert found.money.value == pytest.approx(320.0)
    paid = found.payback_seconds
    assert paid is not None
    assert (paid.low, paid.value, paid.high) == pytest.approx((1200.0, 1440.0, 1800.0))


def test_saving_of_a_vague_speed_up_is_that_of_its_estimate() -> None:
    found = Saving.of(
        Ratio(2.0, 1.25, 8.0), COST, expected_job_hours=100.0, world_size=8, price=None
    )
    assert found is not None
    assert (found.hours.low, found.hours.value) == pytest.approx((20.0, 50.0))
    assert found.money is None


@pytest.mark.parametrize("assumed", [True, False])
def test_facts_of_a_saving_have_its_estimate_its_interval_and_what_is_assumed(
    assumed: bool,
) -> None:
    speedup = Ratio(1.2, 1.026, 1.41)
    found = Saving.of(speedup, COST, expected_job_hours=168.0, world_size=8, price=None)
    assert found is not None
    facts = {fact.name: fact for fact in saving_facts(found, COST, assumed=assumed)}
    saves, paid = facts["saves"], facts["payback"]
    assert (saves.figure, saves.interval) == ("28 h of a job of 168 h", "4.2 h to 49 h")
    assert ("objective.expected_job_hours" in saves.note) == assumed
    assert (paid.figure, paid.interval) == ("30 min of training", "14 min to 3.9 h")


def test_speed_up_that_may_be_none_saves_nothing() -> None:
    assert Saving.of(Ratio(1.1, 0.99, 1.2), COST, 100.0, 8, None) is None


@pytest.mark.parametrize(
    ("ratio", "text", "short"),
    [
        (Ratio(1.14, 1.10, 1.19), "1.14x (1.10 to 1.19)", "1.14x (1.10 to 1.19)"),
        (Ratio(1.14, 0.52, 2.49), "not distinguishable from 1 (0.52 to 2.49)", "? (0.52 to 2.49)"),
        (Ratio(3.77, 0.001, 10_880.0), "not distinguishable from 1", "?"),
        (Ratio(0.9, 0.85, 0.95), "0.90x (0.85 to 0.95)", "0.90x (0.85 to 0.95)"),
        (Ratio(1.3, 0.0, float("inf")), "1.30x, once", "1.30x, once"),
        (Ratio(1.0, 1.0, 1.0), "1.00x", "1.00x"),
    ],
    ids=["known", "unknown", "hopeless", "slower", "once", "itself"],
)
def test_ratio_whose_interval_contains_one_has_no_figure(
    ratio: Ratio, text: str, short: str
) -> None:
    assert ratio_text(ratio) == text
    assert short_ratio(ratio) == short


def test_bounds_are_rounded_outwards() -> None:
    assert bounds_text(Ratio(1.2, 1.026, 1.4101)) == "1.02 to 1.42"
    assert bounds_text(Ratio(1.2, 1.1, 1.15)) == "1.10 to 1.15", "errors of floats do not count"
    assert bounds_text(Ratio(0.2, 1.026 - 1, 1.41 - 1), percent) == "2 to 41"
    assert bounds_text(Ratio(20.0, 4.26, 20.01), hours) == "4.2 h to 21 h"


@pytest.mark.parametrize(
    ("ratio", "text", "sure"),
    [
        (Ratio(1.14, 1.10, 1.19), "1.14x yours (1.10 to 1.19, 95 % CI)", ""),
        (
            Ratio(1.2, 1.026, 1.41),
            "1.20x yours (1.02 to 1.41, 95 % CI)",
            "The interval is wide: at least 1.02x is sure.",
        ),
        (
            Ratio(1.9, 1.004, 3.8),
            "1.90x yours (1.004 to 3.80, 95 % CI)",
            "That it is faster is sure, by how much is not.",
        ),
        (
            Ratio(1.14, 0.52, 2.49),
            "not distinguishable from yours (0.52 to 2.49, 95 % CI)",
            "",
        ),
        (Ratio(1.3, 0.0, float("inf")), "1.30x yours, seen once", ""),
    ],
    ids=["known", "wide", "very wide", "unknown", "once"],
)
def test_claim_begins_with_the_estimate_unless_its_interval_contains_one(
    ratio: Ratio, text: str, sure: str
) -> None:
    assert claim(ratio) == text
    assert least(ratio) == sure


@pytest.mark.parametrize(
    ("low", "sure"),
    [
        (1.05, "The interval is wide: at most 0.96x the energy is sure."),
        (1.01, "That it is more efficient is sure, by how much is not."),
    ],
)
def test_energy_that_is_surely_saved_is_rounded_outwards(low: float, sure: str) -> None:
    assert least(Ratio(1.2, low, 1.44), Terms.of("samples/J")) == sure


def test_small_difference_that_is_sure_is_told_with_a_decimal_more() -> None:
    small = Ratio(1.004, 1.002, 1.006)
    assert claim(small) == f"1.004x yours (1.002 to 1.006, {CI})"
    assert ratio_text(small) == "1.004x (1.002 to 1.006)"
    assert ratio_text(Ratio(1.004, 0.99, 1.02)) == f"{UNKNOWN} (0.99 to 1.02)"
    assert ratio_text(Ratio(1.014, 1.012, 1.016)) == "1.01x (1.01 to 1.02)"
    form = percent_form(0.004)
    assert [form(value, Rounding.NEAREST) for value in (0.004, 0.002)] == ["0.4", "0.2"]


@pytest.mark.parametrize(
    ("ratio", "text", "share"),
    [
        (Ratio(1.05, 1.009, 1.093), "1.05x (1.009 to 1.10)", "0.9 to 10"),
        (Ratio(0.97, 0.945, 0.997), "0.97x (0.94 to 0.997)", "-6 to -0.3"),
        (Ratio(1.05, 1.0004, 1.093), "1.05x (1.0004 to 1.10)", "0.04 to 10"),
        (Ratio(1.05, 1.01, 1.093), "1.05x (1.01 to 1.10)", "1 to 10"),
        (Ratio(1500.0, 1200.0, 1900.0), "1,500.00x (1,200.00 to 1,900.00)", "119,900 to 189,900"),
    ],
)
def test_interval_of_a_proven_difference_is_not_told_as_one_with_none_in_it(
    ratio: Ratio, text: str, share: str
) -> None:
    assert ratio_text(ratio) == text
    gain = Ratio(ratio.value - 1, ratio.low - 1, ratio.high - 1)
    assert bounds_text(gain, percent_form(gain.value)) == share


def test_nothing_is_told_as_less_than_zero_that_is_rounded_to_it() -> None:
    assert signed_percent(0.9998, Rounding.UP) == "0.0%"
    assert signed_percent(0.9998, Rounding.DOWN) == "-0.1%"
