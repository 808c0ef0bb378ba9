"""What knobs do on a CUDA device, in this process: streams, number formats, kernels."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import autotune
from autotune.worker.effects import feeding, kernels
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.loop import TrainingLoop
from autotune.workloads.attention import Attention
from tests.gpu.on_device import BATCH, MARKS, knobs
from tests.support.trials import of_one_rank

pytestmark = MARKS

needs_tf32 = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0),
    reason="needs a device with TF32",
)

WIDTH = 512
BATCH_BYTES = BATCH * WIDTH * 4


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def regression() -> autotune.Workload:
    generator = torch.Generator().manual_seed(1)
    return autotune.Workload(
        model=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)),
        dataset=[torch.randn(WIDTH, generator=generator) for _ in range(4 * BATCH)],
        loss=lambda model, batch: ((model(batch) - batch) ** 2).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


def training(workload: autotune.Workload | None = None, **changes: Any) -> TrainingLoop:
    torch.manual_seed(0)
    request = of_one_rank(knobs(**changes), device="cuda")
    context = RankContext(0, 0, 1, (torch.device("cuda", 0),))
    return TrainingLoop(workload or regression(), request, context, lambda: None)


def weights(loop: TrainingLoop) -> torch.Tensor:
    return nn.utils.parameters_to_vector(loop.model.parameters()).detach()


def device_events(work: Callable[[], object], folder: Path) -> list[dict[str, Any]]:
    """What the device did meanwhile, by the profiler: kernels and copies with their streams."""
    work()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(5):
            work()
        torch.cuda.synchronize()
    trace = folder / "trace.json"
    profile.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    return [event for event in events if event.get("cat") in {"kernel", "gpu_memcpy"}]


def kernel_streams(events: list[dict[str, Any]]) -> set[int]:
    return {event["args"]["stream"] for event in events if event["cat"] == "kernel"}


def batch_copy_streams(events: list[dict[str, Any]]) -> set[int]:
    return {
        event["args"]["stream"]
        for event in events
        if "HtoD" in event["name"] and event["args"].get("bytes") == BATCH_BYTES
    }


@pytest.mark.parametrize("prefetch", [False, True])
def test_prefetch_copies_batches_on_a_stream_of_its_own(
    group: None, prefetch: bool, tmp_path: Path
) -> None:
    loop = training(stream_prefetch=prefetch)
    events = device_events(loop.step, tmp_path)
    copies, kernels = batch_copy_streams(events), kernel_streams(events)
    assert copies and kernels
    assert copies.isdisjoint(kernels) is prefetch


def test_prefetch_changes_no_number(group: None) -> None:
    trained = []
    for prefetch in (False, True):
        loop = training(stream_prefetch=prefetch)
        for _ in range(50):
            loop.step()
        trained.append(weights(loop))
    assert torch.equal(*trained)


def test_a_prefetched_batch_is_whole_however_late_it_is_read() -> None:
    """A copy that is not waited for, or memory that is reused too soon, shows as a wrong sum."""
    device = torch.device("cuda", 0)
    size = 1 << 20
    host = (torch.full((size,), float(number)).pin_memory() for number in range(1000))
    batches = feeding.on_device(host, knobs(stream_prefetch=True), device)
    sums = []
    for batch in itertools.islice(batches, 200):
        torch.cuda._sleep(500_000)
        sums.append(batch.sum())
    assert [float(found) for found in sums] == [float(number * size) for number in range(200)]


@pytest.mark.parametrize("streams", [False, True])
def test_qkv_projections_run_on_streams_of_their_own(streams: bool, tmp_path: Path) -> None:
    attention = Attention(256, 4).cuda()
    kernels.qkv_streams(knobs(qkv_streams=streams), attention)
    hidden = torch.randn(8, 128, 256, device="cuda")
    events = device_events(lambda: attention(hidden, hidden), tmp_path)
    found = kernel_streams(events)
    assert (len(found) >= 4) if streams else (len(found) == 1), found


def test_qkv_streams_change_no_number() -> None:
    torch.manual_seed(0)
    attention = Attention(512, 8).cuda()
    results = []
    for streams in (False, True):
        kernels.qkv_streams(knobs(qkv_streams=streams), attention)
        for repetition in range(20):
            torch.manual_seed(repetition)
            hidden = torch.randn(16, 256, 512, device="cuda", requires_grad=True)
            attention.zero_grad()
            attention(hidden, hidden, causal=True).square().mean().backward()
            gradients = [p.grad.clone() for p in attention.parameters()]
            results.append([hidden.grad.clone(), *gradients])
    for plain, streamed in zip(results[:20], results[20:], strict=True):
        for one, other in zip(plain, streamed, strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-7)


def relative_error_of_a_product() -> float:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(1024, 1024, generator=generator) for _ in range(2))
    exact = left.double() @ right.double()
    found = (left.cuda() @ right.cuda()).cpu().double()
    return float((found - exact).norm() / exact.norm())


@needs_tf32
def test_tf32_rounds_products_and_fp32_does_not(group: None) -> None:
    training(precision="tf32")
    assert 1e-5 < relative_error_of_a_product() < 1e-2
    training(precision="fp32")
    assert relative_error_of_a_product() < 1e-6


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.half)],
)
def test_autocast_acts_on_the_device(group: None, precision: str, dtype: torch.dtype) -> None:
    seen = set()
    workload = regression()
    workload.model[0].register_forward_hook(lambda *call: seen.add(call[-1].dtype))
    loop = training(workload, precision=precision)
    loop.step()
    assert seen == {dtype}
    assert loop.applied.scaler.is_enabled() is (precision == "fp16")
    assert weights(loop).isfinite().all()


def capable(major: int, minor: int) -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (major, minor)


@pytest.mark.skipif(not capable(8, 9), reason="needs a device with FP8")
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_products_of_linear_layers_are_rounded_to_fp8(group: None, recipe: str) -> None:
    pytest.importorskip("torchao.float8")
    trained = []
    for chosen in ("none", recipe):
        loop = training(precision="bf16", float8=chosen)
        before = weights(loop)
        loop.step()
        trained.append(weights(loop) - before)
    exact, rounded = trained
    assert 1e-3 < (rounded - exact).norm() / exact.norm() < 0.3


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_blocks_that_are_compiled_train_as_others(group: None, mode: str) -> None:
    trained = []
    for chosen in ({}, {"compile": mode, "compile_scope": "blocks"}):
        torch.manual_seed(0)
        workload = regression()
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        loop = training(dataclasses.replace(workload, model=model), **chosen)
        for _ in range(5):
            loop.step()
        trained.append(weights(loop))
    assert torch.allclose(*trained, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(not capable(9, 0), reason="needs a device of compute capability 9.0")
def test_flash_attention_3_computes_what_the_usual_one_does(group: None) -> None:
    pytest.importorskip("flash_attn_interface")
    found = []
    hidden = torch.randn(4, 8, 256, 64, device="cuda", dtype=torch.bfloat16)
    for chosen in ("flash", "flash3"):
        kernels.flash_attention(knobs(attention=chosen))
        with kernels.attention(knobs(attention=chosen)):
            found.append(nn.functional.scaled_dot_product_attention(hidden, hidden, hidden))
    torch.nn.attention.restore_flash_attention_impl()
    assert torch.allclose(*found, atol=2e-2)
