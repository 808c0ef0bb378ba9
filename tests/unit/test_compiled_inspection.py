"""What looks at a compiled model does not keep it from being compiled."""

import pytest
import torch
from torch import nn

from autotune.worker.rank.context import RankContext
from autotune.worker.rank.loop import TrainingLoop
from autotune.worker.rank.norms import UpdateNorms
from autotune.worker.rank.profiling import LoopSubject, run_profile, span
from autotune.worker.rank.trajectory import run_trajectory
from tests.support.one_rank import CPU, WIDTH, group, regression, settings_of_torch
from tests.support.trials import knobs, of_one_rank

__all__ = ["group", "settings_of_torch"]  # fixtures


def trajectory(loop, *rest):
    loop.take(run_trajectory(loop, UpdateNorms(loop), *rest))


def profiled(loop, *rest):
    loop.take(run_profile(LoopSubject(loop, replicas=1), *rest))


@pytest.mark.slow
@pytest.mark.parametrize("inspection", [trajectory, profiled])
def test_a_compiled_model_is_compiled_under_inspection(tmp_path, inspection):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    context, reports = RankContext(0, 0, 1, (CPU,)), []
    request = of_one_rank(knobs(compile="default"), log_dir=str(tmp_path), trajectory=3, profile=2)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
    loop = TrainingLoop(regression(model), request, context, lambda: None, span)
    inspection(loop, request, context, reports.append)
    assert reports
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
