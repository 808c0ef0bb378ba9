"""A winner without its idle changes must train the same, and fit, as the winner does."""

import json
from typing import Any

import pytest

from autotune.views.recompute import recomputed_verdict
from autotune.worker.protocol import Outcome
from launchers.replay import Answer, Launch
from launchers.replay.behaviours import running_at
from tests.control.replayed import Replayed
from tests.control.test_finals import gradient
from tests.control.test_longest import ON_GPU
from tests.support.behaviours import where

GIB = 2**30
ROWS = {"rows": 48, "contents": "a", "indices": "", "order": "o", "counted": 48, "copies": 0}


def searched(played: Replayed, behave: Any, trials: int, **sections: Any) -> dict[str, Any]:
    """Run a study of a script with one finalist; return what is recommended."""
    (played.folder / "train.py").write_text("")
    verdict = played.on(behave).run(
        workload={
            "script": "train.py",
            "samples": 8,
            "args": ["--precision", "fp32"],
            "flags": {"precision": "--precision"},
        },
        baseline={},
        sampler="grid",
        budget={"trials": trials},
        measurement={"ablation_rounds": 2, "finalists": 1},
        **sections,
    )
    assert verdict["kind"] == "better"
    knobs: dict[str, Any] = verdict["knobs"]
    return knobs


def with_scaler(launch: Launch) -> Answer:
    """Train in fp16, twice as fast and wrongly unless the script's own scaler is on."""
    fp16, scaler = launch.knobs["precision"] == "fp16", launch.knobs["scaler"]
    rate = 100.0 * (2.0 if fp16 else 1.0) * (0.999 if scaler else 1.0)
    return Answer(rate=rate, loss=1.5 if fp16 and not scaler else 1.0)


@pytest.mark.parametrize("values", [[False, True], [True, False]])
def test_what_the_gate_refuses_of_the_reduced_winner_stays(played: Replayed, values: Any) -> None:
    """Try both orders of trials: with fp16 alone refused before, and with fp16 alone untried."""
    knobs = searched(
        played,
        with_scaler,
        4 if values[1] else 3,
        search_space={"precision": ["fp32", "fp16"]},
        knobs={"scaler": {"values": values, "flag": "--scaler", "default": False}},
    )
    assert (knobs["precision"], knobs["scaler"]) == ("fp16", True)


def test_a_reduced_winner_that_passes_the_gate_is_recommended(played: Replayed) -> None:
    def behave(launch: Launch) -> Answer:
        return Answer(rate=200.0 if launch.knobs["precision"] == "fp16" else 100.0)

    knobs = searched(
        played,
        behave,
        3,
        search_space={"precision": ["fp32", "fp16"]},
        knobs={"scaler": {"values": [True, False], "flag": "--scaler", "default": False}},
    )
    assert (knobs["precision"], knobs["scaler"]) == ("fp16", False)
    checked = [run.knobs for run in played.recorded("numerics")]
    assert knobs in checked
    assert played.verdict["numerics"]
    again = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(again.as_dict())) == played.verdict


def test_an_own_knob_stays_where_another_change_may_need_it_for_the_data(played: Replayed) -> None:
    """Two workers read all rows twice, unless the script shards them; to shard brings nothing."""

    def behave(launch: Launch) -> Answer:
        workers, shard = launch.knobs["num_workers"], launch.knobs["shard"]
        rate = 100.0 * (2.0 if workers else 1.0) * (0.999 if shard else 1.0)
        consumed = {**ROWS, "copies": 24 if workers and not shard else 0}
        seen = {"unused_parameters": 0, "batch_dependent": "", "consumed": consumed}
        return Answer(rate=rate, first_steps=seen)

    knobs = searched(
        played,
        behave,
        3,
        search_space={"num_workers": [0, 2]},
        knobs={"shard": {"values": [True, False], "flag": "--shard", "default": False}},
    )
    assert (knobs["num_workers"], knobs["shard"]) == (2, True)


@pytest.mark.parametrize(("error", "float8"), [(0.0, "none"), (0.25, "tensorwise")])
def test_what_is_left_is_checked_by_the_limit_of_its_own_formats(
    played: Replayed, error: float, float8: str
) -> None:
    """The gradient may err more in float8 than in bf16; to go without float8 costs nothing."""

    def behave(launch: Launch) -> Answer:
        bf16 = launch.knobs["precision"] == "bf16"
        rate = 100.0 * (2.0 if bf16 else 1.0) * (1.0005 if launch.knobs["float8"] != "none" else 1)
        first = gradient(error if bf16 else 0.0) if launch.request.trajectory else {}
        return Answer(rate=rate, first_steps=first)

    knobs = played.on(behave, environment=ON_GPU).run(
        search_space={"precision": ["fp32", "bf16"], "float8": ["none", "tensorwise"]},
        baseline={"micro_batch": 2, "compile": "default"},
        sampler="grid",
        budget={"trials": 4},
        measurement={"ablation_rounds": 2, "finalists": 1},
    )["knobs"]
    assert (knobs["precision"], knobs["float8"]) == ("bf16", float8)


@pytest.mark.parametrize("trials", [3, 4])
def test_a_winner_is_not_reduced_to_what_outgrows_the_memory(played: Replayed, trials: int) -> None:
    """The winner fits with the longest samples; without a change that costs no speed it does not."""

    def rate(knobs: dict[str, Any]) -> float:
        fast = 1.8 if knobs["bucket_cap_mb"] == 100 else 1.0
        return 100.0 * fast * (1.0005 if knobs["log_interval"] == 1 else 1.0)

    told = where(running_at(rate), lambda _: True, tells_longest=True, peak_bytes=10 * GIB)
    too_long = where(
        told,
        lambda one: (
            one.request.longest
            and (one.knobs["log_interval"], one.knobs["bucket_cap_mb"]) == (10, 100)
        ),
        outcome=Outcome.OOM,
        cause="no memory",
    )
    verdict = played.on(too_long).run(
        search_space={"bucket_cap_mb": [25, 100], "log_interval": [1, 10]},
        baseline={"micro_batch": 2, "log_interval": 10, "bucket_cap_mb": 25},
        sampler="grid",
        budget={"trials": trials},
        measurement={"ablation_rounds": 2, "finalists": 1},
    )
    assert verdict["kind"] == "better"
    assert (verdict["knobs"]["bucket_cap_mb"], verdict["knobs"]["log_interval"]) == (100, 1)
    assert verdict["memory"]["longest"] == 10 * GIB
    alone = {**verdict["knobs"], "log_interval": 10}
    assert (alone in [run.knobs for run in played.recorded("search")]) == (trials == 4)
    assert alone in [run.knobs for run in played.recorded("longest")]
