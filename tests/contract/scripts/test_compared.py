"""What a training script has by itself, against what the study says it has."""

from typing import Any

import pytest

from autotune.worker.protocol import Outcome
from tests.contract.scripts.bench import (
    EVALUATES,
    REDIRECTED,
    TRAINS,
    Bench,
    assert_well,
)


def test_a_baseline_that_the_script_does_not_have_is_no_measurement(bench: Bench) -> None:
    text = EVALUATES.replace("Linear(8, 2))", "Linear(8, 2), bucket_cap_mb=100)")
    told = {"kept": ("bucket_cap_mb", "static_graph", "broadcast_buffers")}
    report = bench.run(bench.write(text), told=told)
    assert report.outcome == Outcome.ERROR
    assert "bucket_cap_mb 100: is what the script has by itself" in report.cause
    assert_well(bench.run(bench.write(EVALUATES), told=told))
    assert_well(bench.run(bench.write(text), bucket_cap_mb=5, told=told))
    own = bench.write(EVALUATES.replace("Linear(8, 2))", "Linear(8, 2), broadcast_buffers=False)"))
    assert "broadcast_buffers False" in bench.run(own, told=told).cause
    assert_well(bench.run(own, broadcast_buffers=True))


_OWN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
while True:
    for x in DataLoader(torch.ones(64, 8), batch_size=4, num_workers=1, multiprocessing_context="fork"):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean() * 0 + 3
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("knob", "value", "own"),
    [("num_workers", 0, "num_workers 1"), ("precision", "fp32", "precision bf16")],
)
def test_what_else_the_script_has_by_itself_is_compared(
    bench: Bench, knob: str, value: Any, own: str
) -> None:
    report = bench.run(bench.write(_OWN), told={"kept": (knob,)})
    assert report.outcome == Outcome.ERROR
    assert f"{own}: is what the script has by itself" in report.cause


_OF_ITS_LOADER = _OWN.replace(
    "num_workers=1", "num_workers=1, prefetch_factor=4, persistent_workers=True"
)


@pytest.mark.parametrize(
    ("knob", "value", "own"),
    [
        ("prefetch_factor", 2, "prefetch_factor 4"),
        ("persistent_workers", False, "persistent_workers True"),
    ],
)
def test_arguments_of_its_loader_are_compared(
    bench: Bench, knob: str, value: Any, own: str
) -> None:
    script = bench.write(_OF_ITS_LOADER)
    report = bench.run(script, told={"kept": (knob,)})
    assert report.outcome == Outcome.ERROR
    assert f"{own}: is what the script has by itself" in report.cause
    assert_well(bench.run(script, told={"kept": ("num_workers",)}, num_workers=0))
    assert_well(bench.run(script, **{knob: value}))


_SET_UP = "model = DistributedDataParallel(torch.nn.Linear(8, 2))\n"


def test_a_hook_of_its_own_is_compared(bench: Bench) -> None:
    hooks = "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
    hooks += "model.register_comm_hook(None, default_hooks.HOOK)\n"
    told = {"kept": ("gradient_compression",)}
    narrow = _OWN.replace(_SET_UP, _SET_UP + hooks.replace("HOOK", "fp16_compress_hook"))
    report = bench.run(bench.write(narrow), told=told)
    assert "gradient_compression fp16: is what the script has by itself" in report.cause
    plain = _OWN.replace(_SET_UP, _SET_UP + hooks.replace("HOOK", "allreduce_hook"))
    assert_well(bench.run(bench.write(plain), told=told))
    assert_well(bench.run(bench.write(_OWN), gradient_compression="fp16"))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activations_that_it_computes_anew_are_compared(bench: Bench, reentrant: bool) -> None:
    anew = "from torch.utils.checkpoint import checkpoint\n" + _OWN.replace(
        "model(x)", f"checkpoint(model, x.requires_grad_(), use_reentrant={reentrant})"
    )
    told = {"kept": ("activation_checkpointing",)}
    report = bench.run(bench.write(anew), told=told)
    assert "activation_checkpointing on: is what the script has by itself" in report.cause
    assert_well(bench.run(bench.write(_OWN), told=told))
    assert_well(bench.run("telling.py", activation_checkpointing=1))


