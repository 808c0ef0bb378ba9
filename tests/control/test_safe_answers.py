"""Recommended configurations have passed their checks, also where other runs have failed."""

import dataclasses
import json
from typing import Any

from autotune.worker.protocol import Outcome
from launchers.replay import Answer, Launch
from launchers.replay.behaviours import noisy, running_at
from tests.control.replayed import Replayed
from tests.control.shown import answered
from tests.control.test_longest import GIB, ON_GPU
from tests.control.test_same_training import SEEN
from tests.support.behaviours import where


def is_run_for(launch: Launch, purpose: str) -> bool:
    return f"-{purpose}" in launch.request.trial


def crashed(answer: Answer) -> Answer:
    return dataclasses.replace(answer, outcome=Outcome.CRASH, cause="killed")


def test_what_runs_where_the_baseline_fails_in_rounds_is_checked_first(played: Replayed) -> None:
    """Run a bf16 trial that is slower than the baseline, which alone would not be checked."""

    def behave(launch: Launch) -> Answer:
        half = launch.knobs["precision"] == "bf16"
        found = Answer(
            rate=70.0 if half else 100.0, pattern=(0.995, 1.005, 1.0), loss=1.5 if half else 1.0
        )
        return crashed(found) if is_run_for(launch, "confirm") and not half else found

    verdict = played.on(noisy(behave, run=0.002, block=0.002), environment=ON_GPU).run(
        search_space={"precision": ["fp32", "bf16"]},
        baseline={"micro_batch": 2},
        sampler="grid",
        budget={"trials": 2},
        measurement={"finalists": 1},
    )
    assert [run.result.state for run in played.recorded("numerics")] == ["REFUSED"]
    assert verdict["knobs"] is None


def test_risks_are_told_where_the_baseline_fails_in_rounds(played: Replayed) -> None:
    def behave(launch: Launch) -> Answer:
        asked = launch.knobs["find_unused_parameters"]
        found = Answer(rate=100.0 if asked else 200.0, first_steps=SEEN)
        return crashed(found) if is_run_for(launch, "confirm") and asked else found

    verdict = played.on(behave).run(
        search_space={"find_unused_parameters": [True, False]},
        baseline={"micro_batch": 2, "find_unused_parameters": True},
        sampler="grid",
        budget={"trials": 2},
        measurement={"finalists": 2},
    )
    assert (verdict["kind"], verdict["knobs"]["find_unused_parameters"]) == ("no_baseline", False)
    assert "find_unused_parameters" in verdict["risks"]


SIZES = {"micro_batch": [2, 4, 8]}
TOLD = where(
    running_at(lambda knobs: 100.0 * {2: 1.0, 4: 1.3, 8: 1.8}[knobs["micro_batch"]]),
    lambda _: True,
    tells_longest=True,
    peak_bytes=10 * GIB,
)
OUTGROWN = where(
    TOLD,
    lambda one: one.request.longest and one.knobs["micro_batch"] == 8,
    outcome=Outcome.OOM,
    cause="no memory",
)


def of_sizes(**budget: Any) -> dict[str, Any]:
    return {
        "search_space": SIZES,
        "baseline": {"micro_batch": 2},
        "objective": {"global_batch_size": "free"},
        "sampler": "grid",
        "budget": {"trials": 3, **budget},
        "measurement": {"finalists": 2},
    }


def test_run_on_the_longest_samples_that_fails_by_chance_is_made_again(played: Replayed) -> None:
    runs: list[Launch] = []

    def behave(launch: Launch) -> Answer:
        found = OUTGROWN(launch)
        if found.outcome is None:
            return found
        runs.append(launch)
        chance = dataclasses.replace(found, outcome=Outcome.ERROR, cause="connection reset by peer")
        return chance if len(runs) == 1 else found

    verdict = played.on(behave).run(**of_sizes())
    assert played.states("longest")[:2] == ["ERROR", "OOM"]
    assert verdict["knobs"]["micro_batch"] == 4


def test_run_on_the_longest_samples_that_was_cut_short_is_made_again_with_more_time(
    played: Replayed,
) -> None:
    slow = where(TOLD, lambda one: one.request.longest, startup=1000.0)
    played.on(slow).run(**of_sizes(wall_time="120s"))
    assert "PRUNED" in played.states("longest")
    played.on(OUTGROWN).submit(**of_sizes(wall_time="5000s"))
    played.serve()
    assert "OOM" in played.states("longest")
    assert played.verdict["knobs"]["micro_batch"] == 4


def test_power_limit_holds_in_the_soak_run(played: Replayed) -> None:
    def behave(launch: Launch) -> Answer:
        fast = launch.knobs["micro_batch"] == 4
        hot = fast and is_run_for(launch, "soak")
        return Answer(rate=150.0 if fast else 100.0, startup=60.0, watts=400.0 if hot else 200.0)

    verdict = played.on(noisy(behave, run=0.003, block=0.005)).run(
        search_space={"micro_batch": [2, 4]},
        baseline={"micro_batch": 2},
        objective={"power_limit": 300.0, "global_batch_size": "free"},
        sampler="grid",
        budget={"trials": 2, "wall_time": "2h"},
        measurement={"max_measure_time": 20.0, "baseline_runs": 3},
    )
    assert verdict["soak_failure"]["state"] == "POWER"


def test_trial_that_its_own_check_refuses_leads_in_no_status(played: Replayed) -> None:
    said: list[dict[str, Any]] = []

    def behave(launch: Launch) -> Answer:
        if is_run_for(launch, "confirm1") and not said:
            said.append(json.loads(answered(played, "status", played.name, "--json")))
        rate = 200.0 if launch.knobs["precision"] == "bf16" else 100.0
        rate *= 1.3 if launch.knobs["log_interval"] == 10 else 1.0
        return Answer(rate=rate, loss=1.5 if is_run_for(launch, "numerics") else 1.0)

    played.on(behave).run(
        search_space={"precision": ["fp32", "bf16"], "log_interval": [1, 10]},
        baseline={"micro_batch": 2, "log_interval": 1},
        sampler="grid",
        budget={"trials": 4},
        measurement={"finalists": 1, "rounds": 5},
    )
    refused = {run.trial for run in played.recorded("numerics")}
    assert refused
    assert said[0]["leading_trial"] not in refused
