"""What each knob changes, observed in torch itself: buckets, dtypes, shapes, reads, gradients."""

import collections
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autotune
import search_spaces
from autotune.worker.effects import kernels, process
from autotune.worker.effects.precision import float32_matmul
from autotune.worker.protocol import BlockPlan, BlockReport
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.loop import TrainingLoop
from autotune.worker.rank.training import NonFiniteLoss, run_blocks
from search_spaces import Facts
from search_spaces.knob import Choice
from tests.support.one_rank import (
    CPU,
    LAYER_BYTES,
    LAYERS,
    MIB,
    WIDTH,
    Traffic,
    group,
    regression,
    settings_of_torch,
    settled,
    stack,
    training,
)
from tests.support.trials import knobs, of_one_rank

__all__ = ["group", "settings_of_torch"]  # fixtures

# bucket_cap_mb


@pytest.mark.parametrize("cap", [0.01, 0.3, 0.6, 1, 24, 100_000])
def test_bucket_cap_bounds_every_bucket(cap):
    loop = training(regression(), bucket_cap_mb=cap)
    sizes = settled(loop).of(loop)
    assert sum(sizes) == LAYERS * LAYER_BYTES
    # A bucket is closed by the gradient that fills it.
    assert all(size < cap * MIB + 4 * WIDTH**2 for size in sizes)
    assert all(size >= cap * MIB for size in sizes[:-1])


def test_a_smaller_cap_makes_more_buckets():
    counts = []
    for cap in (0.01, 0.3, 0.6, 1, 24):
        loop = training(regression(), bucket_cap_mb=cap)
        counts.append(len(settled(loop).of(loop)))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == LAYERS  # each weight closes a bucket
    assert counts[-1] == 1
    assert len(set(counts)) >= 4


def test_the_defaults_send_what_a_plain_script_sends():
    plain = DistributedDataParallel(stack())
    traffic = Traffic().watch(plain)
    for _ in range(3):
        traffic.sizes.clear()
        plain(torch.ones(2, WIDTH)).sum().backward()
    loop = training(regression(), **{**search_spaces.defaults(), "micro_batch": 2})
    assert settled(loop).of(loop) == traffic.sizes


# gradient_as_bucket_view


@pytest.mark.parametrize("view", [False, True])
def test_gradients_live_in_the_buckets_or_beside_them(view):
    loop = training(regression(), gradient_as_bucket_view=view, bucket_cap_mb=0.6)
    traffic = settled(loop)
    places = {}

    def look(*_: Any) -> None:
        for name, parameter in loop.model.named_parameters():
            places[name] = parameter.grad.untyped_storage().data_ptr()

    loop.updates.optimizers[0].register_step_pre_hook(look)
    traffic.storages.clear()
    loop.step()
    assert len(places) == 2 * LAYERS
    inside = {name: place in traffic.storages for name, place in places.items()}
    assert set(inside.values()) == {view}, inside


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_view_changes_no_number(accumulation):
    weights = []
    for view in (False, True):
        torch.manual_seed(0)
        loop = training(regression(), gradient_as_bucket_view=view, accumulation_steps=accumulation)
        for _ in range(4):
            loop.step()
        weights.append(nn.utils.parameters_to_vector(loop.model.parameters()))
    assert torch.equal(*weights)


# precision


@pytest.mark.parametrize(
    ("precision", "dtype", "matmul", "scaled"),
    [
        ("fp32", torch.float32, "highest", False),
        ("tf32", torch.float32, "high", False),
        ("bf16", torch.bfloat16, "highest", False),
        ("fp16", torch.float16, "highest", True),
    ],
)
def test_precision(precision, dtype, matmul, scaled):
    seen = collections.Counter()
    model = stack()
    for layer in model:
        layer.register_forward_hook(lambda *call: seen.update([call[-1].dtype]))
    loop = training(regression(model), precision=precision)
    gradients = set()
    loop.updates.optimizers[0].register_step_pre_hook(
        lambda *_: gradients.update(p.grad.dtype for p in model.parameters())
    )
    loop.step()
    assert seen == {dtype: LAYERS}
    assert torch.get_float32_matmul_precision() == matmul
    assert loop.applied.scaler.is_enabled() is scaled
    assert {parameter.dtype for parameter in model.parameters()} == gradients == {torch.float32}


