"""The space of what can run here, and samplers that stay in it."""

import dataclasses
import itertools
import random

import optuna
import pytest

from autotune.search import performance_model
from autotune.search.policy import SEARCH
from autotune.search.sampling import (
    Exhausted,
    WorthLaunching,
    needs_more_memory,
    sampler,
)
from autotune.search.space import Space, key
from search_spaces import Facts, defaults, infeasible, preset

CPU = Facts(device="cpu", world_size=2)
PRECISIONS = {"fp32": 1.0, "bf16": 1.2}


def ask_all(space, name, trials, value=lambda params: 1.0, end="COMPLETE"):
    """Parameters of so many trials, each told a value."""
    study = optuna.create_study(direction="maximize", sampler=sampler(name, space, seed=3))
    asked = []
    for _ in range(trials):
        trial = study.ask(space.distributions())
        trial.set_user_attr("end", end)
        study.tell(trial, value(trial.params))
        asked.append(trial.params)
    return asked


def test_what_the_machine_lacks_is_left_out_with_a_reason():
    space = Space(preset("transformer"), defaults(), CPU)
    assert "tf32" not in space.distributions()["precision"].choices
    assert "stream_prefetch" not in space.distributions()
    assert any("tf32 needs" in reason for reason in space.left_out)
    assert any("qkv_streams=true needs" in reason for reason in space.left_out)


def test_the_baseline_belongs_to_the_space():
    baseline = {**defaults(), "micro_batch": 7}
    space = Space({"micro_batch": [4, 8]}, baseline, CPU)
    assert space.distributions()["micro_batch"].choices == (4, 7, 8)


def test_what_can_only_have_one_value_beside_the_others_is_no_parameter():
    values = {"micro_batch": [1, 2], "static_graph": [False, True]}
    space = Space(values, {**defaults(), "accumulation_steps": 2}, CPU)
    assert set(space.distributions()) == {"micro_batch"}
    assert space.complete({"micro_batch": 1})["static_graph"] is False
    told = "other values of static_graph than false: static_graph=true does not go with"
    assert any(reason.startswith(told) for reason in space.left_out)
    free = Space({**values, "accumulation_steps": [1, 2]}, defaults(), CPU)
    assert set(free.distributions()) == {"micro_batch", "accumulation_steps", "static_graph"}


@pytest.mark.parametrize("name", ["model", "tpe", "gp", "random", "grid"])
def test_no_sampler_repeats_itself_or_leaves_the_feasible(name):
    facts = Facts(device="cpu", world_size=2, global_batch_size=64)
    values = {
        "micro_batch": [1, 2, 4, 8, 16, 32],
        "accumulation_steps": [1, 2, 4, 8, 16, 32],
        "precision": ["fp32", "bf16"],
    }
    baseline = {**defaults(), "micro_batch": 8, "accumulation_steps": 4}
    space = Space(values, baseline, facts)
    asked = ask_all(space, name, 12)
    assert len({key(params) for params in asked}) == 12
    assert all(not infeasible(space.complete(params), facts) for params in asked)


@pytest.mark.parametrize("name", ["model", "tpe", "grid"])
def test_a_space_comes_to_its_end(name):
    space = Space({"micro_batch": [1, 2, 8]}, defaults(), CPU)
    with pytest.raises(Exhausted):
        ask_all(space, name, 4)


def test_nothing_that_must_run_out_of_memory_is_asked():
    values = {"micro_batch": [1, 2, 4, 8, 16, 32, 64], "log_interval": [1, 10]}
    space = Space(values, defaults(), CPU)
    study = optuna.create_study(direction="maximize", sampler=sampler("random", space, seed=0))
    study.enqueue_trial({"micro_batch": 8, "log_interval": 10})
    trial = study.ask(space.distributions())
    trial.set_user_attr("end", "OOM")
    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    asked = []
    with pytest.raises(Exhausted):
        while True:
            trial = study.ask(space.distributions())
            study.tell(trial, 1.0)
            asked.append(trial.params)
    assert sorted({params["micro_batch"] for params in asked}) == [1, 2, 4]
    assert len(asked) == 6


