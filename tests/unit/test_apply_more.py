"""What the knobs of kernels, memory, loader and gradient format change, observed in torch itself."""

import dataclasses
import gc
import os
import types
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

import autotune
from autotune.worker.effects import feeding, kernels, parallel, process
from autotune.worker.protocol import Placement, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.main import environment
from autotune.worker.rank.norms import UpdateNorms
from autotune.worker.rank.trajectory import run_trajectory
from tests.support.one_rank import (
    CPU,
    LAYER_BYTES,
    LAYERS,
    MIB,
    WIDTH,
    group,
    regression,
    settings_of_torch,
    settled,
    stack,
    training,
)
from tests.support.trials import knobs

__all__ = ["group", "settings_of_torch"]  # fixtures


class Operators(TorchDispatchMode):
    """Names of the operators that run inside."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


# optimizer_kernels


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.1)


def update_of(kernels):
    """The operators of one update, and the weights after it."""
    torch.manual_seed(0)
    workload = regression()
    workload = autotune.Workload(workload.model, workload.dataset, workload.loss, adam)
    loop = training(workload, optimizer_kernels=kernels)
    with Operators() as seen:
        loop.step()
    return seen.names, nn.utils.parameters_to_vector(loop.model.parameters())


def test_optimizer_kernels_update_all_parameters_at_once():
    loop, weights = update_of("default")
    foreach, same = update_of("foreach")
    fused, also = update_of("fused")
    assert not any(name.startswith(("_foreach", "_fused")) for name in loop)
    assert any(name.startswith("_foreach") for name in foreach)
    assert "_fused_adamw_" in fused
    assert len(fused) < len(foreach) < len(loop)
    assert torch.allclose(weights, same, atol=1e-5)
    assert torch.allclose(weights, also, atol=1e-5)


def test_an_optimizer_without_that_kernel_is_refused_by_name():
    workload = regression()
    workload = autotune.Workload(
        workload.model, workload.dataset, workload.loss, lambda p: torch.optim.SparseAdam(list(p))
    )
    with pytest.raises(ValueError, match="optimizer_kernels=fused: SparseAdam has no fused"):
        training(workload, optimizer_kernels="fused")


@pytest.mark.parametrize("dropped", [True, False])
def test_gradients_are_dropped_or_set_to_zero(dropped):
    loop = training(regression(), set_to_none=dropped)
    loop.step()
    gradients = [p.grad for p in loop.model.parameters()]
    assert all(g is None if dropped else not g.any() for g in gradients)


# activation_checkpointing


@pytest.mark.parametrize(("every", "twice"), [(0, 0), (1, 8), (2, 4), (3, 3)])
def test_every_so_many_th_block_computes_its_forward_twice(every, twice):
    calls = 0
    model = stack()

    def count(*_):
        nonlocal calls
        calls += 1

    for layer in model:
        layer.register_forward_hook(count)
        inner = layer.forward
        layer.forward = lambda x, inner=inner: (count(), inner(x))[1]
    for layer in model:
        layer._forward_hooks.clear()
    loop = training(regression(model), activation_checkpointing=every)
    loop.step()
    assert calls == LAYERS + twice


def test_checkpointing_changes_no_gradient():
    weights = []
    for every in (0, 1, 2):
        torch.manual_seed(0)
        loop = training(regression(), activation_checkpointing=every, accumulation_steps=2)
        for _ in range(3):
            loop.step()
        weights.append(nn.utils.parameters_to_vector(loop.model.parameters()))
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


def test_checkpointing_without_blocks_is_refused_with_advice():
    with pytest.raises(ValueError, match=r"has no nn\.ModuleList"):
        training(regression(nn.Linear(16, 16), width=16), activation_checkpointing=1)


class Caching(nn.Module):
    """A model as of transformers before 5.23, whose blocks add to a list as they run."""

    supports_gradient_checkpointing = True

    def __init__(self, *, use_cache):
        super().__init__()
        self.config = types.SimpleNamespace(use_cache=use_cache)
        self.blocks = nn.ModuleList(Keeping() for _ in range(2))

    def forward(self, x):
        cache = [] if self.config.use_cache else None
        for block in self.blocks:
            x = block(x, cache)
        return x


class Keeping(nn.Linear):
    def __init__(self):
        super().__init__(16, 16)

    def forward(self, x, cache):
        y = super().forward(x).tanh()
        if cache is None:
            return y
        cache.append(y)
        return torch.cat(cache).sum(0, keepdim=True) + y


def test_blocks_that_keep_a_cache_are_all_checkpointed_or_none():
    with pytest.raises(ValueError, match="set use_cache=False in the model's config"):
        training(regression(Caching(use_cache=True), width=16), activation_checkpointing=2)
    training(regression(Caching(use_cache=False), width=16), activation_checkpointing=2).step()


def test_block_inside_of_a_block_is_none():
    stages = nn.Sequential(*(nn.Sequential(Block(), Block()) for _ in range(2)))
    assert parallel.blocks(stages) == [*stages]


# channels_last


@pytest.mark.parametrize("last", [False, True])
def test_channels_last(last):
    formats = []

    def look(module, inputs):
        formats.extend([inputs[0], module.weight])

    model = nn.Conv2d(3, 4, 3)
    model.register_forward_pre_hook(look)
    images = [(torch.randn(3, 8, 8), torch.zeros(4, 6, 6)) for _ in range(8)]
    workload = autotune.Workload(
        model,
        images,
        lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    training(workload, channels_last=last).step()
    innermost = [t.is_contiguous(memory_format=torch.channels_last) for t in formats]
    assert innermost == [last, last]


def test_channels_last_leaves_other_convolutions_as_they_are():
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv3d(4, 4, 3), nn.Conv1d(4, 4, 3))
    kernels.channels_last(knobs(channels_last=True), model)
    assert [layer.weight.is_contiguous() for layer in model] == [False, True, True]


# num_workers


class WhoAmI(torch.utils.data.Dataset):
    """Every sample is the process that prepared it."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor(float(os.getpid()))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_loader_workers_prepare_the_batches(workers):
    seen = set()

    def loss(model, batch):
        seen.update(int(pid) for pid in batch)
        return model(batch[:, None] * 0).square().mean()

    workload = autotune.Workload(
        nn.Linear(1, 1), WhoAmI(), loss, lambda p: torch.optim.SGD(p, lr=0.1)
    )
    persistent = workers > 0
    loop = training(workload, num_workers=workers, persistent_workers=persistent, micro_batch=4)
    for _ in range(20):  # more than an epoch: they live on
        loop.step()
    assert len(seen) == max(1, workers)
    assert (os.getpid() in seen) is (workers == 0)


