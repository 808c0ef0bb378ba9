"""What values that follow each other are worth, against series whose truth is known."""

import numpy as np
import pytest

from autotune.measurement.estimate import effective_sample_size, estimate, lag_one

SERIES = 2000


def series(rho: float, length: int) -> np.ndarray:
    """Autoregressive ones of unit variance, one a row."""
    drawn = np.random.default_rng([length, round(100 * rho)]).standard_normal((SERIES, length))
    for place in range(1, length):
        drawn[:, place] = rho * drawn[:, place - 1] + np.sqrt(1 - rho**2) * drawn[:, place]
    return drawn


def coverage(rho: float, blocks: int) -> float:
    """In how many of a hundred cases the interval of so many blocks holds the true rate."""
    hits = 0
    for row in series(rho, blocks):
        found = estimate([1.0] * blocks, 1 / (100.0 * (1 + 0.01 * row)))
        hits += found.low <= 100.0 <= found.high
    return 100 * hits / SERIES


@pytest.mark.parametrize("rho", [0.3, 0.6])
@pytest.mark.parametrize("length", [10, 20, 40])
def test_the_bias_of_short_series_is_taken_out(rho: float, length: int) -> None:
    """Of ten it is 0.19 and 0.28."""
    drawn = [[float(x) for x in row] for row in series(rho, length)]
    assert lag_one(drawn) == pytest.approx(rho, abs=0.09)


@pytest.mark.parametrize("blocks", [10, 20, 40])
@pytest.mark.parametrize(("rho", "least", "most"), [(0.0, 95, 98), (0.3, 91, 96), (0.6, 86, 95)])
def test_from_ten_blocks_on_the_interval_holds_the_truth(
    blocks: int, rho: float, least: float, most: float
) -> None:
    """96 to 97 %, 93 to 94 % and 88 to 93 %, of many more: two standard errors are 1.1 % here. Where
    neighbours resemble each other strongly, and only there, ten blocks are too few."""
    assert least <= coverage(rho, blocks) <= most


def test_five_blocks_promise_too_much_where_neighbours_resemble_each_other() -> None:
    """Why a run that is to prove something counts ten."""
    assert 93 <= coverage(0.0, 5) <= 98
    assert 82 <= coverage(0.6, 5) <= 89


def test_what_they_are_worth() -> None:
    assert effective_sample_size(30, 0.0) == 30
    assert effective_sample_size(30, 0.5) == 10
    assert effective_sample_size(3, 0.9) == 1
    assert lag_one([[1.0, 1.0, 1.0]]) == 0
    assert lag_one([[0.0, 1.0, 0.0, 1.0]]) == 0
