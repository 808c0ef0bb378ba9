"""Studies whose steps take seconds, in virtual time: the wall time is a limit, and the end is honest."""

import itertools

import pytest

from autotune.analysis.verdict import Verdict
from autotune.service.follow import block_of
from autotune.views import markdown_report
from autotune.views.overview import describe, status_of
from autotune.views.progress import ProgressLines
from launchers.replay import Launch
from launchers.replay.behaviours import noisy, running_at
from storage import LeaseHolder
from tests.control.replayed import Replayed
from tests.support.behaviours import where

SPACE = {"micro_batch": [4, 8, 16], "bucket_cap_mb": [5, 25, 100], "log_interval": [1, 10]}
BASELINE = {"micro_batch": 8}
USUAL = {
    "block_seconds": 1.0,
    "min_steps": 5,
    "warmup": 20.0,
    "max_measure_time": 30.0,
    "baseline_runs": 3,
}


def with_steps_of(seconds: float, startup: float = 2.0):
    """The baseline's step takes so long; a larger micro-batch is faster, a rare log as well."""

    def rate(knobs):
        samples = 2 * knobs["micro_batch"]
        fixed, each = 0.4 * seconds, 0.6 * seconds / 16
        return samples / (
            fixed + each * samples + (0.02 * seconds if knobs["log_interval"] == 1 else 0)
        )

    return where(running_at(rate), lambda _: True, startup=startup)


def run(played: Replayed, wall_time: str, **changes):
    measurement = {**USUAL, "rounds": 5, "ablation_rounds": 3, **changes.pop("measurement", {})}
    given = {"search_space": SPACE, "baseline": BASELINE, "sampler": "model", **changes}
    budget = {"trials": None, "wall_time": wall_time}
    return played.run(measurement=measurement, budget=budget, **given)


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "budget"),
    [
        *itertools.product([0.05, 5.0], [60, 300]),
        *(
            pytest.param(step, budget, marks=pytest.mark.slow)
            for step, budget in itertools.product([0.05, 1.0, 3.0, 5.0], [60, 120, 300])
            if step not in (0.05, 5.0) or budget == 120
        ),
    ],
)
def test_the_wall_time_is_kept_and_the_end_is_a_verdict(played: Replayed, step, budget) -> None:
    played.on(noisy(with_steps_of(step), run=0.02, block=0.02))
    verdict = run(played, f"{budget}s")
    assert played.seconds <= max(1.1 * budget, budget + step)
    attempts = played.attempts()
    assert {a.purpose for a in attempts} >= {"search"}
    assert len(played.attempts("search")) > 1, "there is something to compare the baseline with"
    if verdict["kind"] in ("undecided", "not_enough_time"):
        assert verdict["missing_seconds"] > 0
    else:
        assert verdict["kind"] == "better"
        assert verdict["speedup"]["low"] > 1
        assert verdict["knobs"]["micro_batch"] > 8 or verdict["knobs"]["log_interval"] > 1
    played.assert_complete()


@pytest.mark.long
@pytest.mark.parametrize(("budget", "seed"), [(300, 6), (300, 7), (200, 2), (200, 12)])
def test_the_search_leaves_time_for_rounds(played: Replayed, budget, seed) -> None:
    """Where a finalist more, for the sake of the global batch, or a check that took a second longer than
    planned had left none."""
    gain = 0.95 if budget == 300 else 1.4

    def rate(knobs):
        each = 0.7 / 4 * (1.1 if knobs["micro_batch"] == 1 else 1.0)
        return (gain if knobs["precision"] == "bf16" else 1.0) / each

    every = where(running_at(rate), _all, startup=2.0)
    played.on(noisy(every, run=0.08, block=0.05), seed=seed)
    space = {
        "micro_batch": [1, 2, 4, 8],
        "precision": ["fp32", "bf16"],
        "gradient_as_bucket_view": [False, True],
    }
    baseline = {"micro_batch": 2, "accumulation_steps": 1}
    measurement = {"rounds": 7, "finalists": 3}
    verdict = run(
        played,
        f"{budget}s",
        search_space=space,
        baseline=baseline,
        seed=seed,
        measurement=measurement,
    )
    assert played.seconds <= 1.1 * budget
    assert verdict["rounds"] >= 3, verdict


