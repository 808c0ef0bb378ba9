"""The knob catalogue, the presets, and which configurations can run."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.backends.distributed import DDPOptimizer

from autotune.config import StudySpec
from search_spaces import CATALOGUE, Facts, defaults, infeasible, preset, preset_names
from search_spaces.batch import global_batch_size, refused_global_batch
from search_spaces.constraints import runs_slowly, unmet_needs
from search_spaces.knob import Choice, Range
from tests.support.steering import tiny_study

CPU = Facts("cpu", 2)
AMPERE = Facts("cuda", 2, (8, 0), backend="nccl")
TURING = Facts("cuda", 2, (7, 5), backend="nccl")
THOROUGH = settings(max_examples=200)

SWITCHES = [name for name, knob in CATALOGUE.items() if isinstance(knob.default, bool)]
RANGES = [name for name, knob in CATALOGUE.items() if isinstance(knob.domain, Range)]
CHOICES = [name for name, knob in CATALOGUE.items() if isinstance(knob.domain, Choice)]

# The catalogue


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_default_is_allowed_and_runs_anywhere(name):
    knob = CATALOGUE[name]
    assert knob.name == name
    assert not knob.domain.problem(knob.default)
    for facts in (CPU, TURING, AMPERE):
        assert infeasible({**defaults(), name: knob.default}, facts) == []


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_knob_says_what_it_is_and_where_the_knowledge_comes_from(name):
    knob = CATALOGUE[name]
    assert knob.summary and knob.applied and knob.source
    assert all(not knob.domain.problem(value) for value in knob.needs_for)
    assert bool(knob.needs) or not knob.needs_for
    assert all(not knob.domain.problem(value) for value, _ in knob.also_needs)
    assert knob.default not in knob.needs_for


def test_the_defaults_are_a_fresh_copy():
    defaults()["micro_batch"] = 999
    assert defaults()["micro_batch"] == CATALOGUE["micro_batch"].default


@pytest.mark.parametrize("name", RANGES)
def test_a_range_takes_its_ends_and_nothing_beyond(name):
    domain = CATALOGUE[name].domain
    assert not domain.problem(domain.low)
    assert not domain.problem(domain.high)
    for value in (domain.low - 1, domain.high + 1, -domain.high, 10**30):
        assert domain.problem(value)


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize(
    "value", [True, False, None, "8", "", [8], {}, math.nan, math.inf, -math.inf, 8j]
)
def test_a_range_takes_numbers_only(name, value):
    assert CATALOGUE[name].domain.problem(value)


@pytest.mark.parametrize("name", RANGES)
def test_whole_numbers_have_no_point(name):
    domain = CATALOGUE[name].domain
    assert bool(domain.problem(float(domain.high))) is domain.integer
    assert bool(domain.problem(domain.high - 0.5)) is domain.integer


@pytest.mark.parametrize("name", RANGES)
def test_the_limits_are_told_exactly(name):
    domain = CATALOGUE[name].domain
    told = domain.problem("no number")
    assert told.endswith(f" from {domain.low} to {domain.high}")
    assert told.startswith("must be a whole number" if domain.integer else "must be a number")


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_takes_its_values_and_nothing_like_them(name):
    domain = CATALOGUE[name].domain
    assert all(not domain.problem(value) for value in domain.values)
    for value in ("", "no", None, 2, math.nan, [domain.values[0]], domain.values):
        assert domain.problem(value)


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, "true", "false", "yes"])
def test_a_switch_is_true_or_false_and_not_a_number(name, value):
    assert CATALOGUE[name].domain.problem(value) == "must be one of false, true"


def test_the_choices_of_precision_are_told():
    told = CATALOGUE["precision"].domain.problem("fp8")
    assert told == "must be one of fp32, tf32, bf16, fp16, pure_bf16"


# What needs a device

NEEDY = {
    "precision": "tf32",
    "gradient_compression": "bf16",
    "stream_prefetch": True,
    "qkv_streams": True,
}


@pytest.mark.parametrize("name", NEEDY)
def test_what_needs_a_device_does_not_run_on_the_cpu_and_says_so(name):
    (reason,) = infeasible({**defaults(), name: NEEDY[name]}, CPU)
    written = str(NEEDY[name]).lower()
    assert reason.startswith(f"{name}={written} needs ")
    assert "CUDA device" in reason
    assert reason.endswith("this study runs on the CPU")


@pytest.mark.parametrize("name", NEEDY)
def test_what_needs_a_device_runs_on_one(name):
    assert infeasible({**defaults(), name: NEEDY[name]}, AMPERE) == []


@pytest.mark.parametrize("capability", [(6, 1), (7, 0), (7, 5)])
def test_tf32_needs_a_recent_device(capability):
    facts = Facts("cuda", 2, capability)
    (reason,) = infeasible({**defaults(), "precision": "tf32"}, facts)
    assert "8.0 or higher" in reason
    assert f"{capability[0]}.{capability[1]}" in reason
    assert infeasible({**defaults(), "stream_prefetch": True, "qkv_streams": True}, facts) == []


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (9, 0), (10, 0), (12, 0)])
def test_tf32_runs_on_recent_devices(capability):
    facts = Facts("cuda", 2, capability)
    assert infeasible({**defaults(), "precision": "tf32"}, facts) == []


@pytest.mark.parametrize(
    ("chosen", "lowest", "below"),
    [
        ({"float8": "rowwise", "precision": "bf16", "compile": "default"}, (8, 9), (8, 6)),
        ({"float8": "tensorwise", "precision": "pure_bf16", "compile": "default"}, (8, 9), (8, 0)),
        ({"nccl_algo": "NVLS"}, (9, 0), (8, 9)),
        ({"attention": "flash3", "precision": "bf16"}, (9, 0), (8, 9)),
        ({"attention": "flash", "precision": "fp16"}, (8, 0), (7, 5)),
        ({"attention": "cudnn", "precision": "fp16"}, (8, 0), (7, 0)),
    ],
)
def test_some_values_need_a_recent_device(chosen, lowest, below):
    name = next(iter(chosen))
    knobs = {**defaults(), **chosen}
    assert infeasible(knobs, Facts("cuda", 2, lowest, backend="nccl")) == []
    (reason,) = infeasible(knobs, Facts("cuda", 2, below, backend="nccl"))
    assert reason.startswith(f"{name}={chosen[name]} needs a CUDA device of compute capability")
    assert ".".join(map(str, below)) in reason


def test_flash_attention_3_is_for_one_generation_of_devices():
    knobs = {**defaults(), "attention": "flash3", "precision": "bf16"}
    (reason,) = infeasible(knobs, Facts("cuda", 2, (10, 0), backend="nccl"))
    assert "capability 9.0; this study runs on CUDA devices of compute capability 10.0" in reason


def test_nvls_needs_nccl_too():
    shared = Facts("cuda", 2, (9, 0), backend="gloo")
    (reason,) = infeasible({**defaults(), "nccl_algo": "NVLS"}, shared)
    assert "needs NCCL" in reason


def test_nvls_trees_are_for_several_nodes():
    chosen = {**defaults(), "nccl_algo": "NVLSTree"}
    here = Facts("cuda", 8, (9, 0), backend="nccl")
    (reason,) = infeasible(chosen, here)
    assert reason.startswith("nccl_algo=NVLSTree is for several nodes")
    assert infeasible(chosen, dataclasses.replace(here, nodes=2)) == []


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_other_precisions_run_on_the_cpu(precision):
    assert infeasible({**defaults(), "precision": precision}, CPU) == []


def test_every_unmet_need_has_a_reason_of_its_own():
    reasons = infeasible({**defaults(), **NEEDY}, CPU)
    assert sorted(reason.partition("=")[0] for reason in reasons) == sorted(NEEDY)


def test_needs_of_a_single_knob_can_be_asked_for():
    assert list(unmet_needs({"qkv_streams": True}, CPU))
    assert not list(unmet_needs({"qkv_streams": False}, CPU))
    assert not list(unmet_needs({"qkv_streams": True}, AMPERE))


ALL_NEEDY = {
    "precision": ["tf32"],
    "gradient_compression": ["bf16", "powersgd"],
    "compile": ["reduce-overhead", "max-autotune"],
    "float8": ["tensorwise", "rowwise"],
    "cudnn_benchmark": [True],
    "attention": ["efficient", "cudnn", "flash3"],
    "pin_memory": [True],
    "expandable_segments": [True],
    "nccl_algo": ["Ring", "Tree", "NVLS", "NVLSTree"],
    "nccl_proto": ["LL", "LL128", "Simple"],
    "nccl_registration": [True],
    "numa_binding": [True],
    "stream_prefetch": [True],
    "qkv_streams": [True],
    "loss_placement": ["inside"],
}
CHOSEN = st.fixed_dictionaries(
    {name: st.sampled_from(CATALOGUE[name].domain.values) for name in CHOICES}
)


@THOROUGH
@given(CHOSEN)
def test_on_the_cpu_exactly_the_needy_are_infeasible(chosen):
    needy = [name for name, values in ALL_NEEDY.items() if chosen[name] in values]
    reasons = unmet_needs({**defaults(), **chosen}, CPU)
    assert sorted(reason.partition("=")[0] for reason in reasons) == sorted(needy)


# What cannot be had together


def test_a_static_graph_does_not_go_with_accumulation():
    static = {**defaults(), "static_graph": True}
    assert infeasible(static, CPU) == []
    (reason,) = infeasible({**static, "accumulation_steps": 2}, CPU)
    assert reason.startswith("static_graph=true does not go with accumulation_steps=2")


def test_blocks_that_are_left_out_are_not_updated_with_zeros():
    chosen = {**defaults(), "set_to_none": False, "layer_keep": 0.5}
    (reason,) = infeasible(chosen, CPU)
    assert reason.startswith("set_to_none=false does not go with layer_keep=0.5")
    assert infeasible({**chosen, "layer_keep": 1}, CPU) == []


def test_a_fused_update_inside_zero1_never_sees_the_scale_of_the_loss():
    scaled = {"parallelism": "zero1", "optimizer_kernels": "fused", "precision": "fp16"}
    (reason,) = infeasible({**defaults(), **scaled}, AMPERE)
    assert reason.startswith("optimizer_kernels=fused does not go with parallelism=zero1")
    assert "precision=fp16" in reason
    for name in scaled:
        assert infeasible({**defaults(), **scaled, name: defaults()[name]}, AMPERE) == []


@pytest.mark.parametrize("parallelism", ["fsdp", "fsdp_no_reshard", "hsdp"])
def test_sharded_weights_have_no_memory_format(parallelism):
    sharded = {**defaults(), "channels_last": True, "parallelism": parallelism}
    (reason,) = infeasible(sharded, dataclasses.replace(AMPERE, nodes=2, world_size=4))
    assert reason.startswith(f"channels_last=true does not go with parallelism={parallelism}")


@pytest.mark.parametrize("nodes", [1, 2])
def test_ll128_is_left_to_nccl_as_no_link_is_known_to_carry_it(nodes):
    chosen, facts = {**defaults(), "nccl_proto": "LL128"}, dataclasses.replace(AMPERE, nodes=nodes)
    (reason,) = infeasible(chosen, facts)
    assert reason.startswith("nccl_proto=LL128 can corrupt data")
    assert infeasible({**chosen, "nccl_proto": "Simple"}, facts) == []
    own = infeasible(chosen, dataclasses.replace(facts, own_ll128=True))
    assert own == ([] if nodes == 1 else [reason]), "what the user runs on one node runs there"


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("other", [{"accumulation_steps": 2}, {"set_to_none": False}])
def test_cuda_graphs_keep_no_gradients_from_one_backward_pass_to_the_next(mode, other):
    compiled = {**defaults(), "compile": mode}
    assert infeasible(compiled, AMPERE) == []
    (reason,) = infeasible({**compiled, **other}, AMPERE)
    assert reason.startswith(f"compile={mode} does not go with {next(iter(other))}=")
    assert "on CUDA" in reason
    assert infeasible({**defaults(), "compile": "default", **other}, AMPERE) == []


@pytest.mark.parametrize("buckets", [{"bucket_cap_mb": 0.5}, {"first_bucket_mb": 50}])
def test_compiled_code_under_ddp_has_no_first_bucket_larger_than_the_others(buckets):
    compiled = {**defaults(), "compile": "default", **buckets}
    (reason,) = infeasible(compiled, AMPERE)
    assert reason.startswith("compile=default needs a first bucket that is no larger")
    with pytest.raises(AssertionError, match="First bucket"):
        mib = 2**20
        DDPOptimizer(
            int(compiled["bucket_cap_mb"] * mib), None, int(compiled["first_bucket_mb"] * mib)
        )
    assert infeasible({**compiled, "compile": "none"}, AMPERE) == []
    assert infeasible({**defaults(), "compile": "default"}, AMPERE) == []


HOPPER = Facts("cuda", 2, (9, 0), backend="nccl")


@pytest.mark.parametrize(
    ("chosen", "unchanged"),
    [
        ({"compile_scope": "blocks", "compile": "default"}, "compile"),
        ({"float8": "rowwise", "precision": "bf16", "compile": "default"}, "precision"),
        ({"float8": "rowwise", "precision": "bf16", "compile": "default"}, "compile"),
        ({"fsdp_prefetch": 2, "parallelism": "fsdp"}, "parallelism"),
        ({"fsdp_reduce_dtype": "bf16", "parallelism": "fsdp_no_reshard"}, "parallelism"),
    ],
)
def test_some_knobs_act_beside_another_only(chosen, unchanged):
    knobs = {**defaults(), **chosen}
    assert infeasible(knobs, HOPPER) == []
    (reason,) = infeasible({**knobs, unchanged: defaults()[unchanged]}, HOPPER)
    assert f"{next(iter(chosen))}=" in reason and f" does not go with {unchanged}=" in reason


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"nccl_ctas": 4}, {"nccl_channels": 4}),
        ({"nccl_registration": True}, {"expandable_segments": True}),
        ({"numa_binding": True}, {"parallelism": "data_parallel"}),
        (
            {"fsdp_reduce_dtype": "bf16", "parallelism": "fsdp"},
            {"precision": "pure_bf16"},
        ),
    ],
)
def test_some_knobs_do_not_go_together(first, second):
    knobs = {**defaults(), **first}
    assert infeasible(knobs, HOPPER) == []
    (reason,) = infeasible({**knobs, **second}, HOPPER)
    assert all(name in reason for name in (next(iter(first)), next(iter(second))))


def test_pair_that_is_only_slow_is_tried_where_it_is_the_users_own():
    knobs = {**defaults(), "float8": "rowwise", "precision": "bf16"}
    assert runs_slowly(knobs) and not runs_slowly({**knobs, "compile": "default"})
    own = dataclasses.replace(HOPPER, slow_pairs=True)
    assert infeasible(knobs, own) == []
    (reason,) = infeasible({**knobs, "parallelism": "data_parallel"}, own)
    assert "torchao's layers" in reason


# The global batch

MICRO = st.integers(1, 4096)
STEPS = st.integers(1, 64)
RANKS = st.integers(1, 512)


@THOROUGH
@given(MICRO, STEPS, RANKS, st.integers(1, 10**6))
def test_a_fixed_global_batch_is_held_exactly(micro, steps, ranks, fixed):
    knobs = {**defaults(), "micro_batch": micro, "accumulation_steps": steps}
    actual = micro * steps * ranks
    assert global_batch_size(knobs, ranks) == actual
    assert infeasible(knobs, Facts("cpu", ranks, global_batch_size=actual)) == []
    assert infeasible(knobs, Facts("cpu", ranks)) == []
    reasons = infeasible(knobs, Facts("cpu", ranks, global_batch_size=fixed))
    assert bool(reasons) is (fixed != actual)
    for reason in reasons:
        assert f"micro_batch {micro} x accumulation_steps {steps} x {ranks} ranks" in reason
        assert f"global batch of {actual}, not the fixed {fixed}" in reason


@THOROUGH
@given(st.integers(1, 10**6), RANKS)
def test_a_global_batch_is_refused_exactly_if_the_ranks_cannot_share_it(wanted, ranks):
    problem = refused_global_batch(wanted, ranks)
    assert (not problem) is (wanted % ranks == 0)
    if not problem:
        return
    assert str(wanted) in problem
    advised = [ranks * (wanted // ranks), ranks * (wanted // ranks + 1)]
    for advice in filter(None, advised):
        assert str(advice) in problem
        assert not refused_global_batch(advice, ranks)


def test_ranks_without_a_sample_are_counted():
    problem = refused_global_batch(3, 8)
    assert "5 of 8 ranks without a sample" in problem
    assert "at least 8" in problem
    assert "fewer workers" in problem


def test_an_uneven_global_batch_gets_its_neighbours():
    assert "use 96 or 104" in refused_global_batch(100, 8)


# The presets


def test_there_are_presets_and_their_names_are_sorted():
    assert {"quick", "ddp", "transformer", "communication"} <= set(preset_names())
    assert preset_names() == sorted(preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_holds_known_knobs_with_allowed_values_each_once(name):
    values = preset(name)
    assert values
    for knob, tried in values.items():
        assert len(tried) >= 2, f"{knob} has nothing to choose from"
        assert [CATALOGUE[knob].domain.problem(value) for value in tried] == [""] * len(tried)
        assert len(set(tried)) == len(tried)


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("facts", [CPU, TURING, AMPERE], ids=["cpu", "turing", "ampere"])
def test_a_preset_leaves_something_to_choose_on_every_machine(name, facts):
    usable = {
        knob: [value for value in tried if not list(unmet_needs({knob: value}, facts))]
        for knob, tried in preset(name).items()
    }
    assert all(usable.values())
    assert math.prod(len(tried) for tried in usable.values()) >= 50


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_makes_a_study(name):
    study = tiny_study(search_space=name, workload={"name": "tiny:build"})
    assert StudySpec.model_validate(study).values() == preset(name)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_a_fresh_copy(name):
    next(iter(preset(name).values())).append("spoiled")
    assert all("spoiled" not in tried for tried in preset(name).values())


@pytest.mark.parametrize("name", ["", "nope", "quick.yaml", "../presets/quick", "/etc/passwd"])
def test_an_unknown_preset_is_a_key_error(name):
    with pytest.raises(KeyError):
        preset(name)


def test_presets_that_suit_any_machine_ask_for_no_device():
    for name in ("quick", "communication"):
        for knob, tried in preset(name).items():
            assert not [reason for value in tried for reason in unmet_needs({knob: value}, CPU)]