# gradient_compression, static_graph, broadcast_buffers


@pytest.mark.slow
def test_gradients_travel_in_half_precision():
    dtypes = []
    for chosen in ("none", "fp16"):
        torch.manual_seed(0)
        loop = training(regression(), gradient_compression=chosen)
        with Operators() as seen:
            loop.step()
        del seen
        grads = {}
        loop.updates.optimizers[0].register_step_pre_hook(
            lambda *_, grads=grads, loop=loop: grads.update(
                {n: p.grad.clone() for n, p in loop.model.named_parameters()}
            )
        )
        loop.step()
        rounded = all(torch.equal(g, g.half().float()) for g in grads.values())
        dtypes.append(rounded)
    assert dtypes == [False, True]


@pytest.mark.long
def test_a_static_graph_is_told_to_ddp_and_changes_no_number():
    weights = []
    for static in (False, True):
        torch.manual_seed(0)
        loop = training(regression(), static_graph=static)
        assert loop.model.static_graph is static
        for _ in range(4):
            loop.step()
        weights.append(nn.utils.parameters_to_vector(loop.model.parameters()))
    assert torch.equal(*weights)


@pytest.mark.parametrize("broadcast", [False, True])
def test_buffers_are_sent_or_not(broadcast):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    loop = training(regression(model), broadcast_buffers=broadcast)
    assert loop.model._get_ddp_logging_data()["broadcast_buffers"] == int(broadcast)
    assert loop.model.will_sync_module_buffers() is broadcast
    loop.step()


def test_the_defaults_are_those_of_a_plain_script():
    found = knobs()
    plain = {"static_graph": False, "broadcast_buffers": True, "gradient_compression": "none"}
    assert {name: found[name] for name in plain} == plain
    assert (found["num_workers"], found["optimizer_kernels"]) == (0, "default")


# first_bucket_mb, find_unused_parameters


def test_the_first_bucket_is_as_large_as_asked():
    firsts = []
    for size in (0.1, 1):
        loop = training(regression(), first_bucket_mb=size)
        firsts.append(settled(loop).of(loop)[0])
    assert firsts[0] < firsts[1]
    assert 0.1 * MIB <= firsts[0] <= 0.1 * MIB + LAYER_BYTES


