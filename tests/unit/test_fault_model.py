"""What failures without a known cause say about other configurations."""

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState

from autotune.search.failure_models import FaultModel
from autotune.search.grid import Grid
from autotune.search.performance_model import PerformanceModelSampler

SPACE = {name: CategoricalDistribution([0, 1, 2]) for name in ("a", "b", "c", "d")}
GRID = Grid(SPACE)


def rows(*found):
    return GRID.rows_of([dict(zip("abcd", values, strict=True)) for values in found])


def risk(of, worked=(), failed=()):
    (found,) = FaultModel(GRID, rows(*worked), rows(*failed)).risk(rows(of))
    return found


def test_nothing_is_feared_before_anything_has_failed():
    assert risk((0, 0, 0, 0), worked=[(1, 1, 1, 1)]) == 0


def test_what_shares_more_with_a_failure_is_feared_more():
    failed = [(1, 1, 1, 1)]
    found = [
        risk(of, failed=failed) for of in [(0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0), (1, 1, 1, 0)]
    ]
    assert found == sorted(found)
    assert found[0] == 0 < found[1] < found[3] < 1


def test_what_has_worked_is_no_cause():
    failed, worked = [(1, 1, 1, 1)], [(0, 1, 1, 1)]
    assert risk((0, 1, 1, 0), worked, failed) == 0
    assert risk((1, 0, 0, 0), worked, failed) > 0.2


def test_failures_that_share_two_values_point_at_them():
    worked = [(1, 0, 0, 0), (0, 1, 0, 0), (1, 2, 1, 1), (2, 1, 1, 1)]
    failed = [(1, 1, 0, 0), (1, 1, 2, 1), (1, 1, 1, 2)]
    assert risk((1, 1, 2, 2), worked, failed) > 0.8
    assert risk((2, 1, 2, 2), worked, failed) < 0.5


def test_one_value_that_failures_with_one_message_share_is_the_cause():
    worked, failed = [(0, 0, 0, 0)], [(1, 1, 0, 1), (1, 2, 1, 0)]
    for messages, sure in (
        (["rank 0: no fused kernel", "rank 1: no fused kernel"], True),
        (["no fused kernel", "killed"], False),
        (["", ""], False),
    ):
        model = FaultModel(GRID, rows(*worked), rows(*failed), messages)
        alone, other = model.risk(rows((1, 0, 0, 0), (0, 0, 0, 1)))
        assert (alone == 1.0) == sure
        assert other < 0.5


def test_several_values_that_failures_share_leave_the_cause_open():
    model = FaultModel(GRID, rows((0, 0, 0, 0)), rows((1, 1, 0, 1), (1, 1, 1, 0)), ["a", "a"])
    assert model.risk(rows((1, 0, 0, 0)))[0] < 1.0


@pytest.mark.parametrize("end", ["ERROR", "OOM", "PRUNED"])
@pytest.mark.parametrize("seed", range(3))
def test_a_pair_of_values_that_fails_is_soon_left_alone(seed, end):
    """Also for want of memory, where no size is searched that would tell of it, or without a step."""

    def works(params):
        return not (params["a"] == 2 and params["b"] == 2)

    def rate(params):  # best where it fails
        return 100 * (1 + params["a"] + params["b"]) * (1 + 0.1 * params["c"]) + params["d"]

    study = optuna.create_study(direction="maximize", sampler=PerformanceModelSampler(seed, SPACE))
    failures, best = 0, 0.0
    for _ in range(25):
        trial = study.ask(SPACE)
        if works(trial.params):
            study.tell(trial, value := rate(trial.params))
            best = max(best, value)
        else:
            trial.set_user_attr("end", end)
            study.tell(trial, state=TrialState.FAIL if end == "ERROR" else TrialState.PRUNED)
            failures += 1
    assert failures <= 5  # of nine
    assert best == pytest.approx(
        max(
            rate(dict(zip("abcd", v, strict=True)))
            for v in np.ndindex(3, 3, 3, 3)
            if works(dict(zip("abcd", v, strict=True)))
        )
    )
