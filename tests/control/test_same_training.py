"""A finalist that trains something else than the baseline is no choice, and the verdict says why."""

import json
from typing import Any

import pytest

from autotune.views.recompute import recomputed_verdict
from launchers.replay import Launch
from tests.control.replayed import PLAIN, Replayed
from tests.support.behaviours import where

ROWS = {"rows": 48, "contents": "a", "indices": "", "order": "o", "counted": 48, "copies": 0}
SEEN: dict[str, Any] = {"consumed": ROWS, "unused_parameters": 0, "batch_dependent": ""}
LIKE_BASELINE = where(PLAIN, lambda _: True, first_steps=SEEN)


def changed(launch: Launch) -> bool:
    knobs = launch.knobs
    return bool(knobs["num_workers"] or not knobs["find_unused_parameters"])


def is_faster(**seen: Any) -> Any:
    """What is not the baseline runs at twice its speed, and shows this."""
    return where(LIKE_BASELINE, changed, rate=500.0, first_steps={**SEEN, **seen})


BASELINE = {"micro_batch": 2, "find_unused_parameters": True}


def test_a_finalist_that_trains_rows_twice_is_refused(played: Replayed) -> None:
    twice = is_faster(consumed={**ROWS, "copies": 24})
    verdict = played.on(twice).run(
        search_space={"num_workers": [0, 2], "micro_batch": [2]}, baseline=BASELINE
    )
    assert verdict["kind"] == "nothing_better"
    assert [refused["knobs"]["num_workers"] for refused in verdict["refused"]] == [2]
    assert "24 of 48 rows" in verdict["refused"][0]["reason"]
    again = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(again.as_dict())) == verdict


def test_the_risk_of_a_static_graph_stands_in_the_verdict(played: Replayed) -> None:
    verdict = played.on(is_faster()).run(
        search_space={"find_unused_parameters": [True, False], "micro_batch": [2]},
        baseline=BASELINE,
    )
    assert verdict["kind"] == "better"
    assert verdict["knobs"]["find_unused_parameters"] is False
    assert "find_unused_parameters=false holds only while" in verdict["risks"]
    again = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(again.as_dict())) == verdict


@pytest.mark.long
@pytest.mark.parametrize(("rule", "kind"), [("reject", "nothing_better"), ("allow", "better")])
def test_another_micro_batch_under_batch_normalisation_needs_to_be_allowed(
    played: Replayed, rule: str, kind: str
) -> None:
    normalised = where(PLAIN, lambda _: True, first_steps={**SEEN, "batch_dependent": "BatchNorm"})
    verdict = played.on(normalised).run(
        search_space={"micro_batch": [1, 2, 4, 8], "accumulation_steps": [1, 2, 4, 8]},
        baseline={"micro_batch": 2, "accumulation_steps": 4},
        objective={"batch_dependent": rule},
    )
    assert verdict["kind"] == kind
    reasons = [verdict["risks"], *(one["reason"] for one in verdict["refused"])]
    assert "BatchNorm" in " ".join(reasons)


def test_after_a_refused_split_no_other_one_is_tried(played: Replayed) -> None:
    normalised = where(PLAIN, lambda _: True, first_steps={**SEEN, "batch_dependent": "BatchNorm"})
    faster = where(normalised, lambda launch: launch.knobs["num_workers"] == 2, rate=45.0)
    verdict = played.on(faster).run(
        search_space={
            "micro_batch": [1, 2, 4, 8],
            "accumulation_steps": [1, 2, 4, 8],
            "num_workers": [0, 1, 2, 4],
        },
        baseline={"micro_batch": 2, "accumulation_steps": 4},
        objective={"batch_dependent": "reject"},
        sampler="model",
        budget={"trials": 16},
    )
    others = [run.trial for run in played.recorded("search") if run.knobs["micro_batch"] != 2]
    assert [refused["trial"] for refused in verdict["refused"]] == others
    assert len(others) == 1
    assert verdict["knobs"]["num_workers"] == 2
    assert played.said().count("no other of its kind is tried: the model has BatchNorm") == 1


def test_refused_trial_is_not_said_to_be_expected_as_the_best(played: Replayed) -> None:
    told = {**SEEN, "batch_dependent": "BatchNorm"}
    played.on(where(PLAIN, lambda _: True, first_steps=told)).run(
        search_space={
            "micro_batch": [2, 8],
            "accumulation_steps": [1, 4],
            "num_workers": [0, 1],
        },
        baseline={"micro_batch": 2, "accumulation_steps": 4},
        objective={"batch_dependent": "reject"},
        sampler="model",
        budget={"trials": 2},
    )
    assert [run.knobs["micro_batch"] for run in played.recorded("search")] == [2, 8]
    assert "The model takes micro_batch=8" not in played.said()


def test_rest_of_a_refused_bundle_is_tried(played: Replayed) -> None:
    told = {**SEEN, "batch_dependent": "BatchNorm"}
    played.on(where(PLAIN, lambda _: True, first_steps=told)).run(
        search_space={
            "micro_batch": [2, 4, 8],
            "accumulation_steps": [1, 2, 4],
            "optimizer_kernels": ["default", "fused"],
            "freeze_gc": [False, True],
        },
        baseline={"micro_batch": 2, "accumulation_steps": 4},
        objective={"batch_dependent": "reject"},
        sampler="model",
        budget={"trials": 12},
    )
    assert "without what a check refuses" in played.said()
    bundle = next(run.knobs for run in played.recorded("search") if run.knobs["micro_batch"] != 2)
    rest = {**bundle, "micro_batch": 2, "accumulation_steps": 4}
    assert [run.knobs for run in played.recorded("search")].count(rest) == 1


def in_short_epochs(launch: Launch) -> bool:
    script = launch.request.script
    return script is not None and script.batches_per_epoch > 0


@pytest.mark.parametrize(("stale", "kind"), [([], "better"), (["dataset.epoch"], "nothing_better")])
def test_workers_that_stay_are_looked_at_in_short_epochs(
    played: Replayed, stale: list[str], kind: str
) -> None:
    (played.folder / "train.py").touch()
    faster = where(LIKE_BASELINE, lambda launch: launch.knobs["persistent_workers"], rate=500.0)
    told = {"epochs": 1, "stale": stale}
    verdict = played.on(where(faster, in_short_epochs, first_steps=told)).run(
        workload={"script": "train.py"},
        search_space={"persistent_workers": [False, True]},
        baseline={"micro_batch": 2, "accumulation_steps": 1, "num_workers": 1},
    )
    assert [run.knobs["persistent_workers"] for run in played.recorded("epochs")] == [True]
    assert verdict["kind"] == kind
    assert "Not verified" not in verdict["risks"]
