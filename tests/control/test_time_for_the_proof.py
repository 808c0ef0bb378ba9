"""Studies of a script whose start takes 6 to 15 s, in virtual time: the proof has its time, and what is
asked for is enough."""

import statistics
from typing import Any

import pytest
from sqlalchemy import update

from autotune.analysis.policy import PROOF
from autotune.analysis.wording import duration
from autotune.study.policy import STUDY
from autotune.worker.protocol import Outcome
from launchers.replay import Answer, Behaviour, Launch, SpeedVariation
from launchers.replay.behaviours import noisy, running_at
from storage.models import StudyRow
from tests.control.replayed import Replayed
from tests.support.behaviours import where

SPACE: dict[str, Any] = {
    "micro_batch": [2, 4, 8],
    "accumulation_steps": [1, 2, 4],
    "num_workers": [0, 1],
}
BASELINE = {"micro_batch": 2, "accumulation_steps": 4, "num_workers": 0}
WORKLOAD = {
    "script": "train.py",
    "args": ["--batch", "2", "--accumulate", "4"],
    "flags": {"micro_batch": "--batch", "accumulation_steps": "--accumulate"},
}
FASTER = {2: 1.0, 4: 1.3, 8: 1.5}
"""Speed-up over the baseline, by micro-batch."""
OF_LOADER = {"num_workers": [0, 1, 2, 4, 8]}
OF_PRECISION = {
    "precision": ["fp32", "bf16"],
    "num_workers": [0, 1, 2, 4],
    "freeze_gc": [False, True],
}
SHORTEST_START, LONGEST_START = 6.0, 15.0


def of_script(launch: Launch) -> Answer:
    startup = launch.draw.uniform(SHORTEST_START, LONGEST_START)
    return Answer(rate=40.0 * FASTER[launch.knobs["micro_batch"]], startup=startup, stays=False)


SCRIPT = noisy(of_script, run=0.02, block=0.03)


def run(
    played: Replayed,
    wall_time: float,
    *,
    rounds: int = 10,
    baseline_runs: int = 3,
    **changes: Any,
) -> dict[str, Any]:
    (played.folder / "train.py").write_text("")
    given = {"search_space": SPACE, "baseline": BASELINE, "sampler": "model", **changes}
    measurement = {"warmup": 20.0, "max_measure_time": 30.0, "rounds": rounds}
    return played.run(
        workload=WORKLOAD,
        objective={"global_batch_size": "fixed"},
        measurement={
            **measurement,
            "baseline_runs": baseline_runs,
            "finalists": 3,
            "ablation_rounds": 3,
        },
        budget={"trials": None, "wall_time": f"{wall_time}s"},
        **given,
    )


def go_on(played: Replayed, wall_time: float, **changes: Any) -> dict[str, Any]:
    """The same study with more time; what it took so far, on the launcher's clock, is spent."""
    with played.repository.database.engine.begin() as connection:
        connection.execute(update(StudyRow).values(elapsed=played.seconds))
    return run(played, wall_time, **changes)


def cut_in_proof(played: Replayed) -> list[str]:
    """Runs of the proof that were ended before they showed anything."""
    return [a.name for a in played.recorded("confirm") if a.result.throughput is None]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("wall_time", [170, 220, 290])
def test_search_of_slowly_starting_script_leaves_time_for_the_proof(
    played: Replayed, wall_time: int, seed: int
) -> None:
    verdict = run(played.on(SCRIPT, seed=seed), wall_time)
    assert (verdict["kind"], verdict["knobs"]["micro_batch"] > 2) == ("better", True)
    assert verdict["rounds"] >= 3
    assert cut_in_proof(played) == []
    assert played.seconds <= 1.05 * wall_time


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_study_without_time_for_the_proof_ends_as_soon_as_it_has_a_rival(
    played: Replayed, seed: int
) -> None:
    verdict = run(played.on(SCRIPT, seed=seed), 80)
    assert verdict["kind"] == "not_enough_time"
    assert played.attempts("confirm") == []
    assert played.states().count("COMPLETE") >= 2
    assert played.seconds < 50
    assert verdict["missing_seconds"] > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_time_that_is_asked_for_goes_to_the_proof_and_is_enough(
    played: Replayed, seed: int
) -> None:
    asked = run(played.on(SCRIPT, seed=seed), 100)["missing_seconds"]
    verdict = go_on(played, 100 + asked)
    assert verdict["rounds"] >= 3
    assert verdict["kind"] in ("better", "undecided")
    assert cut_in_proof(played) == []
    assert played.attempts("calibrate") == []