def test_unused_parameters_are_looked_for():
    model = stack()
    model.register_parameter("unused", nn.Parameter(torch.ones(1)))
    loop = training(regression(model), find_unused_parameters=True)
    for _ in range(3):
        loop.step()
    assert loop.model.find_unused_parameters
    assert not training(regression()).model.find_unused_parameters


# precision


def test_pure_bf16_has_no_fp32_copy():
    loop = training(regression(), precision="pure_bf16")
    loop.step()
    assert {p.dtype for p in loop.model.parameters()} == {torch.bfloat16}
    assert not loop.applied.scaler.is_enabled()


@pytest.mark.parametrize("factor", [1, 1e30])
@pytest.mark.long
def test_the_gate_sees_the_gradients_of_fused_fp16_without_their_scale(factor):
    plain = regression(nn.Linear(16, 16), width=16, rate=0.01)

    def loss(model, batch):
        return plain.loss(model, batch) * factor

    norms = []
    for chosen in ("default", "fused"):
        torch.manual_seed(0)
        workload = dataclasses.replace(plain, model=nn.Linear(16, 16), loss=loss)
        loop = training(workload, precision="fp16", optimizer_kernels=chosen)
        request = TrialRequest("t", "m:f", {}, loop.knobs, 1, 0, "cpu", trajectory=1)
        reports = []
        context = RankContext(0, 0, 1, (CPU,))
        loop.take(run_trajectory(loop, UpdateNorms(loop), request, context, reports.append))
        norms.append(reports[0].observed.get("gradient_norm"))
    if factor > 1:
        assert norms == [None, None], "gradients overflow: no update, no norm"
    else:
        assert norms[1] == pytest.approx(norms[0], rel=1e-3)


# compile, attention


@pytest.mark.slow
def test_compile_compiles_the_model():
    counters = torch._dynamo.utils.counters
    counters.clear()
    model = stack()
    loop = training(regression(model), compile="default")
    loop.step()
    assert counters["stats"]["unique_graphs"] >= 1
    torch._dynamo.reset()


class Block(nn.Module):
    """What a transformer repeats, as far as the shape of its data goes."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        return hidden + self.inner(hidden).relu()


class Headed(nn.Module):
    """Blocks, and parameters in none of them."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


@pytest.mark.parametrize(
    ("parallelism", "blocks_kept"), [("fsdp", False), ("fsdp_no_reshard", True)]
)
def test_what_is_in_no_block_is_not_gathered_twice(parallelism, blocks_kept):
    model = parallel.wrapped(knobs(parallelism=parallelism), Headed(), CPU)
    model(torch.ones(2, WIDTH))
    kept = [not isinstance(w, DTensor) for w in (model.head.weight, model.blocks[0].inner.weight)]
    assert kept == [True, blocks_kept]


@pytest.mark.slow
def test_blocks_that_are_sharded_are_compiled_one_by_one():
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    loop = training(regression(Headed()), compile="default", parallelism="fsdp")
    for _ in range(2):
        loop.step()
    assert counters["stats"]["unique_graphs"] >= 1
    assert not counters["graph_break"], "hooks of FSDP2 are outside of what is compiled"
    assert list(counters["frames"]) and counters["frames"]["ok"] == counters["frames"]["total"]
    torch._dynamo.reset()