@pytest.mark.parametrize("usual", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_convolutions_run_as_in_a_plain_script(precision, usual):
    torch.backends.cudnn.allow_tf32 = usual
    training(regression(), precision=precision)
    assert torch.backends.cudnn.allow_tf32 is usual


def test_tf32_is_for_convolutions_too():
    torch.backends.cudnn.allow_tf32 = False
    training(regression(), precision="tf32")
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("usual", [True, False])
def test_tf32_of_convolutions_is_undone(usual):
    torch.backends.cudnn.allow_tf32 = usual
    float32_matmul(knobs(precision="tf32")).undo()
    assert torch.backends.cudnn.allow_tf32 is usual


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="since torch 2.9")
@pytest.mark.parametrize("part", ["", ".cudnn", ".cudnn.conv"])
def test_tf32_is_undone_where_the_script_has_set_the_format_of_some_products(part, monkeypatch):
    cudnn = torch.backends.cudnn
    for product in (cudnn.conv, cudnn.rnn):
        product.fp32_precision = "none"  # as what it belongs to
    monkeypatch.setattr(f"torch.backends{part}.fp32_precision", "ieee")
    before = [cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision]
    found = float32_matmul(knobs(precision="tf32"))
    assert cudnn.allow_tf32
    found.undo()
    assert [cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision] == before


@pytest.mark.parametrize("before", ["tf32", "bf16", "fp16"])
def test_fp32_products_are_strict_whatever_was_set_before(before):
    training(regression(), precision=before)
    training(regression(), precision="fp32")
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.is_autocast_enabled("cpu")


def test_the_loss_is_computed_under_autocast_and_the_update_is_not():
    states = {}
    plain = regression()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        states["loss"] = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        return plain.loss(model, batch)

    loop = training(dataclasses.replace(plain, loss=loss), precision="bf16")
    loop.updates.optimizers[0].register_step_pre_hook(
        lambda *_: states.update(step=torch.is_autocast_enabled("cpu"))
    )
    loop.step()
    assert states == {"loss": (True, torch.bfloat16), "step": False}


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_an_update_is_the_same_up_to_rounding_in_every_precision(precision, accumulation):
    updates = []
    for chosen in ("fp32", precision):
        torch.manual_seed(0)
        model = nn.Linear(16, 16)
        before = nn.utils.parameters_to_vector(model.parameters()).clone()
        workload = regression(model, width=16)
        loop = training(workload, precision=chosen, accumulation_steps=accumulation)
        loop.step()
        updates.append(nn.utils.parameters_to_vector(model.parameters()) - before)
    reference, found = updates
    assert reference.norm() > 0
    assert (found - reference).norm() < 0.03 * reference.norm()


def test_fp16_skips_an_update_that_overflows():
    model = nn.Linear(16, 16)
    plain = regression(model, width=16)
    huge = dataclasses.replace(plain, loss=lambda model, batch: plain.loss(model, batch) * 1e30)
    loop = training(huge, precision="fp16", log_interval=100)
    before = nn.utils.parameters_to_vector(model.parameters()).clone()
    scale = loop.applied.scaler.get_scale()
    loop.step()
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)
    assert loop.applied.scaler.get_scale() < scale