@pytest.mark.long
def test_rounds_that_had_begun_go_on_before_anything_else(played: Replayed) -> None:
    """Their study was undecided: it asks for time, and with that it decides."""
    unsteady = noisy(of_script, run=0.16, block=0.03)
    verdict = run(played.on(unsteady, seed=6), 220)
    assert verdict["kind"] == "undecided"
    before = len(played.attempts("search"))
    rounds = len({a.round for a in played.recorded("confirm")})
    verdict = go_on(played, 220 + verdict["missing_seconds"])
    assert len(played.attempts("search")) == before
    assert len({a.round for a in played.recorded("confirm")}) > rounds
    assert verdict["kind"] == "better"


@pytest.mark.long
def test_baseline_that_was_cut_before_its_first_step_runs_once_there_is_time(
    played: Replayed,
) -> None:
    slow = where(SCRIPT, lambda _: True, startup=70.0)
    verdict = run(played.on(slow, seed=1), 60)
    assert verdict["kind"] == "not_enough_time"
    verdict = go_on(played, 3000)
    assert verdict["kind"] == "better"
    assert verdict["speedup"]["value"] == pytest.approx(1.5, rel=0.05)


@pytest.mark.long
def test_search_goes_on_where_the_proof_that_comes_first_decides_nothing(played: Replayed) -> None:
    def alike(launch: Launch) -> Answer:
        return Answer(rate=40.0, startup=6.0, stays=False)

    space = {**SPACE, **OF_LOADER}
    unsteady = noisy(alike, run=0.1, block=0.05)
    verdict = run(played.on(unsteady, seed=1), 150, search_space=space)
    assert verdict["kind"] == "undecided"
    before = len(played.attempts("search"))
    go_on(played, 3000, search_space=space)
    assert "The proof that had begun is brought to its end first." in played.said()
    assert len(played.attempts("search")) > before


def test_no_time_is_asked_for_where_none_would_help(played: Replayed) -> None:
    """All that is faster computes in bf16, and the reference to check it with fails."""

    def checks(launch: Launch) -> bool:
        return bool(launch.request.trajectory)

    def behaviour(launch: Launch) -> Answer:
        startup = launch.draw.uniform(SHORTEST_START, LONGEST_START)
        faster = 1.5 if launch.knobs["precision"] == "bf16" else 1.0
        return Answer(rate=40.0 * faster, startup=startup, stays=False)

    failing = where(behaviour, checks, outcome=Outcome.ERROR, cause="rank 0: no reference")
    space = {"precision": ["fp32", "bf16"]}
    verdict = run(played.on(failing), 300, search_space=space)
    assert played.states("reference") == ["ERROR", "ERROR"], "a failure is repeated once"
    assert verdict["kind"] != "better"
    assert verdict["missing_seconds"] is None


@pytest.mark.parametrize("wall_time", [40, 50])
def test_finalist_without_time_for_its_check_asks_for_time_and_then_is_proven(
    played: Replayed, wall_time: int
) -> None:
    """The baseline is not measured alone meanwhile."""

    def behaviour(launch: Launch) -> Answer:
        faster = 1.5 if launch.knobs["precision"] == "bf16" else 1.0
        return Answer(rate=40.0 * faster, startup=2.0, stays=False)

    space = {"precision": ["fp32", "bf16"]}
    played.on(noisy(behaviour, run=0.02, block=0.03), seed=1)
    verdict = run(played, wall_time, rounds=4, search_space=space)
    assert played.attempts("confirm") == []
    assert verdict["kind"] == "not_enough_time"
    asked = verdict["missing_seconds"]
    verdict = go_on(played, wall_time + asked, rounds=4, search_space=space)
    assert played.states("numerics") == ["COMPLETE"]
    assert (verdict["kind"], verdict["knobs"]["precision"]) == ("better", "bf16")


@pytest.mark.parametrize(("cut", "slower"), [("reference", 12.0), ("numerics", 16.0)])
def test_check_that_its_time_has_ended_is_made_again_once_there_is_more(
    played: Replayed, cut: str, slower: float
) -> None:
    """It takes far longer than its price, and says nothing about the finalist that it checks."""

    def slowly(launch: Launch) -> bool:
        return f"-{cut}" in launch.request.trial

    def behaviour(launch: Launch) -> Answer:
        faster = 1.5 if launch.knobs["precision"] == "bf16" else 1.0
        rate = 40.0 * faster / (slower if slowly(launch) else 1.0)
        return Answer(rate=rate, startup=2.0, stays=False)

    space = {"precision": ["fp32", "bf16"]}
    played.on(noisy(behaviour, run=0.02, block=0.03), seed=1)
    verdict = run(played, 120, rounds=4, search_space=space)
    assert played.states(cut) == ["PRUNED"]
    assert (verdict["kind"], verdict["refused"]) == ("not_enough_time", [])
    verdict = go_on(played, 120 + verdict["missing_seconds"], rounds=4, search_space=space)
    assert played.states(cut) == ["PRUNED", "COMPLETE"]
    assert (verdict["kind"], verdict["knobs"]["precision"]) == ("better", "bf16")


