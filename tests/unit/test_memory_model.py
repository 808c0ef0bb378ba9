"""Which configurations are taken to run out of memory, from those that did."""

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution

from autotune.search.failure_models import MemoryModel
from autotune.search.grid import Grid

SPACE = {
    "micro_batch": CategoricalDistribution([1, 2, 4, 8, 16, 32, 64, 128]),
    "precision": CategoricalDistribution(["fp32", "bf16"]),
    "log_interval": CategoricalDistribution([1, 10]),
}
GRID = Grid(SPACE)


def rows(*found):
    return GRID.rows_of(
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


def test_failure_at_the_size_of_one_that_ran_rules_nothing_out():
    model = MemoryModel(GRID, rows((16, "fp32", 1)), fp32(16))
    assert model.risk(fp32(8, 16, 32)).max() < 1
    assert MemoryModel(GRID, rows((16, "bf16", 1)), fp32(16)).risk(fp32(16)) == [1]
    assert MemoryModel(GRID, rows((8, "fp32", 1)), fp32(16)).risk(fp32(16)) == [1]


def test_another_precision_is_suspected_too_but_less():
    model = MemoryModel(GRID, fp32(8, 16, 32), fp32(64))
    same, other, far = model.risk(rows((64, "fp32", 1), (64, "bf16", 10), (128, "bf16", 10)))
    assert same > 0.95  # the logging interval changes no memory
    assert 0.2 < other < same
    assert far > other


def test_configuration_with_more_other_knobs_is_less_sure():
    grid = Grid({**SPACE, "activation_checkpointing": CategoricalDistribution([0, 1])})

    def of(*found):
        rest = {"log_interval": 10}
        names = ("micro_batch", "precision", "activation_checkpointing")
        return grid.rows_of([{**rest, **dict(zip(names, one, strict=True))} for one in found])

    model = MemoryModel(grid, of((32, "fp32", 0)), of((64, "fp32", 0)))
    large = model.risk(of((64, "fp32", 0), (64, "bf16", 0), (64, "bf16", 1)))
    small = model.risk(of((32, "fp32", 0), (32, "bf16", 0), (32, "bf16", 1)))
    assert large[0] > large[1] > large[2] > 0.5
    assert small[0] < small[1] < small[2] < 0.5


def test_how_many_micro_batches_gradients_wait_for_makes_no_difference():
    grid = Grid({**SPACE, "accumulation_steps": CategoricalDistribution([1, 2, 4, 8])})

    def with_steps(*found):
        rest = {"precision": "fp32", "log_interval": 10}
        return grid.rows_of([{"micro_batch": m, "accumulation_steps": a, **rest} for m, a in found])

    model = MemoryModel(grid, with_steps((16, 1), (16, 2)), with_steps((64, 4)))
    risk = model.risk(with_steps((64, 8), (64, 2), (64, 1), (16, 8)))
    assert risk[0] == risk[1] == 1.0
    assert 0.8 < risk[2] < 1.0, "its gradients do not wait, which is little"
    assert risk[3] < 0.05


def test_a_narrow_edge_is_found():
    model = MemoryModel(GRID, fp32(32), np.concatenate([fp32(64), rows((64, "bf16", 1))]))
    risk = model.risk(rows((32, "bf16", 1), (128, "bf16", 1)))
    assert risk[0] < 0.5
    assert risk[1] > 0.99


def test_without_a_micro_batch_nothing_is_known():
    grid = Grid({"precision": SPACE["precision"]})
    known = grid.rows_of([{"precision": "fp32"}])
    assert MemoryModel(grid, known, known).risk(known) == pytest.approx([0])


# Peaks


def shares(*peaks):
    return np.array(peaks, dtype=float)


def test_one_peak_says_how_much_fits_for_sure():
    blind = MemoryModel(GRID, fp32(8), fp32()).risk(fp32(16, 64, 128))
    model = MemoryModel(GRID, fp32(8), fp32(), shares(0.1)).risk(fp32(16, 64, 128))
    assert model[0] == model[1] == 0  # 0.95 / 0.1 x 8 = 76
    assert 0 < model[2] < blind[2]


def test_two_peaks_say_where_the_limit_is_before_anything_has_failed():
    # 0.2 + 0.01 m: 0.95 is reached at 75.
    model = MemoryModel(GRID, fp32(8, 16), fp32(), shares(0.28, 0.36))
    risk = model.risk(fp32(16, 32, 64, 128))
    assert max(risk[:2]) < 0.05
    assert risk[2] < 0.35
    assert risk[3] > 0.95


def test_a_peak_that_fills_the_memory_leaves_no_room():
    # Allocators keep what they have: a peak at the limit says no more than that it fitted.
    model = MemoryModel(GRID, fp32(8), fp32(), shares(0.99))
    risk = model.risk(fp32(8, 16))
    assert risk[0] == 0 < risk[1]


def test_peaks_of_other_classes_are_compared_among_themselves():
    fitted = np.concatenate([fp32(8), rows((16, "bf16", 1))])
    model = MemoryModel(GRID, fitted, fp32(), shares(0.5, 0.25))
    assert model.risk(rows((32, "bf16", 1)))[0] == 0


def test_an_unknown_peak_is_no_peak():
    known = MemoryModel(GRID, fp32(8, 16), fp32(64)).risk(fp32(32, 64))
    unknown = MemoryModel(GRID, fp32(8, 16), fp32(64), shares(np.nan, np.nan)).risk(fp32(32, 64))
    assert np.array_equal(known, unknown)


def test_other_loader_workers_find_no_more_memory_on_a_device():
    grid = Grid({**SPACE, "num_workers": CategoricalDistribution([0, 4])})

    def of(*found):
        names = ("micro_batch", "num_workers")
        rest = {"precision": "fp32", "log_interval": 10}
        return grid.rows_of([{**rest, **dict(zip(names, one, strict=True))} for one in found])

    def risk(on_device):
        model = MemoryModel(grid, of((8, 0)), of((64, 4)), on_device=on_device)
        return model.risk(of((64, 0)))

    assert risk(True) == [1]
    assert risk(False) < [1]


# Bounds that contradict each other

WIDE = Grid(
    {
        **{name: SPACE[name] for name in ("micro_batch", "precision")},
        "activation_checkpointing": CategoricalDistribution([0, 1]),
        "attention": CategoricalDistribution(["unfused", "flash"]),
    }
)


def wide(*found):
    names = ("micro_batch", "precision", "activation_checkpointing", "attention")
    return WIDE.rows_of([dict(zip(names, one, strict=True)) for one in found])


def test_near_configurations_that_failed_count_more_than_a_far_one_that_ran():
    fitted = wide((64, "bf16", 1, "flash"))
    failed = [(8, "fp32", 0, "flash"), (8, "bf16", 0, "unfused")]
    far = MemoryModel(WIDE, fitted, wide((8, "fp32", 0, "unfused")))
    one, both = (MemoryModel(WIDE, fitted, wide(*failed[:count])) for count in (1, 2))
    neighbour = wide((16, "bf16", 0, "flash"))
    assert far.risk(neighbour)[0] < one.risk(neighbour)[0] < both.risk(neighbour)[0]
    assert both.risk(neighbour)[0] > 0.5


def test_bounds_that_contradict_each_other_leave_no_certainty():
    model = MemoryModel(WIDE, wide((64, "fp32", 1, "flash")), wide((8, "fp32", 0, "unfused")))
    between = model.risk(wide((16, "fp32", 0, "flash"), (32, "fp32", 0, "flash")))
    assert all(0.1 < risk < 0.9 for risk in between)


def test_failure_refutes_what_peaks_have_promised():
    # Below some size the peak is that of the update, which is the same for all.
    flat = shares(0.5, 0.501)
    model = MemoryModel(GRID, fp32(8, 16), fp32(64), flat)
    risk = model.risk(np.concatenate([fp32(16, 32), rows((64, "bf16", 1), (128, "bf16", 1))]))
    assert risk[0] < 0.05
    assert risk[2] > 0.3
    assert risk[3] > 0.9


def test_what_ran_is_no_risk_however_many_neighbours_failed():
    failed = [(32, "fp32", 0, "flash"), (32, "bf16", 0, "unfused"), (16, "fp32", 0, "unfused")]
    model = MemoryModel(WIDE, wide((32, "bf16", 0, "flash")), wide(*failed))
    smaller, same, larger = model.risk(
        wide((16, "bf16", 0, "flash"), (32, "bf16", 0, "flash"), (64, "bf16", 0, "flash"))
    )
    assert smaller == same == 0
    assert larger > 0.5
