"""The studies over launch scripts of large frameworks: what they try, and the command lines of that."""

import random
from pathlib import Path

import pytest

from autotune.config import StudySpec, arguments, load
from autotune.search.space import Space
from search_spaces import Facts
from search_spaces.constraints import broken
from search_spaces.knob import written

RECIPES = sorted((Path(__file__).parents[2] / "examples" / "recipes").glob("*.yaml"))


def recipe(name: str) -> StudySpec:
    return load(next(path for path in RECIPES if path.stem == name))


def space(spec: StudySpec) -> Space:
    workers = 8
    facts = Facts(
        *("cuda", workers, (9, 0), spec.global_batch_size(workers), "nccl"),
        rules=tuple(spec.constraints),
    )
    return Space(spec.values(), spec.full_baseline(), facts)


def command(spec: StudySpec, **changes: object) -> list[str]:
    """The script's arguments with these knobs changed."""
    baseline = spec.full_baseline()
    found = spec.workload.recipe({**baseline, **changes}, spec.study_knobs, 8)
    assert not found.changes
    return list(arguments.changed(spec.workload.arguments, found.flags, found.turned))


def test_every_framework_has_one() -> None:
    names = ["axolotl", "deepspeed", "litgpt", "llama_factory", "llm_foundry"]
    names += ["megatron_lm", "nanochat", "nemo", "torchtitan"]
    assert [path.stem for path in RECIPES] == names


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_has_more_to_try_than_one_thing(path: Path) -> None:
    spec = load(path)
    found = space(spec)
    baseline = {name: spec.full_baseline()[name] for name in found.distributions()}
    assert not found.problems(baseline)
    assert not found.left_out
    feasible = list(found.feasible(random.Random(0)))
    assert 10 < len(feasible) <= found.size
    assert not spec.constraints or len(feasible) < found.size, "they leave something out"
    everything = Facts("cuda", 8, rules=tuple(spec.constraints))
    assert not any(any(broken(found.complete(one), everything)) for one in feasible)
    for name in found.distributions():
        assert len({one[name] for one in feasible}) > 1, f"{name} has one value only"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_value_reaches_its_argument_and_no_other(path: Path) -> None:
    spec = load(path)
    before = command(spec)
    assert before == list(spec.workload.arguments)
    for name, flag in spec.flags.items():
        for value in spec.values().get(name, []):
            if value == spec.full_baseline()[name]:
                continue
            after = command(spec, **{name: value})
            told = arguments.given(after, flag)
            if isinstance(value, bool) and arguments.given(before, flag) not in ("True", "False"):
                assert (flag in after) is value
            else:
                assert told is not None
                assert told.lower() == written(value).lower()
            others = {other: f for other, f in spec.flags.items() if f != flag}
            unchanged = {n: arguments.given(before, f) for n, f in others.items()}
            # A flag at the end is followed by what is added.
            kept = {n: arguments.given(after, f) for n, f in others.items()}
            assert {n: v for n, v in kept.items() if unchanged[n]} == {
                n: v for n, v in unchanged.items() if v
            }


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        (
            "megatron_lm",
            {"tensor_parallel": 4, "micro_batch_size": 8, "sequence_parallel": True},
            "--micro-batch-size 8 --global-batch-size 256 --tensor-model-parallel-size 4",
        ),
        (
            "nemo",
            {"sequence_parallel": True, "recompute": "null"},
            "model.sequence_parallel=True model.activations_checkpoint_granularity=null",
        ),
        (
            "torchtitan",
            {"checkpointing": "full", "replicas": 2, "compile_model": True},
            "--activation_checkpoint.mode full --parallelism.data_parallel_replicate_degree 2 "
            "--compile.enable",
        ),
        (
            "deepspeed",
            {"zero": "ds_zero3.json", "num_workers": 4},
            "--deepspeed ds_zero3.json --model_name_or_path",
        ),
        (
            "nanochat",
            {"micro_batch": 64, "accumulation_steps": 1, "fp8": True, "fp8_recipe": "rowwise"},
            "--device-batch-size=64 --total-batch-size=1048576 --fp8-recipe=rowwise",
        ),
        (
            "litgpt",
            {"micro_batch": 8, "accumulation_steps": 8, "precision_plugin": "bf16-true"},
            "--precision=bf16-true --train.global_batch_size=512 --train.micro_batch_size=8",
        ),
        (
            "llama_factory",
            {"micro_batch": 2, "accumulation_steps": 4, "attention_kernel": "fa2"},
            "per_device_train_batch_size=2 gradient_accumulation_steps=4",
        ),
        (
            "llm_foundry",
            {"micro_batch": 32, "accumulation_steps": 1, "sharding": "NO_SHARD"},
            "device_train_microbatch_size=32",
        ),
        (
            "axolotl",
            {"attention_kernel": "sdpa", "micro_batch": 4},
            "--attn_implementation=sdpa",
        ),
    ],
)
def test_the_command_line_is_that_of_the_framework(
    name: str, changes: dict[str, object], expected: str
) -> None:
    assert expected in " ".join(command(recipe(name), **changes))
