"""Which trials follow the baseline, and why."""

import math

import pytest

from autotune.analysis.findings import Finding, findings
from autotune.search.space import Space
from autotune.study.suggestions import (
    MemoryHeadroom,
    TransferKey,
    experts,
    halves,
    remembered,
    with_compilation,
)
from autotune.worker.rank.trace import PARTS
from search_spaces import Facts, defaults
from storage import Recommended

CPU = Facts("cpu", 2)
GPT = {"name": "gpt", "args": {"layers": 2}}
HERE = TransferKey(GPT, 2, ("EPYC",))


def space(**values):
    return Space(values, defaults(), CPU)


def suggested(space, baseline, found, headroom=None, cores=math.inf):
    return experts(space, baseline, found, (), headroom, cores)


def profile(**shares):
    """Both ranks alike, the rest of the step computing."""
    parts = {name: [shares.get(name, 0.0)] * 2 for name in PARTS}
    parts["compute"] = [1 - sum(shares.values())] * 2
    return {"parts": parts, "peaks": [1, 1], "batch_moves": {}}


def test_the_answer_to_the_bottleneck_comes_first():
    values = {"num_workers": [0, 1, 2], "precision": ["fp32", "bf16"], "log_interval": [10, 50]}
    found = findings(profile(loader=0.7), defaults(), CPU)
    assert found[0].name == "loader"
    first, second = suggested(space(**values), defaults(), found)
    assert first.params == {"num_workers": 2, "precision": "fp32", "log_interval": 10}
    assert "70%" in first.reason and "num_workers" in first.reason
    assert second.params == {"num_workers": 2, "precision": "bf16", "log_interval": 50}
    assert "half the bytes" in second.reason


@pytest.mark.parametrize(("cores", "workers"), [(1.0, 1), (2.0, 1), (2.5, 1), (16.0, 2)])
def test_processes_that_load_leave_a_core_to_the_step(cores, workers):
    values = {"num_workers": [0, 1, 2, 4]}
    (only,) = suggested(space(**values), defaults(), [], cores=cores)
    assert only.params == {"num_workers": workers}


def test_what_answers_copies_is_what_acts_on_copies():
    on_a_device = Facts("cuda", 2, (8, 0))
    first = findings(profile(copies=0.7), defaults(), on_a_device)[0]
    assert (first.name, first.knobs) == (
        "copies",
        ("pin_memory", "stream_prefetch", "numa_binding"),
    )


def test_the_micro_batch_grows_by_no_more_than_four_times():
    values = {"micro_batch": [8, 16, 32, 64, 128]}
    (only,) = suggested(space(**values), defaults(), [])
    assert only.params == {"micro_batch": 32}
    splits = Facts("cpu", 1, global_batch_size=36)
    baseline = {**defaults(), "micro_batch": 4, "accumulation_steps": 9}
    (only,) = suggested(Space({"micro_batch": [4, 32]}, baseline, splits), baseline, [])
    assert only.params == {"micro_batch": 12}


def test_what_is_not_feasible_is_not_suggested():
    values = {"static_graph": [False, True], "persistent_workers": [False, True]}
    assert suggested(space(**values), defaults(), []) == []


def test_a_finding_whose_knobs_do_not_vary_suggests_nothing():
    found = [Finding("loader", 0.9, "steps wait", ("num_workers",))]
    suggestions = suggested(space(precision=["fp32", "bf16"]), defaults(), found)
    assert [s.params for s in suggestions] == [{"precision": "bf16"}]


def recommended(key: TransferKey = HERE, **knobs):
    environment = {"cpu": key.devices[0], "devices": []}
    body = {
        "knobs": {**defaults(), **knobs},
        "world_size": key.world_size,
        "provenance": {"environment": environment},
    }
    return Recommended("before", {"workload": key.workload}, body)


def test_what_won_before_in_the_same_place_is_tried():
    values = {"micro_batch": [8, 16, 32], "precision": ["fp32", "bf16"]}
    earlier = [recommended(micro_batch=30, precision="bf16")]
    found = remembered(space(**values), defaults(), earlier, HERE)
    assert found is not None
    assert found.params == {"micro_batch": 32, "precision": "bf16"}
    assert "before" in found.reason


def test_what_won_before_is_tried_without_what_has_to_be_compiled():
    values = {
        "precision": ["fp32", "bf16"],
        "compile": ["none", "default"],
        "compile_scope": ["model", "blocks"],
    }
    earlier = [recommended(precision="bf16", compile="default", compile_scope="blocks")]
    found = remembered(space(**values), defaults(), earlier, HERE)
    assert found is not None
    assert found.params == {"precision": "bf16", "compile": "none", "compile_scope": "model"}
    compiled = {**defaults(), "compile": "default"}
    baseline = Space(values, compiled, CPU)
    found = remembered(baseline, compiled, earlier, HERE)
    assert found is not None
    assert found.params["compile"] == "default", "as today"


