"""Faults that are planted in a training, and whether its first steps show them."""

import pytest
import torch
from torch import nn

from autotune.measurement import gradients
from autotune.measurement.numerics import refuted, trajectory
from autotune.worker.protocol import STEPS_WITHOUT_DROPOUT
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.loop import TrainingLoop
from autotune.worker.rank.norms import UpdateNorms
from autotune.worker.rank.quiet import plain_autocast
from autotune.worker.rank.trajectory import run_trajectory
from autotune.workloads import convnet
from benchmarks.gate_faults import FAULTS
from tests.support.one_rank import CPU, group, regression, settings_of_torch
from tests.support.trials import knobs, of_one_rank

__all__ = ["group", "settings_of_torch"]  # fixtures

TRAINED = {"micro_batch": 4, "accumulation_steps": 2}


def perceptron():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 8))
    return regression(model, width=8, rate=0.1)


def deep_convolutions():
    """A network whose BatchNorm amplifies rounding: bf16 deviates its gradient by a quarter."""
    return convnet.build(size=16, width=8, blocks=16)


def first_steps(fault="", build=perceptron, **changes):
    torch.manual_seed(0)
    workload = build()
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
    return refuted(run[0], reference, gradients.limits((run[1], plain)))


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


def errors_of_plain_autocast(reference):
    with plain_autocast("cpu"):
        run, _ = first_steps(build=deep_convolutions)
    return gradients.rounding_of(run.first, reference.first)


def deviation_in_bf16(fault=""):
    """Return why bf16 with a fault is refused, by the formats alone and by plain autocast."""
    reference, plain = first_steps(build=deep_convolutions)
    run, narrow = first_steps(fault, build=deep_convolutions, precision="bf16")
    known = errors_of_plain_autocast(reference)
    return [
        refuted(run, reference, gradients.limits((narrow, plain), rounding))
        for rounding in ((), known)
    ]


@pytest.mark.long
def test_bf16_that_batch_norm_amplifies_passes_if_plain_autocast_deviates_as_far():
    by_format, by_autocast = deviation_in_bf16()
    assert "its gradient in the first step" in by_format
    assert by_autocast == ""


@pytest.mark.parametrize(
    "fault", ["scale", "shrunk", "silent", "flipped", "summed", "dropped", "stale"]
)
def test_faults_in_bf16_show_however_far_batch_norm_amplifies_rounding(fault):
    assert deviation_in_bf16(fault)[1]


def test_plain_autocast_covers_forward_and_loss_and_no_backward_pass():
    seen = []
    model = nn.Linear(4, 4)

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(torch.is_autocast_enabled("cpu"))
            return gradient

    with plain_autocast("cpu"):
        for _ in range(2):
            out = model(torch.ones(2, 4))
            assert out.dtype == torch.bfloat16
            assert torch.is_autocast_enabled("cpu")
            Watched.apply(out.float().sum()).backward()
            assert not torch.is_autocast_enabled("cpu")
        with torch.no_grad():
            assert model(torch.ones(2, 4)).dtype == torch.float32
    assert seen == [False, False]
    assert model(torch.ones(2, 4)).dtype == torch.float32


def test_plain_autocast_leaves_what_a_library_has_put_around_the_backward_pass(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "backward", torch.Tensor.backward)
    passes = []
    with plain_autocast("cpu"):
        backward = torch.Tensor.backward

        def counted(loss, *args, **kwargs):
            passes.append(loss)
            return backward(loss, *args, **kwargs)

        torch.Tensor.backward = counted
    torch.ones(1, requires_grad=True).sum().backward()
    assert passes


def test_other_dropout_does_not_show():
    assert problem(first_steps("other_dropout")) == ""
