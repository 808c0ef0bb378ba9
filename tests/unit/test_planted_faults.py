"""Faults that are planted in a training, and whether its first steps show them."""

import pytest
import torch
from torch import nn

from autotune.measurement.numerics import refuted, trajectory
from autotune.worker.protocol import STEPS_WITHOUT_DROPOUT
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.loop import TrainingLoop
from autotune.worker.rank.trajectory import UpdateNorms, run_trajectory
from benchmarks.gate_faults import FAULTS
from tests.support.one_rank import CPU, group, regression, settings_of_torch
from tests.support.trials import knobs, of_one_rank

__all__ = ["group", "settings_of_torch"]  # fixtures

TRAINED = {"micro_batch": 4, "accumulation_steps": 2}


def first_steps(fault="", **changes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 8))
    workload = regression(model, width=8, rate=0.1)
    if fault:
        workload = FAULTS[fault](workload, TRAINED["accumulation_steps"])
    request = of_one_rank(knobs(**TRAINED, **changes), trajectory=STEPS_WITHOUT_DROPOUT)
    context, reports = RankContext(0, 0, 1, (CPU,)), []
    loop = TrainingLoop(workload, request, context, lambda: None)
    loop.take(run_trajectory(loop, UpdateNorms(loop), request, context, reports.append))
    assert all(module.training for module in loop.model.modules())
    return trajectory(reports), request.knobs


def problem(run):
    reference, plain = first_steps()
    return refuted(run[0], reference, (run[1], plain))


@pytest.mark.parametrize("fault", ["scale", "frozen", "half_rate", "stale", "dropped"])
def test_wrong_training_shows_in_its_first_steps(fault):
    assert problem(first_steps(fault))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bucket_cap_mb": 0.01, "optimizer_kernels": "foreach"},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"parallelism": "fsdp"},
        {"parallelism": "zero1"},
    ],
    ids=str,
)
def test_what_computes_the_same_passes(changes):
    assert problem(first_steps(**changes)) == ""


def test_other_dropout_does_not_show():
    assert problem(first_steps("other_dropout")) == ""