@pytest.mark.parametrize("ran", ["", "COMPLETE", "PRUNED"])
def test_failure_rules_out_what_needs_as_much_unless_its_equal_ran(ran):
    values = {"micro_batch": [4, 8], "num_workers": [0, 32], "log_interval": [1, 10]}
    space = Space(values, {**defaults(), "log_interval": 1}, CPU)
    study = optuna.create_study(direction="maximize", sampler=sampler("random", space, seed=0))

    def told(workers, *, log_interval, end):
        study.enqueue_trial(
            {"micro_batch": 4, "num_workers": workers, "log_interval": log_interval}
        )
        trial = study.ask(space.distributions())
        trial.set_user_attr("end", end)
        if end == "PRUNED":
            trial.report(1.0, 1)
        state = None if end == "COMPLETE" else optuna.trial.TrialState.PRUNED
        study.tell(trial, None if state else 1.0, state=state)

    told(32, log_interval=1, end="OOM")
    if ran:
        told(32, log_interval=10, end=ran)
    asked = set()
    with pytest.raises(Exhausted):
        while True:
            trial = study.ask(space.distributions())
            study.tell(trial, 1.0)
            asked.add((trial.params["micro_batch"], trial.params["num_workers"]))
    assert (8, 0) in asked
    assert ((8, 32) in asked) is bool(ran)


def test_memory_is_compared_only_where_all_else_is_the_same():
    small = defaults()
    large = {**defaults(), "micro_batch": 16, "accumulation_steps": 4}
    assert needs_more_memory(large, small)
    assert not needs_more_memory(small, large)
    assert not needs_more_memory({**large, "precision": "bf16"}, small)
    assert not needs_more_memory({**large, "num_workers": 4}, small)
    assert needs_more_memory({**large, "num_workers": 4}, small, on_device=True)


@pytest.mark.parametrize("parallelism", ["ddp", "none", "fsdp"])
def test_gradients_that_wait_are_memory_of_their_own(parallelism):
    """One sample of a model with billions of parameters takes less than its gradients."""
    once = {**defaults(), "parallelism": parallelism, "micro_batch": 2}
    waiting = {**once, "micro_batch": 1, "accumulation_steps": 2}
    assert not needs_more_memory(once, waiting)
    assert needs_more_memory({**waiting, "accumulation_steps": 8}, waiting)
    assert needs_more_memory({**once, "accumulation_steps": 4}, once)
    assert not needs_more_memory(waiting, {**waiting, "micro_batch": 2})


def test_tpe_learns_within_the_feasible():
    space = Space({"micro_batch": [2**i for i in range(12)]}, defaults(), CPU)
    asked = ask_all(space, "tpe", 12, value=lambda params: float(params["micro_batch"]))
    assert len(asked) == 12


def test_large_spaces_are_drawn_from_without_enumeration():
    values = {"micro_batch": list(range(1, 3000)), "log_interval": list(range(1, 1000))}
    space = Space(values, defaults(), CPU)
    drawn = space.feasible(random.Random(0))
    assert len({key(next(drawn)) for _ in range(50)}) > 40


DDP = {
    "bucket_cap_mb": [1, 5, 10, 25, 50, 100, 200],
    "first_bucket_mb": [1, 2, 4, 8],
    "gradient_as_bucket_view": [False, True],
    "find_unused_parameters": [False, True],
    "broadcast_buffers": [False, True],
    "gradient_compression": ["none", "fp16", "bf16", "powersgd"],
    "powersgd_rank": [1, 2, 4, 8, 16],
    "nccl_algo": ["auto", "Ring", "Tree", "NVLS"],
    "static_graph": [False, True],
}


def test_what_goes_with_no_value_of_the_others_is_no_parameter_of_a_large_space_either():
    facts = Facts(device="cuda", world_size=1, capability=(9, 0), backend="nccl")
    values = {"micro_batch": [8, 16, 32], "precision": ["fp32", "bf16"], **DDP}
    space = Space(values, {**defaults(), "micro_batch": 8, "parallelism": "none"}, facts)
    assert set(space.distributions()) == {"micro_batch", "precision"}
    told = (
        "other values of bucket_cap_mb than 25: bucket_cap_mb=1 does not go with parallelism=none"
    )
    assert any(reason.startswith(told) for reason in space.left_out)
    spread = Space(
        values, {**defaults(), "micro_batch": 8}, dataclasses.replace(facts, world_size=2)
    )
    assert spread.distributions().keys() == values.keys()


