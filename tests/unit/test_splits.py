"""Splits of a global batch that is held: exactly it, from divisors, and what has no partner."""

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.outline import outline
from autotune.search.sampling import sampler
from autotune.search.space import Space, splits
from search_spaces import Facts, defaults, infeasible, preset
from search_spaces.batch import divisors


def space_of(values, baseline, global_batch_size, ranks=2, refusal=lambda _: ""):
    facts = Facts("cpu", ranks, global_batch_size=global_batch_size)
    return Space(values, {**defaults(), **baseline}, facts, refusal)


def pairs(space):
    return [] if space.splits is None else list(space.splits.steps.items())


@given(st.integers(1, 10**6))
def test_divisors_are_those(number):
    found = divisors(number)
    assert found == sorted(found, reverse=True)
    assert (found[0], found[-1]) == (number, 1)
    assert all(number % one == 0 and number // one in found for one in found)


@given(
    st.lists(st.integers(1, 64), max_size=4),
    st.lists(st.integers(1, 16), max_size=4),
    st.integers(1, 64),
    st.integers(1, 16),
    st.sampled_from([1, 2, 3, 8]),
)
def test_every_configuration_has_exactly_the_global_batch(sizes, steps, size, step, ranks):
    values = {"micro_batch": sizes, "accumulation_steps": steps, "log_interval": [1, 10]}
    baseline = {**defaults(), "micro_batch": size, "accumulation_steps": step}
    facts = Facts("cpu", ranks, global_batch_size=size * step * ranks)
    space = Space(values, baseline, facts)
    found = pairs(space)
    assert (size, step) in found
    assert found == sorted(found, reverse=True), "from large micro-batches and little accumulation"
    assert "accumulation_steps" not in space.distributions()
    for micro_batch in space.splits.steps:
        knobs = space.complete({"micro_batch": micro_batch})
        assert infeasible(knobs, facts) == []


def test_pairs_are_made_from_divisors_where_listed_values_do_not_fit():
    space = space_of(preset("quick"), {"micro_batch": 12, "accumulation_steps": 4}, 96)
    assert pairs(space) == [(48, 1), (24, 2), (16, 3), (12, 4), (8, 6), (6, 8), (4, 12)]
    assert space.left_out[0].startswith("micro_batch 32, 64 have no partner that gives 48 samples")


def test_a_study_that_lists_one_of_the_two_searches_the_split():
    baseline = {"micro_batch": 4, "accumulation_steps": 4}
    assert pairs(space_of({"micro_batch": [8, 16]}, baseline, 32)) == [(16, 1), (8, 2), (4, 4)]
    assert pairs(space_of({"accumulation_steps": [1, 2]}, baseline, 32)) == [
        (16, 1),
        (8, 2),
        (4, 4),
    ]


def test_a_knob_with_one_value_keeps_it():
    baseline = {"micro_batch": 8, "accumulation_steps": 4}
    space = space_of({"micro_batch": [8], "accumulation_steps": [1, 2]}, baseline, 64)
    assert pairs(space) == [(8, 4)]
    assert "accumulation_steps 1, 2 have no partner" in space.left_out[0]


def test_without_either_knob_nothing_is_split():
    space = space_of({"log_interval": [1, 10]}, {}, 16)
    assert space.splits is None
    assert list(space.distributions()) == ["log_interval"]
    assert list(outline(space, 16)) == [
        "2 configurations remain, all with your global batch of 16, in micro_batch x "
        "accumulation_steps of 8 x 1."
    ]


def test_any_global_batch_is_not_split():
    assert splits(preset("quick"), defaults(), Facts("cpu", 2)) is None
    space = space_of({"micro_batch": [4, 8], "accumulation_steps": [1, 2]}, {}, None)
    assert sorted(space.distributions()) == ["accumulation_steps", "micro_batch"]
    assert list(outline(space, None)) == ["4 configurations remain, of any global batch."]


def test_the_outline_counts_and_names_the_splits():
    space = space_of(preset("quick"), {"micro_batch": 8, "accumulation_steps": 8}, 128)
    (line,) = outline(space, 128)
    assert line == (
        "240 configurations remain, all with your global batch of 128, in 5 splits (micro_batch x "
        "accumulation_steps): 64 x 1, 32 x 2, 16 x 4, 8 x 8, 4 x 16; yours is 8 x 8."
    )


def test_the_outline_names_values_without_a_partner():
    values = {
        "precision": ["fp32", "bf16"],
        "gradient_compression": ["none", "fp16", "one_bit"],
        "parallelism": ["ddp", "fsdp"],
    }
    refused = {"one_bit": "no such thing here"}
    space = space_of(
        values, {}, None, refusal=lambda knobs: refused.get(knobs["gradient_compression"], "")
    )
    told = list(outline(space, None))
    assert told[1:] == ["gradient_compression one_bit has no partner: no such thing here"]


def test_a_value_that_needs_another_split_has_a_partner():
    """A static graph goes with no accumulation, which another split has."""
    values = {"micro_batch": [8, 16], "static_graph": [False, True]}
    space = space_of(values, {"accumulation_steps": 2}, 32)
    assert list(outline(space, 32))[1:] == []


def test_large_spaces_are_counted_by_a_sample():
    space = space_of(preset("ddp") | {"num_workers": [0, 1, 2, 4]}, {}, None)
    assert space.size > 20_000
    (line,) = outline(space, None)
    assert line == "About 30,000 configurations remain, of any global batch."


@pytest.mark.parametrize("name", ["model", "random"])
def test_parameters_of_an_earlier_version_are_the_same_configuration(name):
    """Accumulation was a parameter of its own then."""
    space = space_of({"micro_batch": [4, 8]}, {"micro_batch": 8}, 16)
    study = optuna.create_study(direction="maximize", sampler=sampler(name, space, seed=0))
    old = optuna.distributions.CategoricalDistribution
    study.add_trial(
        optuna.create_trial(
            params={"micro_batch": 8, "accumulation_steps": 1},
            distributions={"micro_batch": old([4, 8]), "accumulation_steps": old([1, 2])},
            value=1.0,
        )
    )
    assert study.ask(space.distributions()).params == {"micro_batch": 4}
