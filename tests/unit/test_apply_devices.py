"""What the knobs that are meant for GPUs change, where that shows without one: compilation by blocks,
FSDP2's sums, processors, and what the library is told."""

import contextlib
import os
import sys
import threading
import types
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.attention import (
    current_flash_attention_impl,
    register_flash_attention_impl,
    restore_flash_attention_impl,
)
from torch.nn.attention._fa3 import register_flash_attention_fa3

from autotune.worker.effects import kernels, process
from tests.support.one_rank import (
    group,
    knobs,
    regression,
    settings_of_torch,
    stack,
    training,
)

__all__ = ["group", "settings_of_torch"]  # fixtures

# compile, compile_scope

DEEP = 10  # more than torch.compile compiles one function for


class Scaled(nn.Module):
    """A block that differs from its neighbours in a number, which compiled code contains."""

    def __init__(self, number):
        super().__init__()
        self.number = number
        self.layer = nn.Linear(16, 16)

    def forward(self, inputs):
        """(batch, 16) -> the same."""
        return torch.relu(self.layer(inputs)) * (1 + self.number / DEEP)


@pytest.fixture
def compiled_calls(monkeypatch):
    """How often compiled code ran; compiling itself takes no time."""
    calls = []
    plain = torch.compile

    def backend(graph, _):
        def run(*inputs):
            calls.append(graph)
            return graph.forward(*inputs)

        return run

    monkeypatch.setattr(torch, "compile", lambda function, mode: plain(function, backend=backend))
    yield calls
    torch._dynamo.reset()


@pytest.fixture
def limits_of_compilation():
    limit = torch._dynamo.config.cache_size_limit
    yield
    torch._dynamo.config.cache_size_limit = limit


def scaled():
    torch.manual_seed(0)
    return regression(nn.Sequential(*map(Scaled, range(DEEP))), width=16)


@pytest.mark.parametrize("checkpointing", [0, 1])
@pytest.mark.parametrize(("scope", "calls"), [("model", 1), ("blocks", DEEP)])
def test_the_model_is_compiled_as_one_or_block_by_block(
    compiled_calls, limits_of_compilation, scope, calls, checkpointing
):
    loop = training(
        scaled(), compile="default", compile_scope=scope, activation_checkpointing=checkpointing
    )
    for _ in range(2):
        compiled_calls.clear()
        loop.step()
        assert len(compiled_calls) == calls


@pytest.mark.slow
def test_blocks_that_are_compiled_train_as_others(limits_of_compilation):
    weights = []
    for chosen in ({}, {"compile": "default", "compile_scope": "blocks"}):
        loop = training(scaled(), **chosen)
        names = [name for name, _ in loop.model.named_parameters()]
        for _ in range(2):
            loop.step()
        weights.append(nn.utils.parameters_to_vector(loop.model.parameters()))
        assert "module.0.layer.weight" in names
    torch._dynamo.reset()
    assert torch.allclose(*weights, atol=1e-6)


def test_a_model_without_blocks_is_not_compiled_by_blocks():
    with pytest.raises(ValueError, match=r"compile_scope=blocks: the model has no nn\.ModuleList"):
        training(regression(nn.Linear(16, 16), width=16), compile="default", compile_scope="blocks")


@pytest.mark.parametrize("scope", ["model", "blocks"])
def test_the_mode_is_told_to_torch(monkeypatch, limits_of_compilation, scope):
    """Compiling in this mode takes a minute on a CPU."""
    modes = []
    monkeypatch.setattr(torch, "compile", lambda function, mode: (modes.append(mode), function)[1])
    mode = "max-autotune-no-cudagraphs"
    kernels.compiled(knobs(compile=mode, compile_scope=scope), stack())
    assert set(modes) == {mode}
    assert mode in torch._inductor.list_mode_options()


# float8


def test_without_torchao_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(ValueError, match=r"pip install '.*\[float8\]'"):
        kernels.converted_to_float8(knobs(float8="rowwise"), stack())


# fsdp_prefetch, fsdp_reduce_dtype


def test_prefetching_changes_no_number():
    weights = []
    for ahead in (0, 3):
        torch.manual_seed(0)
        loop = training(regression(), parallelism="fsdp", fsdp_prefetch=ahead)
        for _ in range(3):
            loop.step()
        weights.append([p.to_local().clone() for p in loop.model.parameters()])
    assert all(map(torch.equal, *weights))


