"""Which configuration can follow another in the same processes."""

import pytest

from search_spaces import CATALOGUE, defaults
from search_spaces.constraints import why_not_taken_over
from search_spaces.knob import MODEL, PROCESS, STEP, WRAPPER, Choice

STEPS = [name for name, knob in CATALOGUE.items() if knob.acts_on == STEP]
REVERSIBLE = [name for name, knob in CATALOGUE.items() if knob.reversible]
OTHERS = [name for name in CATALOGUE if name not in (*STEPS, *REVERSIBLE)]
ALONE = {**defaults(), "parallelism": "none"}


def another(name: str) -> object:
    """A value that the knob has not by default, and that acts on the step alone."""
    knob = CATALOGUE[name]
    if isinstance(knob.domain, Choice):
        return next(value for value in knob.domain.values if value != knob.default)
    return knob.domain.low if knob.default != knob.domain.low else knob.domain.high


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_knob_says_where_it_acts(name: str) -> None:
    assert CATALOGUE[name].acts_on in (PROCESS, MODEL, WRAPPER, STEP)


@pytest.mark.parametrize("name", STEPS)
def test_what_acts_on_a_step_is_taken_live_there_and_back(name: str) -> None:
    changed = {**defaults(), name: another(name)}
    assert why_not_taken_over(defaults(), changed) == ""
    assert why_not_taken_over(changed, defaults()) == ""


@pytest.mark.parametrize("name", REVERSIBLE)
def test_knob_of_the_model_that_can_be_undone_is_taken_live_there_and_back(name: str) -> None:
    changed = {**ALONE, name: another(name)}
    assert why_not_taken_over(ALONE, changed) == ""
    assert why_not_taken_over(changed, ALONE) == ""


def test_what_replaces_the_forward_pass_alone_can_be_undone() -> None:
    assert {*REVERSIBLE} == {
        *("activation_checkpointing", "channels_last", "compile", "compile_scope"),
        *("loss_chunks", "qkv_streams"),
    }


@pytest.mark.parametrize(
    ("parallelism", "name", "value"),
    [
        ("ddp", "channels_last", True),
        ("fsdp", "compile", "default"),
        ("zero1", "activation_checkpointing", 1),
    ],
)
def test_knob_of_the_model_takes_new_processes_beneath_a_wrapper(
    parallelism: str, name: str, value: object
) -> None:
    now = {**defaults(), "parallelism": parallelism}
    assert why_not_taken_over(now, {**now, name: value}) == f"{name} acts on the model"


@pytest.mark.parametrize("name", OTHERS)
def test_whatever_acts_elsewhere_takes_new_processes(name: str) -> None:
    changed = {**defaults(), name: another(name)}
    assert why_not_taken_over(defaults(), changed).startswith(name)
    assert why_not_taken_over(changed, defaults()).startswith(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("precision", "pure_bf16"),
        ("attention", "flash3"),
        ("compile", "reduce-overhead"),
        ("compile", "max-autotune"),
    ],
)
def test_single_values_stay_with_their_process(name: str, value: str) -> None:
    plain, lasting = defaults(), {**defaults(), name: value}
    assert why_not_taken_over(plain, lasting) and why_not_taken_over(lasting, plain)
    assert why_not_taken_over(lasting, {**lasting, "log_interval": 1}) == ""


@pytest.mark.parametrize(
    ("maker", "made", "name", "value"),
    [
        ("compile", "reduce-overhead", "micro_batch", 1),
        ("compile", "reduce-overhead", "precision", "bf16"),
        ("compile", "max-autotune", "attention", "flash"),
        ("compile", "max-autotune", "activation_checkpointing", 1),
        ("static_graph", True, "accumulation_steps", 4),
        ("static_graph", True, "compile", "default"),
        ("float8", "tensorwise", "precision", "bf16"),
    ],
)
def test_what_was_made_for_a_value_is_made_anew_for_another(
    maker: str, made: object, name: str, value: object
) -> None:
    now = {**defaults(), maker: made}
    reason = f"{name} is part of what was made for {maker}"
    assert why_not_taken_over(now, {**now, name: value}) == reason


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("parallelism", "fsdp"),
        ("parallelism", "zero1"),
        ("parallelism", "data_parallel"),
        ("gradient_compression", "powersgd"),
        ("layer_keep", 0.5),
        ("curriculum_start", 0.5),
    ],
)
def test_what_has_a_history_is_no_start_of_another_training(name: str, value: object) -> None:
    now = {**defaults(), name: value}
    reason = f"{name}={value} goes with a training from its first step on"
    assert why_not_taken_over(now, {**now, "log_interval": 1}) == reason


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_compiled_model_takes_what_is_not_in_its_graph(mode: str) -> None:
    now = {**defaults(), "compile": mode}
    assert why_not_taken_over(now, {**now, "log_interval": 1, "num_workers": 2}) == ""


@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
def test_model_without_cuda_graphs_is_compiled_anew_where_it_is(mode: str) -> None:
    now = {**defaults(), "compile": mode}
    changed = {**now, "micro_batch": 1, "precision": "bf16", "attention": "flash"}
    assert why_not_taken_over(now, changed) == ""


def test_what_the_catalogue_does_not_know_takes_new_processes() -> None:
    now = {**defaults(), "hidden_size": 1}
    assert "hidden_size" in why_not_taken_over(now, {**now, "hidden_size": 2})
    assert why_not_taken_over(now, {**now, "micro_batch": 1}) == ""