@pytest.mark.long
def test_a_large_space_in_which_nothing_more_is_found_comes_to_its_end():
    asked = itertools.count()

    def refusal(knobs):
        assert next(asked) < 1_000_000, "it is drawn from without end"
        return "" if knobs["micro_batch"] * knobs["accumulation_steps"] == 1 else "too large"

    values = {"micro_batch": list(range(1, 600)), "accumulation_steps": list(range(1, 600))}
    space = Space(values, {**defaults(), "micro_batch": 1}, CPU, refusal)
    chosen = sampler("random", space, 0)
    study = optuna.create_study(direction="maximize", sampler=chosen)
    study.enqueue_trial({"micro_batch": 1, "accumulation_steps": 1})
    study.tell(study.ask(space.distributions()), 1.0)
    assert chosen.has_more(study.get_trials())
    with pytest.raises(Exhausted):
        study.ask(space.distributions())


def test_what_cannot_be_proven_is_not_looked_at_any_further():
    looked = []
    values = {"micro_batch": list(range(1, 600)), "accumulation_steps": list(range(1, 100))}
    space = Space(values, defaults(), CPU, lambda knobs: looked.append(knobs) or "")
    chosen = sampler("random", space, 0)
    chosen.restrict(lambda knobs: False)
    assert not chosen.has_more([])
    assert not looked


def test_a_space_knows_when_nothing_is_left():
    space = Space({"micro_batch": [4, 8], "log_interval": [10]}, defaults(), CPU)
    chosen = sampler("tpe", space, 0)
    study = optuna.create_study(direction="maximize", sampler=chosen)
    for _ in range(2):
        assert chosen.has_more(study.get_trials())
        study.tell(study.ask(space.distributions()), 1.0)
    assert not chosen.has_more(study.get_trials())


def test_a_space_of_one_configuration_holds_one_trial():
    space = Space({"micro_batch": [8]}, defaults(), CPU)
    chosen = sampler("tpe", space, 0)
    study = optuna.create_study(direction="maximize", sampler=chosen)
    study.enqueue_trial({})
    assert chosen.has_more(study.get_trials())
    study.tell(study.ask(space.distributions()), 1.0)
    assert not chosen.has_more(study.get_trials())


def test_what_a_trial_costs_is_asked_of_whole_configurations():
    space = Space({"micro_batch": [1, 2, 4, 8]}, defaults(), CPU)
    asked = []
    priced = sampler("model", space, seed=0)
    priced.price(lambda knobs: asked.append(knobs) or 1.0)
    study = optuna.create_study(direction="maximize", sampler=priced)
    for rate in (1.0, 2.0, 3.0):
        study.tell(study.ask(space.distributions()), rate)
    assert asked
    assert all(knobs.keys() == defaults().keys() for knobs in asked)


def test_what_the_baseline_is_made_of_reaches_the_model():
    values = {"micro_batch": [4, 8, 16], "num_workers": [0, 2, 4], "bucket_cap_mb": [1, 25, 100]}
    space = Space(values, {**defaults(), "micro_batch": 8}, CPU)
    promised = []
    for shares in (None, {"loader": 0.6, "compute": 0.4}):
        model = sampler("model", space, seed=0)
        if shares:
            model.see({**defaults(), "micro_batch": 8}, shares)
        study = optuna.create_study(direction="maximize", sampler=model)
        for workers, rate in ((0, 1.0), (2, 1.0)):
            study.enqueue_trial({"micro_batch": 8, "num_workers": workers, "bucket_cap_mb": 25})
            study.tell(study.ask(space.distributions()), rate)
        promised.append(model.prediction(study.trials).gain)
    assert promised[0] != promised[1]


def test_what_there_is_no_time_for_is_not_proposed_unless_it_was_enqueued():
    space = Space({"compile": ["none", "default"], "micro_batch": [4, 8]}, defaults(), CPU)
    for name in ("model", "random"):
        ours = sampler(name, space, seed=0)
        ours.restrict(lambda knobs: knobs["compile"] == "none")
        study = optuna.create_study(direction="maximize", sampler=ours)
        study.enqueue_trial({"compile": "default", "micro_batch": 4})
        asked = []
        while ours.has_more(study.trials):
            trial = study.ask(space.distributions())
            asked.append(trial.params)
            study.tell(trial, float(trial.params["micro_batch"]))
        assert [params["compile"] for params in asked] == ["default", "none", "none"]


