"""What a step is made of, from events as torch.profiler exports them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measurement.bottleneck import STRAGGLER, breakdown, peak_flops
from autotune.worker.rank.trace import PARTS, difference, intersection, length, shares, union
from search_spaces import CATALOGUE, knob

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


def covered(intervals):
    """The unit cells that lie in intervals with integer bounds."""
    return {cell for start, end in intervals for cell in range(int(start), int(end))}


@given(pairs, pairs)
def test_intervals_are_sets(first, second):
    a, b = ([(start, start + span) for start, span in drawn] for drawn in (first, second))
    one, other = union(a), union(b)
    assert covered(one) == covered(a)
    assert covered(intersection(one, other)) == covered(a) & covered(b)
    assert covered(difference(one, other)) == covered(a) - covered(b)
    assert length(one) == len(covered(a))
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(one))


def test_profile_and_catalogue_name_the_same_parts_of_a_step():
    assert {*knob.PARTS} - {knob.PRESSURE} == {*PARTS} - {"idle"}
    acted_on = {part for entry in CATALOGUE.values() for part in entry.parts}
    assert acted_on == {*knob.PARTS}


def event(category, name, start, end, thread=1):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": start,
        "dur": end - start,
        "tid": thread,
    }


def span(name, start, end):
    return event("user_annotation", f"autotune/{name}", start, end)


numbers = itertools.count(1)


def copy(name, start, end, *, asked_at, thread=1, by="cudaMemcpyAsync", category="gpu_memcpy"):
    """A copy on the device, or a kernel, and the call that has asked for it, as kineto tells them."""
    found = (
        event("cuda_runtime", by, asked_at, asked_at + 1, thread=thread),
        event(category, name, start, end, thread=22),
    )
    return [
        {**part, "args": {"correlation": number}} for number in [next(numbers)] for part in found
    ]


def kernel(name, start, end, **options):
    return copy(name, start, end, by="cudaLaunchKernel", category="kernel", **options)


def parts(events):
    found = shares(events)._asdict()
    assert math.isclose(sum(v for name, v in found.items() if name != "idle"), 1)
    return found


HOST = [
    span("step", 0, 100),
    span("batch", 0, 20),
    span("loader", 0, 15),
    span("forward", 20, 40),
    span("backward", 40, 80),
    event("cpu_op", "aten::mm", 41, 60),
    event("cpu_op", "c10d::allreduce_", 60, 61),
    event("user_annotation", "gloo:all_reduce", 50, 78, thread=7),
    span("optimizer", 80, 90),
    span("read", 90, 95),
]


def test_on_the_cpu_the_thread_that_trains_is_the_device():
    found = parts(HOST)
    assert found["loader"] == pytest.approx(0.15)
    assert found["copies"] == pytest.approx(0.05)
    assert found["communication"] == pytest.approx(0.18)  # 60 to 78; before it was hidden
    assert found["compute"] == pytest.approx(0.42)
    assert found["optimizer"] == pytest.approx(0.10)
    assert found["synchronisation"] == pytest.approx(0.05)
    assert found["launching"] == pytest.approx(0.05)
    assert found["idle"] == 0


def test_a_script_names_neither_its_batches_nor_where_it_reads():
    found = parts(
        [
            span("step", 0, 100),
            span("loader", 0, 10),
            event("cpu_op", "aten::mm", 20, 40),  # its forward pass, of a model nobody has wrapped
            span("backward", 40, 70),
            span("optimizer", 70, 80),
            event("cpu_op", "aten::_local_scalar_dense", 80, 90),
        ]
    )
    assert found["compute"] == pytest.approx(0.50)
    assert found["optimizer"] == pytest.approx(0.10)
    assert found["synchronisation"] == pytest.approx(0.10)
    assert found["launching"] == pytest.approx(0.20)


def test_what_a_step_computes_by_itself_is_no_update():
    """The optimizer is given a function that runs both passes."""
    found = parts(
        [
            span("step", 0, 100),
            span("optimizer", 0, 100),
            span("forward", 10, 40),
            span("backward", 40, 80),
        ]
    )
    assert found["compute"] == pytest.approx(0.70)
    assert found["optimizer"] == pytest.approx(0.30)


def test_what_a_script_copies_to_the_device_outside_its_passes_is_a_batch():
    passes = [
        event("cpu_op", "aten::mm", 20, 21),
        span("forward", 20, 40),
        span("optimizer", 70, 80),
    ]
    found = parts(
        [
            span("step", 0, 100),
            *passes,
            *copy(HOST_TO_DEVICE, 10, 15, asked_at=9),
            *copy(HOST_TO_DEVICE, 30, 32, asked_at=29),
            *copy(HOST_TO_DEVICE, 75, 76, asked_at=74),
        ]
    )
    assert found["copies"] == pytest.approx(0.05)
    assert found["compute"] == pytest.approx(0.02)
    assert found["optimizer"] == pytest.approx(0.01)


def test_on_a_device_its_own_timeline_counts_and_the_host_explains_the_gaps():
    found = parts(
        [
            *HOST,
            event("kernel", "gemm", 22, 50, thread=20),
            event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 45, 70, thread=21),
            *copy("Memcpy HtoD (Pinned -> Device)", 16, 24, asked_at=15),
            *kernel("adam", 82, 90, asked_at=81),
        ]
    )
    assert found["compute"] == pytest.approx(0.28)
    assert found["communication"] == pytest.approx(0.20 + 0.08)  # gloo's until 78 fills a gap
    assert found["optimizer"] == pytest.approx(0.08)
    assert found["copies"] == pytest.approx(0.06)
    assert found["loader"] == pytest.approx(0.15)
    assert found["synchronisation"] == pytest.approx(0.05)
    assert found["idle"] == pytest.approx(1 - 0.62)


DEVICE = [
    span("step", 0, 200),
    span("batch", 0, 20),
    span("forward", 20, 60),
    span("backward", 60, 100),
    span("optimizer", 100, 120),
]
HOST_TO_DEVICE, DEVICE_TO_HOST = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"
WITHIN_DEVICE = "Memcpy DtoD (Device -> Device)"


@pytest.mark.parametrize(
    ("asked_for", "part"),
    [
        (copy(HOST_TO_DEVICE, 150, 170, asked_at=10), "copies"),
        (copy(HOST_TO_DEVICE, 150, 170, asked_at=30), "compute"),  # a mask that the model makes
        (copy(WITHIN_DEVICE, 150, 170, asked_at=10), "compute"),  # another format of the batch
        (copy(WITHIN_DEVICE, 150, 170, asked_at=30), "compute"),  # .contiguous()
        (copy(WITHIN_DEVICE, 120, 130, asked_at=110), "optimizer"),
        (copy("Memset (Device)", 150, 170, asked_at=30, category="gpu_memset"), "compute"),
        ([event("gpu_memcpy", HOST_TO_DEVICE, 150, 170, thread=22)], "compute"),
    ],
)
def test_a_copy_is_of_what_has_asked_for_it(asked_for, part):
    found = parts([*DEVICE, *asked_for])
    busy = {name for name in ("copies", "compute", "optimizer", "communication") if found[name]}
    assert busy == {part}


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("cpu_op", "c10d::allreduce_"),  # gloo begins to stage in the thread that asks it to
        ("user_annotation", "gloo:all_reduce"),  # and goes on in its own
        ("cpu_op", "torch::distributed::reducer::copy_"),
        ("cpu_op", "torch.distributed.ddp.reducer::copy_bucket_to_grad"),
        ("user_annotation", "FSDP::all_gather_copy_out"),
    ],
)
@pytest.mark.parametrize("way", [HOST_TO_DEVICE, DEVICE_TO_HOST, WITHIN_DEVICE])
def test_staging_and_bucket_copies_are_communication(category, name, way):
    host = event(category, name, 70, 80, thread=7)
    found = parts([*DEVICE, host, *copy(way, 150, 170, asked_at=75, thread=7)])
    assert found["communication"] >= 0.1
    assert found["copies"] == found["compute"] == 0


def test_what_another_thread_copies_during_a_collective_is_not_its_own():
    host = event("user_annotation", "gloo:all_reduce", 70, 80, thread=7)
    found = parts([*DEVICE, host, *copy(WITHIN_DEVICE, 150, 170, asked_at=75, thread=1)])
    assert found["compute"] == pytest.approx(0.1)


def test_the_optimizers_own_annotation_hides_nothing_of_the_update():
    """The profiler gives the kernel to the innermost annotation: that of torch, not ours."""
    inner = event("gpu_user_annotation", "Optimizer.step#AdamW.step", 120, 150, thread=20)
    found = parts([*DEVICE, inner, *kernel("adam", 120, 150, asked_at=105)])
    assert found["optimizer"] == pytest.approx(30 / 200)
    assert found["compute"] == 0


def test_what_an_optimizer_runs_of_the_passes_is_no_update_on_a_device():
    steps = [span("step", 0, 200), span("optimizer", 0, 120), span("forward", 20, 60)]
    asked = [*kernel("gemm", 130, 150, asked_at=30), *kernel("adam", 150, 160, asked_at=100)]
    found = parts([*steps, *asked])
    assert found["compute"] == pytest.approx(20 / 200)
    assert found["optimizer"] == pytest.approx(10 / 200)


def test_a_trace_without_a_step_is_refused():
    with pytest.raises(ValueError, match="no step"):
        shares([event("cpu_op", "aten::mm", 0, 1)])


def test_the_pace_is_set_by_the_rank_that_waits_least():
    made = breakdown({"compute": [0.3, 0.8], "communication": [0.6, 0.1], "optimizer": [0.1, 0.1]})
    assert made[STRAGGLER] == pytest.approx(0.5)
    assert made["compute"] == pytest.approx(0.3)
    assert made["communication"] == pytest.approx(0.1)
    assert sum(made.values()) == pytest.approx(1)


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=5))
def test_the_breakdown_adds_up_to_one(ranks):
    columns = zip(*[[v / sum(rank) for v in rank] for rank in ranks], strict=True)
    names = ("compute", "communication", "loader")
    made = breakdown(dict(zip(names, map(list, columns), strict=True)))
    assert math.isclose(sum(made.values()), 1, rel_tol=1e-6)
    assert min(made.values()) >= -1e-9


@pytest.mark.parametrize(
    ("device", "tera"),
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
    ],
)
def test_peak_is_that_of_the_board(device: str, tera: float) -> None:
    assert peak_flops(device, "bf16") == pytest.approx(tera * 1e12)
    assert peak_flops(f"{device} MIG 1g.10gb", "bf16") is None