def test_a_check_that_takes_too_long_leaves_its_finalist_out(played: Replayed) -> None:
    """Thirty-two steps of three seconds are more than all the time there is."""
    space = {"micro_batch": [4, 8], "precision": ["fp32", "bf16"]}

    def in_bf16(launch: Launch) -> bool:
        return bool(launch.knobs["precision"] == "bf16")

    played.on(where(with_steps_of(3.0), in_bf16, rate=9.0))
    verdict = run(played, "140s", search_space=space)
    assert played.seconds <= 1.1 * 140
    assert played.attempts("numerics") == []
    confirmed = [a.knobs["precision"] for a in played.attempts("confirm")]
    assert "bf16" not in confirmed
    assert "bf16" not in str(verdict["knobs"])


def test_long_steps_keep_the_longest_timing_without_a_wall_time(played: Replayed) -> None:
    played.on(with_steps_of(3.0))
    measurement = {**USUAL, "max_measure_time": 3.0, "baseline_runs": 1, "ablation_rounds": 0}
    played.run(measurement=measurement, budget={"trials": 3}, search_space=SPACE, baseline=BASELINE)
    for trial in played.recorded("search"):
        step = 16 / trial.result.throughput * trial.knobs["micro_batch"] / 8
        assert trial.result.wall_seconds <= 2.0 + 3.0 + 3.3 + 2 * step


@pytest.mark.parametrize(("wall_time", "startup"), [("2s", 2.0), ("10s", 6.0)])
def test_wall_time_below_one_launch_ends_the_search_with_the_baseline(
    played: Replayed, wall_time, startup
) -> None:
    played.on(with_steps_of(0.5, startup))
    verdict = run(played, wall_time)
    assert verdict["kind"] == "not_enough_time"
    trials = played.recorded("search")
    assert [trial.trial for trial in trials] == [0]
    assert trials[0].result.wall_seconds > 0
    told = block_of(played.repository, played.study(), played.folder / "best.yaml")
    assert "best.yaml is not written, as nothing is recommended: start your job as before" in told
    assert not (played.folder / "best.yaml").exists()


def test_trials_that_are_surely_slower_than_the_best_get_no_rounds(played: Replayed) -> None:
    def rate(knobs):
        return {16: 245.0, 8: 174.0, 2: 137.0, 1: 109.0}[knobs["micro_batch"]]

    played.on(noisy(where(running_at(rate), _all, startup=1.0), run=0.03, block=0.03))
    run(played, "150s", search_space={"micro_batch": [1, 2, 8, 16]}, measurement={"finalists": 3})
    assert {a.knobs["micro_batch"] for a in played.attempts("search")} == {1, 2, 8, 16}
    assert {a.knobs["micro_batch"] for a in played.attempts("confirm")} == {8, 16}


def test_an_obvious_loser_ends_after_a_step_or_two(played: Replayed) -> None:
    def in_fp16(launch: Launch) -> bool:
        return bool(launch.knobs["precision"] == "fp16")

    space = {"micro_batch": [4, 8], "precision": ["fp32", "fp16"]}
    usual = noisy(with_steps_of(1.0), block=0.03)
    played.on(where(usual, in_fp16, rate=1.3))  # 0.08x
    played.run(
        measurement={**USUAL, "baseline_runs": 1},
        budget={"trials": 4},
        search_space=space,
        baseline=BASELINE,
    )
    losers = [a for a in played.recorded("search") if a.knobs["precision"] == "fp16"]
    assert [a.result.state for a in losers] == ["PRUNED"] * 2
    blocks = [played.repository.attempts.blocks(a.id) for a in losers]
    assert all(sum(block.steps for block in several) <= 2 for several in blocks)
    shown = markdown_report.report(
        played.repository, played.name, Verdict.from_dict(played.verdict)
    )
    assert "- Ended early: 3 trials, which saved" in shown