@pytest.mark.parametrize(
    "elsewhere",
    [
        TransferKey({"name": "mlp", "args": {}}, 2, ("EPYC",)),
        TransferKey(GPT, 4, ("EPYC",)),
        TransferKey(GPT, 2, ("Xeon",)),
    ],
)
def test_what_won_elsewhere_is_not(elsewhere):
    values = {"micro_batch": [8, 16, 32]}
    assert (
        remembered(space(**values), defaults(), [recommended(elsewhere, micro_batch=32)], HERE)
        is None
    )
    assert remembered(space(**values), defaults(), [recommended()], HERE) is None


ON_DEVICE = Facts("cuda", 1, (9, 0))
VALUES = {
    "micro_batch": [4, 8, 16, 32],
    "compile": ["none", "default"],
    "float8": ["none", "tensorwise"],
    "precision": ["bf16"],
    "log_interval": [1, 10],
}
BASELINE = {**defaults(), "micro_batch": 4, "precision": "bf16", "log_interval": 1}


def device_space():
    return Space(VALUES, BASELINE, ON_DEVICE)


def test_first_bundle_on_a_device_compiles_nothing():
    (bundle,) = suggested(device_space(), BASELINE, [], headroom=MemoryHeadroom(140e9, 9e9))
    assert bundle.params == {
        "micro_batch": 32,
        "compile": "none",
        "float8": "none",
        "log_interval": 10,
    }


def test_micro_batch_grows_further_only_where_memory_is_known_to_hold_it():
    assert MemoryHeadroom(140e9, 9e9).growth == 12
    assert MemoryHeadroom(140e9, 100e9).growth == MemoryHeadroom(140e9, 0).growth == 4


@pytest.mark.parametrize(("peak", "size"), [(3, 128), (6, 64), (8, 64), (40, 32)])
def test_micro_batch_grows_to_the_largest_that_memory_is_known_to_hold(peak, size):
    sizes = Space({"micro_batch": [8, 16, 32, 64, 128, 256]}, defaults(), ON_DEVICE)
    (bundle,) = suggested(
        sizes, {**defaults(), "micro_batch": 8}, [], headroom=MemoryHeadroom(100, peak)
    )
    assert bundle.params == {"micro_batch": size}


def test_compile_comes_on_top_of_the_best_and_float8_after_it():
    best = {**BASELINE, "micro_batch": 32}
    first = with_compilation(device_space(), best, [BASELINE, best])
    assert first is not None
    assert (first.params["micro_batch"], first.params["compile"]) == (32, "default")
    assert first.params["float8"] == "none"
    faster = {**best, "compile": "default"}
    second = with_compilation(device_space(), faster, [BASELINE, best, faster])
    assert second is not None
    assert second.params == {**first.params, "float8": "tensorwise"}
    assert (
        with_compilation(device_space(), faster, [faster, {**faster, "float8": "tensorwise"}])
        is None
    )


def test_compile_comes_with_the_first_value_that_the_study_names_where_it_is_not_the_usual_one():
    named = {**VALUES, "compile": ["none", "reduce-overhead", "max-autotune"]}
    found = with_compilation(Space(named, BASELINE, ON_DEVICE), BASELINE, [BASELINE])
    assert found is not None
    assert found.params["compile"] == "reduce-overhead"
    both = {**VALUES, "compile": ["none", "reduce-overhead", "default"]}
    found = with_compilation(Space(both, BASELINE, ON_DEVICE), BASELINE, [BASELINE])
    assert found is not None
    assert found.params["compile"] == "default"


def test_float8_is_not_suggested_where_compile_has_failed():
    assert (
        with_compilation(device_space(), BASELINE, [BASELINE, {**BASELINE, "compile": "default"}])
        is None
    )


def test_bundle_that_failed_is_split_until_one_change_is_left():
    both = {"micro_batch": 32, "compile": "none", "float8": "none", "log_interval": 10}
    parts = halves(device_space(), BASELINE, both, "OOM")
    assert [part.params for part in parts] == [
        {**both, "log_interval": 1},
        {**both, "micro_batch": 4},
    ]
    assert halves(device_space(), BASELINE, parts[0].params, "OOM") == []


def test_changes_that_ran_together_are_in_both_parts_of_a_bundle_that_failed():
    failed = {"micro_batch": 32, "compile": "default", "float8": "none", "log_interval": 10}
    slower = {**BASELINE, "micro_batch": 32}
    parts = halves(device_space(), BASELINE, failed, "ERROR", [BASELINE, slower])
    assert [part.params for part in parts] == [
        {**failed, "compile": "none"},
        {**failed, "log_interval": 1},
    ]
    best = {**slower, "log_interval": 10}
    assert halves(device_space(), BASELINE, failed, "ERROR", [slower, best]) == []


def test_parts_of_a_bundle_have_knobs_of_the_studys_own_as_well():
    baseline = {**BASELINE, "seed": 1}
    space = Space(
        {"seed": [1, 2], "micro_batch": [4, 32], "log_interval": [1, 10]}, baseline, ON_DEVICE
    )
    failed = {"seed": 2, "micro_batch": 32, "log_interval": 1}
    parts = halves(space, baseline, failed, "ERROR")
    assert [part.params for part in parts] == [{**failed, "seed": 1}, {**failed, "micro_batch": 4}]