def test_prefetching_needs_blocks():
    with pytest.raises(ValueError, match="fsdp_prefetch: the model has no"):
        training(regression(nn.Linear(16, 16), width=16), parallelism="fsdp", fsdp_prefetch=1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("format_", ["fp32", "bf16"])
def test_gradients_are_summed_in_the_format_that_is_asked_for(format_, precision):
    loop = training(
        regression(), parallelism="fsdp", fsdp_reduce_dtype=format_, precision=precision
    )
    rounded = []

    def look(*_):
        for parameter in loop.model.parameters():
            gradient = parameter.grad.to_local()
            assert gradient.dtype == torch.float32
            rounded.append(torch.equal(gradient, gradient.bfloat16().float()))

    loop.updates.optimizers[0].register_step_pre_hook(look)
    loop.step()
    if precision == "fp32":
        assert set(rounded) == {format_ == "bf16"}
    policy = loop.model._get_fsdp_state()._mp_policy
    wanted = {"bf16": torch.bfloat16, "fp32": torch.float32 if precision == "bf16" else None}
    assert policy.reduce_dtype == wanted[format_]


# cudnn_benchmark


@pytest.mark.parametrize("usual", [False, True])
@pytest.mark.parametrize("chosen", [False, True])
def test_cudnn_looks_for_the_fastest_algorithm_where_asked(monkeypatch, chosen, usual):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", usual)
    training(regression(), cudnn_benchmark=chosen)
    assert torch.backends.cudnn.benchmark is (chosen or usual)


# attention


@pytest.fixture
def implementations():
    yield
    register_flash_attention_impl("FA3", register_fn=register_flash_attention_fa3)
    restore_flash_attention_impl(_raise_warn=False)


def test_flash_attention_3_takes_the_place_of_the_usual_one(implementations):
    handle = types.SimpleNamespace(remove=lambda: None)
    register_flash_attention_impl("FA3", register_fn=lambda: handle)
    kernels.flash_attention(knobs(attention="flash"))
    assert current_flash_attention_impl() is None
    kernels.flash_attention(knobs(attention="flash3"))
    assert current_flash_attention_impl() == "FA3"
    with kernels.attention(knobs(attention="flash3")):
        assert torch.backends.cuda.flash_sdp_enabled()
        assert not torch.backends.cuda.math_sdp_enabled()


def test_without_flash_attention_3_its_module_is_named():
    with pytest.raises(
        ValueError, match="needs FlashAttention 3 with its module flash_attn_interf"
    ):
        kernels.flash_attention(knobs(attention="flash3"))
    assert current_flash_attention_impl() is None


def test_a_torch_that_cannot_register_it_says_so(monkeypatch):
    monkeypatch.delattr(torch.nn.attention, "activate_flash_attention_impl")
    with pytest.raises(ValueError, match="cannot register FlashAttention 3; use a newer one"):
        kernels.flash_attention(knobs(attention="flash3"))


# numa_binding


@pytest.fixture
def processors():
    """Those of this process, which has them back afterwards."""
    before = os.sched_getaffinity(0)
    yield sorted(before)
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has ended meanwhile
            os.sched_setaffinity(int(task.name), before)


def described(folder, listed):
    device = folder / "0000:3b:00.0"
    device.mkdir()
    (device / "local_cpulist").write_text(listed + "\n")
    return device.name


def test_all_threads_run_near_the_device(processors, tmp_path):
    found, done, bound = [], threading.Event(), threading.Event()

    def run():
        bound.wait()
        found.append(os.sched_getaffinity(0))
        done.set()

    threading.Thread(target=run, daemon=True).start()
    nearest = processors[-1]
    process.bind(described(tmp_path, f"{nearest},{nearest + 1000}-{nearest + 1003}"), tmp_path)
    bound.set()
    assert done.wait(60)
    assert found == [{nearest}] == [os.sched_getaffinity(0)]


@pytest.mark.parametrize("listed", ["", "1000-1003,1010"])
def test_a_rank_without_a_processor_near_its_device_is_refused(processors, tmp_path, listed):
    with pytest.raises(ValueError, match=r"numa_binding: none of the processors near .* may be"):
        process.bind(described(tmp_path, listed), tmp_path)
    assert sorted(os.sched_getaffinity(0)) == processors


def test_a_device_of_which_nothing_is_known_is_refused(processors, tmp_path):
    with pytest.raises(ValueError, match="numa_binding: no processors are known to be near"):
        process.bind("0000:00:00.0", tmp_path)


def test_nothing_is_bound_unless_asked(processors):
    process.near_device(knobs(), torch.device("cuda", 0))
    assert sorted(os.sched_getaffinity(0)) == processors


# cpu_affinity


def test_ranks_divide_the_processors_evenly(processors):
    half = len(processors) // 2
    process.own_share(knobs(cpu_affinity="share"), 1, 2)
    wanted = set(processors[half : 2 * half]) if half else set(processors)
    assert os.sched_getaffinity(0) == wanted


def test_where_there_are_fewer_than_ranks_the_system_divides_them(processors):
    process.own_share(knobs(cpu_affinity="share"), 0, len(processors) + 1)
    assert sorted(os.sched_getaffinity(0)) == processors


def test_nothing_is_divided_unless_asked(processors):
    process.own_share(knobs(), 1, 2)
    assert sorted(os.sched_getaffinity(0)) == processors


def test_neighbours_stay_together(tmp_path):
    """Two sockets of two cores with two threads each, numbered as Linux often does; 9 is not told."""
    for number in range(8):
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{number % 2}\n")
        (topology / "core_id").write_text(f"{number // 2 % 2}\n")
    assert process.in_order(range(8), tmp_path) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert process.in_order([9, 1, 0], tmp_path) == [0, 9, 1]


@pytest.mark.parametrize(
    ("told", "bound"),
    [
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"}, False),
        ({"LOCAL_RANK": "one", "LOCAL_WORLD_SIZE": "2"}, False),
    ],
)
def test_a_job_whose_launcher_does_not_tell_its_ranks_stays_as_it_is(
    processors, monkeypatch, told, bound
):
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert process.share_of_job(knobs(cpu_affinity="share")) == bound
    assert sorted(os.sched_getaffinity(0)) == processors


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is nothing to divide")
def test_a_rank_that_its_launcher_has_bound_stays_there(processors, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    os.sched_setaffinity(0, processors[1:])
    assert not process.share_of_job(knobs(cpu_affinity="share"))
    assert sorted(os.sched_getaffinity(0)) == processors[1:]