def told_in_turn(space, trials):
    """Trials of a study, of which those with a larger micro-batch and in bf16 are faster."""
    study = optuna.create_study(direction="maximize", sampler=sampler("model", space, seed=0))
    study.enqueue_trial({name: defaults()[name] for name in space.distributions()})
    for _ in range(trials):
        trial = study.ask(space.distributions())
        rate = trial.params["micro_batch"] ** 0.1 * PRECISIONS[trial.params["precision"]]
        trial.set_user_attr("standard_error", 0.01)
        study.tell(trial, rate)
    return study.get_trials(deepcopy=False)


def test_what_was_expected_before_the_last_trial_does_not_know_of_it():
    values = {"micro_batch": [1, 2, 4, 8, 16], "precision": [*PRECISIONS]}
    space = Space({**values, "log_interval": [1, 10, 50]}, defaults(), CPU)
    trials = told_in_turn(space, 5)
    asked, new = (sampler("model", space, seed=0) for _ in range(2))
    asked.prediction(trials)
    before, alone = (one.prediction(trials[:-1]) for one in (asked, new))
    assert (before.gain, before.left) == (alone.gain, alone.left)


def test_what_ran_out_of_memory_in_the_last_trial_rules_out_nothing_before_it():
    space = Space({"micro_batch": [1, 2, 4, 8]}, defaults(), CPU)
    study = optuna.create_study(direction="maximize", sampler=sampler("random", space, seed=0))
    worth = WorthLaunching(space)
    for size in (1, 4):
        study.enqueue_trial({"micro_batch": size})
        trial = study.ask(space.distributions())
        trial.set_user_attr("end", "OOM")
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    trials = study.get_trials(deepcopy=False)
    for some, left in (
        (trials, []),
        (trials[1:], [1, 2]),
        (trials, []),
        (trials[:0], [1, 2, 4, 8]),
    ):
        allowed = worth(some)
        assert [size for size in (1, 2, 4, 8) if allowed({"micro_batch": size})] == left


def test_what_is_left_is_looked_for_where_something_was_left_before():
    names = "micro_batch", "accumulation_steps", "log_interval", "bucket_cap_mb"
    space = Space({name: [*range(1, 11)] for name in names}, dict(defaults(), micro_batch=1), CPU)
    asked, tried = [], set()

    def worth(params):
        asked.append(params)
        return params["micro_batch"] == 9 and key(params) not in tried

    assert space.any_feasible(worth)
    assert len(asked) > 1000
    tried.add(key(asked[-1]))
    asked.clear()
    assert space.any_feasible(worth)
    assert len(asked) <= 2
    asked.clear()
    assert not space.any_feasible(lambda params: bool(asked.append(params)))
    assert len({key(params) for params in asked}) == space.size


# Spaces of which few combinations can run

DEVICES = Facts("cuda", 8, (9, 0), 512, "nccl")
WITH_SWITCHES = {
    "micro_batch": [8, 16, 32, 64],
    "precision": ["fp32", "tf32", "bf16", "fp16", "pure_bf16"],
    "optimizer_kernels": ["default", "foreach", "fused"],
    "num_workers": [0, 2, 4, 8],
    "pin_memory": [False, True],
    "persistent_workers": [False, True],
    "prefetch_factor": [2, 4],
    "parallelism": ["ddp", "zero1", "fsdp", "fsdp_no_reshard"],
    "bucket_cap_mb": [5, 25, 50, 100, 200],
    "first_bucket_mb": [1, 5],
    "gradient_as_bucket_view": [False, True],
    "gradient_compression": ["none", "bf16", "fp16"],
    "static_graph": [False, True],
    "activation_checkpointing": [0, 1, 2],
    "compile": ["none", "default", "reduce-overhead"],
    "float8": ["none", "tensorwise", "rowwise"],
    "fsdp_prefetch": [0, 2],
    "fsdp_reduce_dtype": ["fp32", "bf16"],
}
LIKE_DDP = {
    "precision": "bf16",
    "optimizer_kernels": "fused",
    "gradient_as_bucket_view": True,
    "bucket_cap_mb": 100,
    "micro_batch": 32,
}


def with_switches():
    baseline = {**defaults(), "micro_batch": 16, "accumulation_steps": 4}
    space = Space(WITH_SWITCHES, baseline, DEVICES)
    return space, {name: baseline[name] for name in space.distributions()}


