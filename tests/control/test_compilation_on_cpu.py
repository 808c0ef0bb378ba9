"""Short studies of a script on CPUs, in virtual time, where a compilation takes most of a minute."""

from typing import Any

import pytest

from launchers.replay import Answer, Behaviour, Launch
from launchers.replay.behaviours import noisy
from tests.control.replayed import Replayed

SPACE: dict[str, Any] = {"micro_batch": [2, 4, 8], "compile": ["none", "default"]}
BASELINE = {"micro_batch": 2, "accumulation_steps": 4}
WORKLOAD = {"script": "train.py", "args": ["--batch", "2"], "flags": {"micro_batch": "--batch"}}
COMPILING = 42.0
"""Seconds that nanoGPT compiled for on two shared cores."""
FASTER = {2: 1.0, 4: 1.2, 8: 1.35}
"""Speed-up over the baseline, by micro-batch."""


def of_script(launch: Launch) -> Answer:
    compiles = launch.knobs["compile"] != "none"
    rate = 40.0 * FASTER[launch.knobs["micro_batch"]] * (1.1 if compiles else 1.0)
    cold = COMPILING if launch.number == 1 else COMPILING / 3
    startup = launch.draw.uniform(2.0, 3.0)
    return Answer(
        rate=rate,
        startup=startup,
        stays=False,
        first_step=cold if compiles else None,
        first_steps={"compilations": 1} if compiles else {},
    )


def run(played: Replayed, wall_time: int, seed: int = 0) -> dict[str, Any]:
    (played.folder / "train.py").write_text("")
    return played.on(noisy(of_script, run=0.01, block=0.02), seed=seed).run(
        workload=WORKLOAD,
        search_space=SPACE,
        baseline=BASELINE,
        sampler="model",
        objective={"global_batch_size": "free"},
        measurement={"warmup": 10.0, "max_measure_time": 20.0, "rounds": 10, "baseline_runs": 3},
        budget={"trials": None, "wall_time": f"{wall_time}s"},
    )


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("wall_time", [90, 150])
def test_study_too_short_to_compile_on_cpu_proves_another_gain_and_says_what_it_leaves_out(
    played: Replayed, wall_time: int, seed: int
) -> None:
    verdict = run(played, wall_time, seed)
    assert (verdict["kind"], verdict["knobs"]["micro_batch"]) == ("better", 8)
    assert {attempt.knobs["compile"] for attempt in played.attempts("search")} == {"none"}
    assert "compile=default is left out" in played.said()


def test_study_with_time_to_compile_on_cpu_cuts_no_trial_before_its_first_step(
    played: Replayed,
) -> None:
    verdict = run(played, 400)
    tried = played.attempts("search")
    assert {attempt.knobs["compile"] for attempt in tried} == {"none", "default"}
    assert all(attempt.result.throughput for attempt in tried)
    assert (verdict["kind"], verdict["knobs"]["compile"]) == ("better", "default")


def in_bf16(cold: float) -> Behaviour:
    """Return a script that bf16 makes 1.87 times as fast, and compilation another 5 %.

    Args:
        cold: seconds of the first compilation; later ones take half of it.
    """

    def behaviour(launch: Launch) -> Answer:
        compiles = launch.knobs["compile"] != "none"
        in_half = launch.knobs["precision"] == "bf16"
        seconds = cold if launch.number == 1 else cold / 2
        return Answer(
            rate=10.6 * (1.87 if in_half else 1.0) * (1.05 if compiles else 1.0),
            startup=launch.draw.uniform(1.0, 2.0),
            stays=False,
            first_step=seconds if compiles else None,
            first_steps={"compilations": 1} if compiles else {},
        )

    return behaviour


def in_four_knobs(
    played: Replayed, script: Behaviour, wall_time: int, block: float = 0.03
) -> dict[str, Any]:

    (played.folder / "train.py").write_text("")
    return played.on(noisy(script, run=0.02, block=block)).run(
        workload={"script": "train.py"},
        search_space={
            "precision": ["fp32", "bf16"],
            "compile": ["none", "default"],
            "freeze_gc": [False, True],
            "num_workers": [0, 1, 2],
        },
        baseline={"micro_batch": 4, "accumulation_steps": 1},
        sampler="model",
        measurement={"warmup": 20.0, "max_measure_time": 30.0, "rounds": 10, "baseline_runs": 3},
        budget={"trials": None, "wall_time": f"{wall_time}s"},
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("cold", "wall_time"),
    [
        pytest.param(60.0, 340, id="no time for the proof of what compiles"),
        pytest.param(100.0, 400, id="its check shows that there is not"),
    ],
)
def test_gain_is_proven_although_the_fastest_trial_compiles_too_long_for_its_proof(
    played: Replayed, cold: float, wall_time: int
) -> None:
    verdict = in_four_knobs(played, in_bf16(cold), wall_time)
    fastest = max(played.attempts("search"), key=lambda one: one.result.throughput or 0.0)
    assert fastest.knobs["compile"] == "default"
    assert (verdict["kind"], verdict["knobs"]["precision"]) == ("better", "bf16")
    assert played.seconds <= 1.05 * wall_time


@pytest.mark.long
def test_only_finalists_whose_finals_have_time_are_checked(played: Replayed) -> None:
    verdict = in_four_knobs(played, in_bf16(140.0), wall_time=380)
    fastest = max(played.attempts("search"), key=lambda one: one.result.throughput or 0.0)
    assert fastest.knobs["compile"] == "default"
    assert {run.knobs["compile"] for run in played.attempts("numerics")} == {"none"}
    assert (verdict["kind"], verdict["knobs"]["precision"]) == ("better", "bf16")


def compiling_before_the_first_block(launch: Launch) -> Answer:
    compiles = launch.knobs["compile"] != "none"
    speedup = 1.87 if launch.knobs["precision"] == "bf16" else 1.0
    startup = launch.draw.uniform(1.0, 2.0) + (COMPILING if compiles else 0.0)
    return Answer(rate=10.6 * speedup, startup=startup, stays=False)


@pytest.mark.long
def test_time_that_compilation_does_not_take_is_not_measured_away(played: Replayed) -> None:
    """A compiled trial that scatters would otherwise train on for as long as that was."""
    in_four_knobs(played, compiling_before_the_first_block, wall_time=400, block=0.06)
    trained: dict[str, list[float]] = {"none": [], "default": []}
    for attempt in played.attempts("search"):
        blocks = played.repository.attempts.blocks(attempt.id)
        trained[attempt.knobs["compile"]].append(sum(block.seconds for block in blocks))
    assert max(trained["default"]) <= 1.1 * max(trained["none"])