# accumulation_steps


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("accumulation", [1, 2, 5])
def test_gradients_travel_once_per_step_while_forwards_multiply(accumulation, view):
    forwards = 0
    model = stack()

    def count(*_: Any) -> None:
        nonlocal forwards
        forwards += 1

    model.register_forward_hook(count)
    loop = training(
        regression(model),
        accumulation_steps=accumulation,
        bucket_cap_mb=0.6,
        gradient_as_bucket_view=view,
    )
    traffic = settled(loop)
    forwards = 0
    sizes = traffic.of(loop, steps=3)
    assert len(sizes) > 3
    assert sum(sizes) == 3 * LAYERS * LAYER_BYTES
    assert forwards == 3 * accumulation


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize(("micro_batch", "accumulation"), [(4, 2), (2, 4), (1, 8)])
def test_accumulated_gradients_are_those_of_one_large_batch(micro_batch, accumulation, view):
    weights = []
    for split in ((8, 1), (micro_batch, accumulation)):
        torch.manual_seed(0)
        model = nn.Linear(16, 16)
        loop = training(
            regression(model, width=16),
            micro_batch=split[0],
            accumulation_steps=split[1],
            gradient_as_bucket_view=view,
        )
        for _ in range(3):
            loop.step()
        weights.append(nn.utils.parameters_to_vector(model.parameters()))
    assert torch.allclose(*weights, atol=1e-6)


def test_no_gradient_is_carried_into_the_next_step():
    model = nn.Linear(16, 16)
    loop = training(regression(model, width=16), accumulation_steps=2)
    loop.step()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


# log_interval


class Watched(torch.Tensor):
    """Counts how often its value is brought to the host."""

    reads = 0

    def __float__(self) -> float:
        Watched.reads += 1
        return super().__float__()

    def item(self) -> Any:
        Watched.reads += 1
        return super().item()

    def tolist(self) -> Any:
        Watched.reads += 1
        return super().tolist()

    def __bool__(self) -> bool:
        Watched.reads += 1
        return super().__bool__()


def watched_regression() -> autotune.Workload:
    Watched.reads = 0
    plain = regression(nn.Linear(16, 16), width=16)
    return dataclasses.replace(
        plain, loss=lambda model, batch: plain.loss(model, batch).as_subclass(Watched)
    )


@pytest.mark.parametrize(("interval", "reads"), [(1, 20), (3, 6), (10, 2), (21, 0)])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_loss_is_read_every_log_interval_of_steps(interval, reads, accumulation):
    loop = training(watched_regression(), log_interval=interval, accumulation_steps=accumulation)
    for _ in range(20):
        loop.step()
    assert Watched.reads == reads


def blocks_of(loop: TrainingLoop, plan: BlockPlan) -> list[BlockReport]:
    request = of_one_rank(loop.knobs, blocks=plan)
    reports: list[BlockReport] = []
    loop.take(run_blocks(loop, request, RankContext(0, 0, 1, (CPU,)), reports.append))
    return reports


def test_every_block_holds_a_loss_even_where_logging_is_rarer():
    loop = training(watched_regression(), log_interval=1000)
    reports = blocks_of(loop, BlockPlan(seconds=1e-6, min_steps=2, max_blocks=5))
    assert [report.steps for report in reports] == [1, 2, 2, 2, 2]
    assert all(math.isfinite(report.loss) for report in reports)
    assert Watched.reads == 5


def test_a_block_of_whole_intervals_reads_no_more_than_logging_asks_for():
    loop = training(watched_regression(), log_interval=5)
    reports = blocks_of(loop, BlockPlan(seconds=1e-6, min_steps=10, max_blocks=4))
    assert [report.steps for report in reports] == [1, 10, 10, 10]
    assert Watched.reads == 1 + 2 * 3


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_an_error_at_the_next_reading(value):
    plain = regression(nn.Linear(16, 16), width=16)
    broken = dataclasses.replace(
        plain, loss=lambda model, batch: plain.loss(model, batch) * 0 + value
    )
    loop = training(broken, log_interval=3)
    loop.step()
    loop.step()
    with pytest.raises(NonFiniteLoss, match="step 3"):
        loop.step()