@pytest.mark.parametrize("seed", range(2))
def test_no_round_begins_after_the_wall_time_once_a_gain_is_proven(
    played: Replayed, seed: int
) -> None:
    """There is time for runs then that are too short to tell anything."""
    quick = noisy(
        running_at(lambda knobs: 40.0 * FASTER[knobs["micro_batch"]]), run=0.02, block=0.1
    )
    verdict = run(played.on(quick, seed=seed), 120, rounds=40)
    assert verdict["rounds"] > PROOF.fewest_rounds
    last = max(one.round for one in played.attempts("confirm"))
    lasted = sum(o.result.wall_seconds for o in played.attempts("confirm") if o.round == last)
    assert played.seconds - lasted <= 120


def test_rounds_of_restless_machine_take_turns_where_what_else_is_needed_has_time(
    played: Replayed,
) -> None:
    """Its share of the time for such a round would be too short."""
    verdict = run(played.on(SCRIPT, variation=SpeedVariation(0.2)), 200)
    runs = played.attempts("confirm")
    blocks = [block for run in runs for block in played.repository.attempts.blocks(run.id)]
    assert all("turn" in block.observed for block in blocks if block.kept)
    assert (verdict["kind"], verdict["rounds"] >= PROOF.fewest_rounds) == ("better", True)
    assert played.seconds <= 1.05 * 200


def test_members_of_a_round_have_its_seed_and_rounds_have_different_ones(
    played: Replayed,
) -> None:
    seeds: dict[int, set[int]] = {}

    def noted(launch: Launch) -> Answer:
        _, found, rest = launch.request.trial.partition("-confirm")
        if found:
            number = int(rest.partition("-")[0])
            seeds.setdefault(number, set()).add(launch.request.seed)
        return of_script(launch)

    run(played.on(noisy(noted, run=0.02, block=0.03)), 220)
    drawn = list(seeds.values())
    assert len(drawn) >= PROOF.fewest_rounds
    assert all(len(of_round) == 1 for of_round in drawn)
    assert len(set.union(*drawn)) == len(drawn)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.long
def test_at_most_the_last_round_is_much_shorter_than_those_before(
    played: Replayed, seed: int
) -> None:
    def quick(launch: Launch) -> Answer:
        return Answer(rate=400.0, startup=launch.draw.uniform(1.0, 2.0), stays=False)

    restless = noisy(quick, run=0.02, block=0.08)
    run(played.on(restless, seed=seed, variation=SpeedVariation(0.3, 5.0)), 240)
    seconds = seconds_by_round(played)
    usual = statistics.median(seconds[number] for number in (1, 2, 3))
    assert len(seconds) > 3
    short = [number for number, each in seconds.items() if each < 0.75 * usual]
    assert short in ([], [max(seconds)])


def seconds_by_round(played: Replayed) -> dict[int, float]:
    """Return the mean seconds of a run in each round."""
    seconds: dict[int, list[float]] = {}
    for one in played.recorded("confirm"):
        seconds.setdefault(one.round, []).append(one.result.wall_seconds)
    return {number: statistics.mean(runs) for number, runs in seconds.items()}


@pytest.mark.parametrize(("wall_time", "seed"), [(100, 0), (120, 1)])
def test_fresh_rounds_are_not_much_shorter_than_those_that_chose(
    played: Replayed, wall_time: int, seed: int
) -> None:
    """Rounds of a step or two would make the gain doubtful that the others have shown."""
    faster = {2: 1.0, 4: 1.15, 8: 1.17}

    def quick(launch: Launch) -> Answer:
        rate = 1500.0 * faster[launch.knobs["micro_batch"]]
        return Answer(rate=rate, startup=launch.draw.uniform(0.4, 0.7), stays=False)

    restless = noisy(quick, run=0.03, block=0.1)
    found = run(played.on(restless, seed=seed, variation=SpeedVariation(0.15, 5.0)), wall_time)
    seconds = seconds_by_round(played)
    assert found["kind"] == "better"
    assert min(seconds.values()) >= STUDY.least_further * statistics.median(seconds.values())