class OneHead(nn.Module):
    """Attention and nothing else."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 16)

    def forward(self, inputs):
        """(batch, 8, 16) -> the same."""
        heads = self.project(inputs)[:, None]
        return nn.functional.scaled_dot_product_attention(heads, heads, heads)[:, 0]


@pytest.mark.parametrize(("chosen", "fused"), [("auto", True), ("flash", True), ("unfused", False)])
def test_attention_takes_the_implementation_that_is_asked_for(chosen, fused):
    data = [(torch.randn(8, 16), torch.randn(8, 16)) for _ in range(16)]
    workload = autotune.Workload(
        OneHead(),
        data,
        lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    loop = training(workload, attention=chosen)
    with Operators() as seen:
        loop.step()
    assert any("flash" in name for name in seen.names) is fused
    assert ("_softmax" in seen.names or "_safe_softmax" in seen.names) is not fused


# Loader


def test_workers_live_on_only_if_asked_and_prepare_as_many_batches_as_asked():
    loaders = {}
    for persistent in (False, True):
        found = feeding.loader(
            regression(),
            knobs(num_workers=1, persistent_workers=persistent, prefetch_factor=5),
            rank=0,
            world_size=1,
            seed=0,
        )
        loaders[persistent] = found
    assert [found.persistent_workers for found in loaders.values()] == [False, True]
    assert {found.prefetch_factor for found in loaders.values()} == {5}


@pytest.mark.parametrize("pinned", [False, True])
def test_batches_are_pinned_if_asked(pinned):
    found = feeding.loader(regression(), knobs(pin_memory=pinned), rank=0, world_size=1, seed=0)
    assert found.pin_memory is pinned


def test_fused_kernels_find_the_counts_of_a_loaded_state_on_the_device():
    parameter = torch.nn.Parameter(torch.zeros(2, device="meta"))  # stands for a CUDA device
    optimizer = torch.optim.AdamW([parameter])
    optimizer.state[parameter] = {"step": torch.tensor(7.0), "exp_avg": torch.zeros(2)}
    kernels.optimizer_kernels(knobs(optimizer_kernels="foreach"), optimizer)
    assert optimizer.state[parameter]["step"].item() == 7.0, "foreach counts on the CPU"
    kernels.optimizer_kernels(knobs(optimizer_kernels="fused"), optimizer)
    assert optimizer.state[parameter]["step"].device.type == "meta"


# The process


@pytest.mark.parametrize("newer", [True, False])
def test_allocator_is_set_without_a_warning_in_any_torch(
    monkeypatch: pytest.MonkeyPatch, newer: bool
) -> None:
    told: list[str] = []
    if newer:
        monkeypatch.setattr(
            torch._C, "_accelerator_setAllocatorSettings", told.append, raising=False
        )
    else:
        monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings", raising=False)
        monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", told.append)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        process.allocator(knobs(expandable_segments=True))
    assert told == ["max_split_size_mb:128,expandable_segments:True"]


def test_threads_environment_and_garbage_collection():
    assert process.threads(knobs(), 3) == 3
    assert process.threads(knobs(cpu_threads=2), 3) == 2
    assert process.environment(knobs()) == {}
    chosen = knobs(nccl_algo="Ring", nccl_proto="LL", nccl_channels=4, expandable_segments=True)
    assert {*process.environment(chosen)} <= {*process.VARIABLES}
    assert process.environment(chosen) == {
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "LL",
        "NCCL_MIN_NCHANNELS": "4",
        "NCCL_MAX_NCHANNELS": "4",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }


def test_ctas_registration_and_connections_are_told_by_the_environment():
    chosen = knobs(nccl_algo="NVLS", nccl_ctas=16, nccl_registration=True, cuda_connections=1)
    found = process.environment(chosen)
    assert {*found} <= {*process.VARIABLES}
    assert found == {
        "NCCL_ALGO": "NVLS",
        "NCCL_MIN_CTAS": "16",
        "NCCL_MAX_CTAS": "16",
        "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }


def test_gloo_is_told_the_interface_and_nccl_loopback_alone(monkeypatch):
    """NCCL takes a bare name as the beginning of names."""
    request = TrialRequest("t", "m:f", {}, knobs(), world_size=1, seed=3, device="cpu")
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)

    def told(interface):
        placement = Placement(0, 0, 1, "127.0.0.1", 1, interface)
        found = environment(request, placement, RankContext(0, 0, 1, (CPU,)))
        return found.get("GLOO_SOCKET_IFNAME"), found.get("NCCL_SOCKET_IFNAME")

    assert told("eth1") == ("eth1", None)
    assert told("lo") == ("lo", "=lo")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert told("lo") == ("lo", None), "what the user has set stays"


@pytest.mark.parametrize("frozen", [False, True])
def test_garbage_is_collected_or_not(frozen):
    gc.unfreeze()  # what the tests have imported
    try:
        training(regression(), freeze_gc=frozen).step()
        assert gc.isenabled() is not frozen
        assert (gc.get_freeze_count() > 0) is frozen
    finally:
        gc.enable()
        gc.unfreeze()


class Cycle:
    """Object that only the collector of garbage can free."""

    def __init__(self) -> None:
        self.own = self


def test_garbage_is_collected_at_few_steps_where_python_does_not():
    loop = training(regression(), freeze_gc=True)
    try:
        loop.step()
        left = weakref.ref(Cycle())
        for _ in range(process.COLLECTING_STEPS - 1):
            loop.step()
            assert left() is not None
        loop.step()
        assert left() is None
    finally:
        gc.enable()
        gc.unfreeze()