def test_nothing_is_said_to_be_saved_where_nothing_was(played: Replayed) -> None:
    quick = noisy(where(running_at(lambda knobs: 50.0 / knobs["log_interval"]), _all), block=0.03)
    space = {"log_interval": [1, 10], "micro_batch": [8]}
    played.on(quick)
    played.run(
        budget={"trials": 2},
        search_space=space,
        baseline={"micro_batch": 8, "log_interval": 1},
        measurement={"warmup": 1.0, "max_measure_time": 1.0, "block_seconds": 0.1},
    )
    shown = markdown_report.report(
        played.repository, played.name, Verdict.from_dict(played.verdict)
    )
    assert "saved 0" not in shown


def test_a_missing_ablation_says_why_and_what_it_takes(played: Replayed) -> None:
    verdict = played.on(with_steps_of(1.0)).run(
        measurement={**USUAL, "rounds": 3, "ablation_rounds": 3},
        budget={"trials": None, "wall_time": "75s"},
        search_space=SPACE,
        baseline=BASELINE,
    )
    assert verdict["kind"] == "better"
    assert played.attempts("ablation") == []
    shown = markdown_report.report(played.repository, played.name, Verdict.from_dict(verdict))
    assert "Not measured: the time was over. 3 rounds of" in shown


def test_what_runs_and_what_comes_next_is_told_while_it_runs(played: Replayed) -> None:
    seen = []

    def looked_at(launch: Launch) -> bool:
        seen.append((launch.request.trial, status_of(played.repository, played.name)))
        return False

    played.on(where(with_steps_of(1.0), looked_at))
    played.run(
        measurement={**USUAL, "rounds": 3, "ablation_rounds": 1},
        budget={"trials": 5, "wall_time": "20m"},
        search_space=SPACE,
        baseline=BASELINE,
    )
    texts = {name.split("-")[1]: describe(status) for name, status in seen}
    assert "next      the baseline's own trial, then the search" in describe(seen[0][1])
    assert "next      the verdict" in texts["profile"], "of the winner"
    assert "searching, trial" in texts["search"]
    assert "of 20 min" in texts["search"]
    assert "device hours" in texts["search"]
    assert "numerics and confirmation, about" in texts["search"]
    assert "confirming, round 3, trial" in texts["confirm3"]
    assert "up to 3 more rounds" in texts["confirm3"], "of the chosen one alone"
    assert "next      the verdict" in texts["confirm6"]
    assert "measuring what each knob brings, round 1" in texts["ablation1"]
    first = seen[1][1]
    assert (first["trials"], first["budget"]["trials"]) == (0, 5)
    ended = describe(status_of(played.repository, played.name))
    assert "next" not in ended


def _all(_: Launch) -> bool:
    return True


def test_headline_says_what_goes_on_before_the_first_run(played: Replayed) -> None:
    played.submit(budget={"trials": 1}, search_space=SPACE, baseline=BASELINE)
    study = played.repository.studies.named(played.name)
    lines = ProgressLines(played.repository, study)
    assert "; queued; next: " in lines.headline()
    played.repository.claims.take(study.queue, LeaseHolder("here", 1, 60.0))
    assert "; starting the processes of the trials; next: " in lines.headline()


def test_looking_for_the_largest_micro_batch_keeps_the_wall_time_too(played: Replayed) -> None:
    """A sample takes a second and a half: a run of the sixteenth doubling would take days."""
    played.on(where(running_at(lambda _: 0.7), _all, startup=2.0))
    memory = {"memory_per_worker": "4GiB", "workers": 2}
    space = {"micro_batch": ["max"], "bucket_cap_mb": [5, 25]}
    run(
        played,
        "120s",
        search_space=space,
        baseline={"micro_batch": 1},
        resources=memory,
    )
    fits = played.attempts("fit")
    assert fits
    assert sum(a.result.wall_seconds for a in fits) <= 0.4 * 120
    states = [str(attempt.result.state) for attempt in fits]
    assert states == ["COMPLETE"] * (len(fits) - 1) + ["PRUNED"], "what was cut off has not fitted"
    assert played.recorded("search")[-1].knobs["micro_batch"] <= fits[-2].knobs["micro_batch"]
    assert played.seconds <= 1.1 * 120
