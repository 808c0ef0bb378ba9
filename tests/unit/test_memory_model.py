"""Which configurations are taken to run out of memory, from those that did."""

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution

from autotune.search.grid import Grid
from autotune.search.memory_model import MemoryModel, rows_of

SPACE = {
    "micro_batch": CategoricalDistribution([1, 2, 4, 8, 16, 32, 64, 128]),
    "precision": CategoricalDistribution(["fp32", "bf16"]),
    "log_interval": CategoricalDistribution([1, 10]),
}
GRID = Grid(SPACE)


def rows(*found):
    return rows_of(
        GRID,
        [{"micro_batch": m, "precision": p, "log_interval": i} for m, p, i in found],
    )


def fp32(*sizes):
    return rows(*((size, "fp32", 10) for size in sizes))


def test_nothing_seen_nothing_feared_close_by():
    model = MemoryModel(GRID, fp32(8), fp32())
    risk = model.risk(fp32(4, 8, 16, 128))
    assert risk[0] == risk[1] == 0
    assert 0 < risk[2] < risk[3] < 0.6


def test_what_failed_fails_again_and_so_does_all_that_is_larger():
    model = MemoryModel(GRID, fp32(8, 16), fp32(64))
    risk = model.risk(fp32(8, 16, 32, 64, 128))
    assert np.all(np.diff(risk) >= 0)
    assert risk[1] < 0.05
    assert 0.2 < risk[2] < 0.8
    assert risk[3] > 0.95
    assert risk[4] > 0.99


def test_another_precision_is_suspected_too_but_less():
    model = MemoryModel(GRID, fp32(8, 16, 32), fp32(64))
    same, other, far = model.risk(rows((64, "fp32", 1), (64, "bf16", 10), (128, "bf16", 10)))
    assert same > 0.95  # the logging interval changes no memory
    assert 0.2 < other < same
    assert far > other


def test_a_narrow_edge_is_found():
    model = MemoryModel(GRID, fp32(32), np.concatenate([fp32(64), rows((64, "bf16", 1))]))
    risk = model.risk(rows((32, "bf16", 1), (128, "bf16", 1)))
    assert risk[0] < 0.5
    assert risk[1] > 0.99


def test_without_a_micro_batch_nothing_is_known():
    grid = Grid({"precision": SPACE["precision"]})
    known = rows_of(grid, [{"precision": "fp32"}])
    assert MemoryModel(grid, known, known).risk(known) == pytest.approx([0])