def test_the_loss_is_told_without_its_scale(bench: Bench) -> None:
    report = bench.run(bench.write(_OWN), told={"kept": ("bucket_cap_mb",)})
    assert_well(report)
    assert [block.loss for block in report.blocks] == [3.0] * 4


def test_a_loader_can_lose_the_workers_that_it_has_arguments_for(bench: Bench) -> None:
    text = EVALUATES.replace("num_workers=1,", "num_workers=1, timeout=9, prefetch_factor=3,")
    context = text.replace("timeout=9", "timeout=9, multiprocessing_context='fork'")
    assert_well(bench.run(bench.write(context), num_workers=0))


def test_what_a_script_computes_is_compared(bench: Bench) -> None:
    plain, again, narrow = (
        bench.run("telling.py", asked={"trajectory": 4}, **changes)
        for changes in ({}, {}, {"precision": "bf16"})
    )
    losses = [[block.loss for block in run.blocks] for run in (plain, again, narrow)]
    assert len(losses[0]) == 4
    assert losses[0] == losses[1]
    assert losses[0] != losses[2] == pytest.approx(losses[0], rel=0.05)
    assert plain.blocks[0].observed["gradient_norm"] > 0
    assert plain.blocks[-1].observed["replica_spread"] < 1e-6


def test_optimizer_kernels_of_the_script_are_compared(bench: Bench) -> None:
    fused = bench.write(REDIRECTED.replace("FUSED", "fused=True"))
    report = bench.run(fused, told={"kept": ("optimizer_kernels",)})
    assert report.outcome == Outcome.ERROR
    assert "optimizer_kernels fused: is what the script has by itself" in report.cause
    back = bench.run(fused, optimizer_kernels="default")
    assert "optimizer_kernels fused: is what the script has set, over what it" in back.cause


def test_what_the_script_sets_afterwards_is_no_measurement(bench: Bench) -> None:
    text = EVALUATES.replace("while True", "training.num_workers = 0\nwhile True", 1)
    report = bench.run(bench.write(text), num_workers=1)
    assert report.outcome == Outcome.ERROR
    assert "num_workers 0: is what the script has set, over" in report.cause


@pytest.mark.parametrize(
    ("knob", "value", "undone"),
    [
        ("cudnn_benchmark", True, "torch.backends.cudnn.benchmark = False"),
        ("cpu_threads", 2, "torch.set_num_threads(1)"),
    ],
)
def test_what_the_script_turns_back_is_no_measurement(
    bench: Bench, knob: str, value: object, undone: str
) -> None:
    """As many do who seed everything."""
    text = TRAINS.replace("while True", f"{undone}\nwhile True")
    assert_well(bench.run(bench.write(TRAINS), **{knob: value}))
    report = bench.run(bench.write(text), **{knob: value})
    assert report.outcome == Outcome.ERROR
    assert f"{knob}: is what the script has set, over what it was changed to" in report.cause


def test_steps_that_fp16_leaves_out_have_samples_as_well(bench: Bench) -> None:
    """The first ones overflow: none of them is taken."""
    text = _OWN.replace("init_scale=1024.0", "init_scale=2.0**127").replace("* 0 + 3", "* 2000")
    cleared = text.replace("scaler.update()", "scaler.update()\n        optimizer.zero_grad()")
    assert_well(bench.run(bench.write(cleared), samples=4))


def test_autocast_inside_of_the_wrapped_model_is_seen(bench: Bench) -> None:
    """Accelerate puts it around the forward pass of what it wraps."""
    around = "m = model.module\nm.forward = torch.autocast('cpu', torch.bfloat16)(m.forward)\n"
    script = bench.write(EVALUATES.replace("while True", around + "while True", 1))
    report = bench.run(script, told={"kept": ("precision",)})
    assert "precision bf16: is what the script has by itself" in report.cause
