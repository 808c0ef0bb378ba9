"""Trial without the knobs that the numerics gate has refused in the fastest one."""

import dataclasses
import json
from typing import Any

import pytest

from autotune.views.recompute import recomputed_verdict
from autotune.worker.protocol import Outcome
from launchers.replay import Answer, Behaviour, Launch
from launchers.replay.behaviours import noisy
from tests.control.deaths import Died, mortal, writers
from tests.control.replayed import Replayed
from tests.support.behaviours import where

SPACE = {"precision": ["fp32", "bf16"], "freeze_gc": [False, True], "num_workers": [0, 1, 2]}
BASELINE = {"micro_batch": 2, "num_workers": 0}


def speed(launch: Launch) -> Answer:
    """Twice as fast in bf16, and faster by a half with one of the others."""
    rate = 40.0 * (2.0 if launch.knobs["precision"] == "bf16" else 1.0)
    rate *= 1.5 if launch.knobs["freeze_gc"] else 1.0
    return Answer(rate=rate, startup=2.0, stays=False)


SCRIPT = noisy(speed, run=0.02, block=0.03)


def is_run_for(launch: Launch, purpose: str) -> bool:
    return f"-{purpose}" in launch.request.trial


UNUSABLE = where(
    SCRIPT,
    lambda one: is_run_for(one, "reference"),
    outcome=Outcome.ERROR,
    cause="rank 0: no reference",
)
LEAVES = where(SCRIPT, lambda one: is_run_for(one, "numerics"), loss=1.2)


def changes(wall_time: int, **budget: Any) -> dict[str, Any]:
    return {
        "workload": {"script": "train.py"},
        "search_space": SPACE,
        "baseline": BASELINE,
        "sampler": "model",
        "measurement": {
            "finalists": 3,
            "rounds": 4,
            "warmup": 20.0,
            "max_measure_time": 30.0,
            "baseline_runs": 3,
        },
        "budget": {"trials": None, "wall_time": f"{wall_time}s", **budget},
    }


def run(played: Replayed, wall_time: int, **budget: Any) -> dict[str, Any]:
    (played.folder / "train.py").write_text("")
    return played.run(**changes(wall_time, **budget))


def searched(played: Replayed) -> list[str]:
    return [a.knobs["precision"] for a in played.recorded("search")]


@pytest.mark.parametrize("behaviour", [UNUSABLE, LEAVES])
@pytest.mark.parametrize("wall_time", [50, 60])
def test_best_trial_is_proven_without_the_number_format_that_is_refused(
    played: Replayed, behaviour: Behaviour, wall_time: int
) -> None:
    verdict = run(played.on(behaviour, seed=1), wall_time)
    *before, last = played.recorded("search")
    best = max(before, key=lambda one: one.result.throughput)
    assert [one.knobs["precision"] for one in before[1:]] == ["bf16"] * len(before[1:])
    assert last.knobs == {**best.knobs, "precision": "fp32"}
    assert verdict["kind"] == "better"
    assert verdict["knobs"] == last.knobs
    assert all(one.id > last.id for one in played.recorded("confirm"))
    assert played.seconds <= 1.05 * wall_time
    again = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(again.as_dict())) == verdict


def test_time_that_is_missing_for_the_trial_without_what_is_refused_is_told_once(
    played: Replayed,
) -> None:
    verdict = run(played.on(LEAVES, seed=1), 45)
    assert searched(played) == ["fp32", "bf16"]
    assert verdict["kind"] == "nothing_better"
    said = "There is no time left for trial 1 without precision=bf16, which a check refuses; about 50 s"
    assert played.said().count(said) == 1


def test_no_trial_is_beyond_the_number_that_is_allowed(played: Replayed) -> None:
    verdict = run(played.on(UNUSABLE, seed=1), 600, trials=2)
    assert searched(played) == ["fp32", "bf16"]
    assert verdict["kind"] == "nothing_better"


@pytest.mark.parametrize("when", ["before", "after"])
def test_trial_without_what_is_refused_runs_once_whenever_a_daemon_dies(
    played: Replayed, when: str
) -> None:
    (played.folder / "train.py").write_text("")
    played.on(UNUSABLE, seed=1).submit(**changes(60))
    with mortal(writers(), ("TrialLedger.begin", when, 1)), pytest.raises(Died):
        played.serve()
    played.bury_daemon()
    played.serve()
    tried = [one.knobs for one in played.attempts("search")]
    assert all(tried.count(knobs) == 1 for knobs in tried)
    assert played.verdict["kind"] == "better"
    assert played.verdict["knobs"]["precision"] == "fp32"


def test_trial_without_what_is_refused_runs_again_where_its_node_stalled(played: Replayed) -> None:
    late: list[Launch] = []

    def stalls(launch: Launch) -> Answer:
        found = UNUSABLE(launch)
        is_late = launch.knobs["precision"] == "fp32" and launch.knobs["freeze_gc"]
        if not is_late or is_run_for(launch, "confirm"):
            return found
        late.append(launch)
        stalled = "node 0 stood still for 9 s" if len(late) == 1 else ""
        return dataclasses.replace(found, not_its_own=stalled)

    verdict = run(played.on(stalls, seed=1), 90)
    *_, lost, again = played.attempts("search")
    assert (lost.result.state, again.result.state) == ("LOST", "COMPLETE")
    assert (lost.trial, lost.knobs) == (again.trial, again.knobs)
    assert verdict["kind"] == "better"
    assert verdict["knobs"] == again.knobs
