"""What `benchmarks/verdicts.py` says of its own shares."""

import pytest

from benchmarks.verdicts import WORLDS, cell, interval


@pytest.mark.parametrize(("hits", "count"), [(0, 100), (3, 100), (97, 100), (100, 100), (1, 2)])
def test_the_interval_of_a_share_is_the_exact_one(hits: int, count: int) -> None:
    from scipy import stats  # a second, which only this test is to take

    exact = stats.binomtest(hits, count).proportion_ci(0.95, method="exact")
    assert interval(hits, count) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_each_share_of_a_cell_comes_with_its_interval() -> None:
    found = cell(WORLDS[0], 2, finalists=1, rounds=3)
    assert set(found["better"]) == {"share", "low", "high"}
    assert found["better"]["low"] <= found["better"]["share"] <= found["better"]["high"]