def test_walks_from_the_baseline_can_all_run_and_have_every_value():
    space, baseline = with_switches()
    names = list(baseline)
    drawn = random.Random(1)
    by_chance = [
        {name: drawn.choice(space.distributions()[name].choices) for name in names}
        for _ in range(100)
    ]
    assert sum(not space.problems(params) for params in by_chance) < 10
    found = list(space.walks(random.Random(0), SEARCH.walked_candidates))
    assert len(found) == SEARCH.walked_candidates
    assert not any(space.problems(params) for params in found)
    for name, distribution in space.distributions().items():
        assert {params[name] for params in found} == set(distribution.choices), name
    assert [*space.walks(random.Random(0), 3)] == found[:3]


def test_walks_are_drawn_anew_once_half_of_them_may_have_been_tried(monkeypatch):
    few = dataclasses.replace(SEARCH, walked_candidates=8)
    monkeypatch.setattr(performance_model, "SEARCH", few)
    drawn = []

    class Counted(Space):
        def walks(self, generator, count):
            drawn.append(count)
            return super().walks(generator, count)

    baseline = {**defaults(), "micro_batch": 16, "accumulation_steps": 4}
    ask_all(Counted(WITH_SWITCHES, baseline, DEVICES), "model", 10)
    assert 2 <= len(drawn) < 10
    assert set(drawn) == {8}


def test_neighbour_with_another_switch_leaves_out_what_goes_with_the_old_one_only():
    space, baseline = with_switches()
    best = {**baseline, **LIKE_DDP}
    found = list(space.neighbours(best))
    assert not any(space.problems(params) for params in found)
    assert best not in found
    sharded = [params for params in found if params["parallelism"] == "fsdp"]
    ddp_only = {name: baseline[name] for name in ("gradient_as_bucket_view", "bucket_cap_mb")}
    assert sharded == [{**best, "parallelism": "fsdp", **ddp_only}]


def is_sharding_tried_early(seed: int) -> bool:
    """Return whether one of 16 trials shards, where sharding is faster and most knobs are DDP's."""
    space, baseline = with_switches()
    study = optuna.create_study(direction="maximize", sampler=sampler("model", space, seed))
    study.enqueue_trial(baseline)
    study.enqueue_trial({**baseline, **LIKE_DDP})
    for _ in range(16):
        trial = study.ask(space.distributions())
        rate = {8: 0.8, 16: 1.0, 32: 1.1, 64: 1.15}[trial.params["micro_batch"]]
        rate *= 1.5 if "16" in trial.params["precision"] else 1.0
        rate *= 1.4 if trial.params["parallelism"].startswith("fsdp") else 1.0
        trial.set_user_attr("standard_error", 0.01)
        study.tell(trial, rate)
    return any(trial.params["parallelism"].startswith("fsdp") for trial in study.trials)


def test_a_switch_with_much_behind_it_is_mostly_tried_early():
    assert sum(map(is_sharding_tried_early, range(5))) >= 3


# A study that goes on where other values can run


def test_study_goes_on_with_the_values_and_knobs_of_its_first_trials():
    values = {"precision": ["fp32", "tf32", "bf16"], "micro_batch": [1, 2], "log_interval": [1, 10]}
    baseline = {**defaults(), "micro_batch": 1}
    study = optuna.create_study(direction="maximize")
    first = Space({**values, "log_interval": [10]}, baseline, DEVICES)
    study.enqueue_trial({"precision": "fp32", "micro_batch": 1})
    study.tell(study.ask(first.distributions()), 1.0)
    later = Space(values, baseline, CPU)
    later.keep(study.trials[0].distributions)
    assert later.distributions() == first.distributions()
    assert later.problems({"precision": "tf32", "micro_batch": 1})
    study.sampler = sampler("random", later, seed=0)
    asked = []
    while study.sampler.has_more(study.trials):
        trial = study.ask(later.distributions())
        study.tell(trial, 1.0)
        asked.append((trial.params["precision"], trial.params["micro_batch"]))
    assert sorted(asked) == [("bf16", 1), ("bf16", 2), ("fp32", 2)]


def test_study_without_trials_keeps_nothing():
    space = Space({"micro_batch": [1, 2]}, defaults(), CPU)
    space.keep({})
    assert space.distributions()["micro_batch"].choices == (1, 2, 8)
