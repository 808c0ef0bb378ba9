"""The search for the largest micro-batch: every limit is found, with few runs."""

import pytest

from autotune.study.largest_batch import Bracket

MOST = 1_048_576


def searched(first: int, limit: int) -> tuple[Bracket, int]:
    """What is known in the end where no more than the limit fits, and how many runs it took."""
    runs: list[tuple[int, bool]] = []
    while (size := Bracket.of(runs).next(first, MOST)) is not None:
        assert size not in [known for known, _ in runs]
        runs.append((size, size <= limit))
    return Bracket.of(runs), len(runs)


@pytest.mark.parametrize("first", [1, 8, 24])
@pytest.mark.parametrize("limit", [1, 2, 7, 8, 9, 40, 63, 64, 100, 5000])
def test_the_limit_is_found_to_an_eighth(first: int, limit: int) -> None:
    found, runs = searched(first, limit)
    assert found.fits <= limit < (found.fails or 0)
    assert limit - found.fits <= max(0, found.fits // 8)
    assert runs <= 18


def test_headroom_is_kept_in_multiples_of_eight() -> None:
    assert Bracket(100, 112).with_headroom(8) == 88
    assert Bracket(17, 18).with_headroom(8) == 15
    assert Bracket(1, 2).with_headroom(1) == 1


def test_what_is_used_today_and_fits_is_kept() -> None:
    assert Bracket(8, 9).with_headroom(8) == 8
    assert Bracket(6, 7).with_headroom(8) == 6


def test_nothing_more_is_tried_where_no_sample_fits() -> None:
    assert Bracket(0, 1).next(8, MOST) is None


def test_no_more_is_tried_than_makes_sense() -> None:
    assert Bracket(8, None).next(1, 12) == 12
    assert Bracket(12, None).next(1, 12) is None