@pytest.mark.parametrize("wall_time", [170, 190])
def test_search_leaves_time_for_another_seed_where_a_gain_is_beyond_doubt(
    played: Replayed, wall_time: int
) -> None:
    """The loss lies so far from its reference that the first seed does not tell."""

    def behaviour(launch: Launch) -> Answer:
        half, second = launch.knobs["precision"] == "bf16", "-numerics1-" in launch.request.trial
        loss = 1.0 + half * (0.0102 if second else 0.01)
        return Answer(rate=80.0 if half else 40.0, startup=3.0, stays=False, loss=loss)

    played.on(noisy(behaviour, run=0.02, block=0.03), seed=1)
    verdict = run(played, wall_time, search_space=OF_PRECISION)
    assert [a.seed for a in played.recorded("numerics")] == [0, 1]
    assert (verdict["kind"], verdict["knobs"]["precision"]) == ("better", "bf16")


@pytest.mark.parametrize("wall_time", [160, 200])
@pytest.mark.long
def test_second_finalist_is_not_checked_in_the_time_of_the_rounds_of_the_first(
    played: Replayed, wall_time: int
) -> None:
    def behaviour(launch: Launch) -> Answer:
        half, second = launch.knobs["precision"] == "bf16", "-numerics1-" in launch.request.trial
        faster = 2.0 + 0.01 * launch.knobs["num_workers"] if half else 1.0
        loss = 1.0 + half * (0.0102 if second else 0.01)
        return Answer(rate=45.0 * faster, startup=0.7, stays=False, loss=loss)

    played.on(noisy(behaviour, run=0.02, block=0.03), seed=2)
    assert run(played, wall_time, search_space=OF_PRECISION)["kind"] == "better"
    assert [a.seed for a in played.recorded("numerics")] == [0, 1]


def test_search_goes_on_where_checks_with_another_seed_would_take_much_of_the_time(
    played: Replayed,
) -> None:
    def slow(launch: Launch) -> Answer:
        half = launch.knobs["precision"] == "bf16"
        return Answer(rate=10.0 if half else 5.0, startup=3.0, stays=False, loss=1.0)

    played.on(noisy(slow, run=0.02, block=0.03), seed=1)
    assert run(played, 400, search_space=OF_PRECISION)["kind"] == "better"
    assert len(played.attempts("search")) > 4


@pytest.mark.long
def test_time_that_a_proof_leaves_is_told_and_searched_once_it_is_raised_again(
    played: Replayed,
) -> None:
    unsteady, space = noisy(of_script, run=0.25, block=0.03), {**SPACE, **OF_LOADER}
    assert run(played.on(unsteady, seed=1), 220, search_space=space)["kind"] == "undecided"
    before, spent = len(played.attempts("search")), played.seconds
    assert go_on(played, 10_000, search_space=space)["kind"] == "better"
    assert len(played.attempts("search")) == before
    left = duration(10_000 - spent - played.seconds)
    told = f"{left} of the wall time are not used. To search on, raise budget.wall_time"
    assert told in played.said()
    go_on(played, 10_001, search_space=space)
    assert len(played.attempts("search")) > before


def disturbed_at_first() -> Behaviour:
    """Return a script whose first run others made ten times as slow, in its launch and its steps."""
    seen: list[Launch] = []

    def first_timed(launch: Launch) -> bool:
        seen.append(launch)
        return len(seen) == 2  # the first one is the profile

    return where(SCRIPT, first_timed, rate=1.5, startup=15.0, foreign_cpu=0.6)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_baseline_whose_disturbed_run_leaves_no_time_runs_again(
    played: Replayed, seed: int
) -> None:
    verdict = run(played.on(disturbed_at_first(), seed=seed), 220)
    assert played.attempts("calibrate")
    assert verdict["kind"] == "better"
    assert played.seconds > 150


def test_baseline_that_is_to_run_once_does_not_run_again_after_a_disturbed_run(
    played: Replayed,
) -> None:
    run(played.on(disturbed_at_first()), 220, baseline_runs=1)
    assert played.attempts("calibrate") == []


def test_baseline_whose_undisturbed_run_leaves_no_time_does_not_run_again(
    played: Replayed,
) -> None:
    verdict = run(played.on(SCRIPT, seed=0), 100)
    assert verdict["kind"] == "not_enough_time"
    assert played.attempts("calibrate") == []