# stream_prefetch, qkv_streams


@pytest.mark.parametrize("knob", ["stream_prefetch", "qkv_streams"])
def test_streams_need_a_cuda_device(knob):
    reasons = search_spaces.infeasible(knobs(**{knob: True}), Facts("cpu", 2))
    assert len(reasons) == 1
    assert f"{knob}=true needs a CUDA device" in reasons[0]
    assert "CPU" in reasons[0]
    assert search_spaces.infeasible(knobs(**{knob: True}), Facts("cuda", 2, (7, 0))) == []


def test_tf32_needs_a_device_that_has_it():
    wanted = knobs(precision="tf32")
    assert "tf32" in search_spaces.infeasible(wanted, Facts("cpu", 2))[0]
    assert "7.5" in search_spaces.infeasible(wanted, Facts("cuda", 2, (7, 5)))[0]
    assert search_spaces.infeasible(wanted, Facts("cuda", 2, (8, 0))) == []


class Attending(nn.Module):
    """An attention module of a user's."""

    def __init__(self, *, streams: bool = False) -> None:
        super().__init__()
        self.qkv_streams = streams
        self.layer = nn.Linear(2, 2)


def test_qkv_streams_is_set_on_every_module_that_offers_it():
    model = nn.Sequential(Attending(), nn.Linear(2, 2), nn.Sequential(Attending()))
    modules = [module for module in model.modules() if isinstance(module, Attending)]
    kernels.qkv_streams(knobs(qkv_streams=True), model)
    assert [module.qkv_streams for module in modules] == [True, True]
    kernels.qkv_streams(knobs(qkv_streams=False), model)
    assert [module.qkv_streams for module in modules] == [False, False]
    assert not hasattr(model[1], "qkv_streams")


def test_qkv_streams_off_overrides_a_model_that_has_it_on():
    model = Attending(streams=True)
    kernels.qkv_streams(knobs(), model)
    assert model.qkv_streams is False


def test_qkv_streams_on_a_model_without_such_modules_is_an_error():
    with pytest.raises(ValueError, match="no module of the model has a `qkv_streams` attribute"):
        kernels.qkv_streams(knobs(qkv_streams=True), stack())
    kernels.qkv_streams(knobs(qkv_streams=False), stack())


# The knobs and the catalogue


@pytest.mark.parametrize("name", search_spaces.CATALOGUE)
def test_every_knob_of_the_catalogue_is_asked_for_by_the_rank(name):
    """A knob that nothing reads would be searched in vain."""
    of_workers = name in ("persistent_workers", "prefetch_factor")
    parallelism = "data_parallel" if name == "loss_placement" else "ddp"
    if name.startswith("fsdp_"):
        parallelism = "fsdp"
    without = knobs(num_workers=int(of_workers), parallelism=parallelism)
    del without[name]
    request = of_one_rank(without)
    with pytest.raises(KeyError, match=name):
        process.environment(without)
        process.threads(without, 1)
        process.near_device(without, CPU)
        process.own_share(without, local_rank=0, ranks=1)
        TrainingLoop(regression(), request, RankContext(0, 0, 1, (CPU,)), lambda: None).step()


def test_the_catalogue_knows_the_variables_that_knobs_set():
    for name, knob in search_spaces.CATALOGUE.items():
        other = {**search_spaces.defaults(), name: _other(knob)}
        found = process.environment(other) if knob.acts_on == "process" else {}
        known = {*knob.variables} - {"OMP_NUM_THREADS"}
        assert {*found} - {"PYTORCH_CUDA_ALLOC_CONF"} == known, name


def _other(knob: search_spaces.Knob) -> Any:
    """A value that is not its default."""
    if isinstance(knob.domain, Choice):
        return next(value for value in knob.domain.values if value != knob.default)
    return 1 if knob.default != 1 else 2
