"""Studies whose global batch is held: what is searched, said, believed and found, and free ones beside
them."""

import re
from typing import Any

import pytest

from autotune.analysis.verdict import Verdict
from autotune.views.markdown_report import report
from autotune.worker.protocol import Knobs, Outcome
from launchers.replay import Launch
from launchers.replay.behaviours import running_at
from tests.control.replayed import PLAIN, Replayed, configuration
from tests.control.shown import answered
from tests.support.behaviours import where, within_memory

FIXED = {"global_batch_size": "fixed"}
SIZES = {"micro_batch": [1, 2, 4, 8, 16, 32, 64], "accumulation_steps": [1, 2, 4, 8]}
SPACE: dict[str, Any] = {**SIZES, "log_interval": [1, 10], "bucket_cap_mb": [1, 5, 25, 100]}
BASELINE = {"micro_batch": 4, "accumulation_steps": 12}


def larger_is_better(knobs: Knobs) -> float:
    """Samples per second; even at one global batch a larger micro-batch is faster."""
    samples = knobs["micro_batch"] * knobs["accumulation_steps"]
    buckets = 0.4 if knobs["bucket_cap_mb"] == 1 else 0.1
    return 100.0 * samples / (samples + 8.0 * knobs["accumulation_steps"] + 20.0 * buckets)


LARGER = running_at(larger_is_better)


def micro_batch_of(launch: Launch) -> int:
    return int(launch.knobs["micro_batch"])


def expected(said: str) -> tuple[str, float]:
    """What the model took for the best, and the gain it expected of one more trial, in percent."""
    found = re.search(
        r"The model takes (.*) for the best.* to bring (?:less than )?([\d.]+)%", said
    )
    assert found, said
    return found[1], float(found[2])


def test_the_baselines_global_batch_is_kept_by_default(played: Replayed) -> None:
    verdict = played.on(LARGER).run(
        search_space=SIZES, baseline=BASELINE, objective={}, budget={"trials": 30}
    )
    tried = [configuration(a) for a in played.attempts("search")]
    assert set(tried) == {(48, 1), (24, 2), (16, 3), (12, 4), (8, 6), (6, 8), (4, 12), (3, 16)} | {
        (2, 24),
        (1, 48),
    }
    assert configuration(played.recorded("confirm")[0]) in tried
    assert (verdict["knobs"]["micro_batch"], verdict["knobs"]["accumulation_steps"]) == (48, 1)
    assert verdict["batch"] is None
    assert "10 configurations remain, all with your global batch of 96" in played.said()
    assert "micro_batch 32, 64 have no partner" in played.said()
    told = " ".join(answered(played, "status", played.name).split())
    assert "The global batch stays 96. What the job counts in micro-batches" in told
    assert "now means 12 times as many samples." in told


def test_large_micro_batches_and_little_accumulation_come_first(played: Replayed) -> None:
    played.on(PLAIN).run(
        search_space=SIZES,
        baseline=BASELINE,
        objective=FIXED,
        sampler="model",
        budget={"trials": 3},
    )
    first, second, third = (configuration(a) for a in played.attempts("search"))
    assert first == (4, 12)
    assert second == (16, 3), "four times the micro-batch at once"
    assert third[0] > 16


@pytest.mark.long
@pytest.mark.parametrize(
    "sampler",
    ["model", *(pytest.param(other, marks=pytest.mark.slow) for other in ("tpe", "random"))],
)
def test_a_number_is_the_baselines_in_figures(played: Replayed, sampler: str) -> None:
    played.run(
        search_space=SPACE,
        baseline=BASELINE,
        objective={"global_batch_size": 96},
        sampler=sampler,
        budget={"trials": 12, "min_improvement": 0},
    )
    assert {m * a for m, a in map(configuration, played.attempts("search"))} == {48}
    played.assert_complete(trials=12)


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_the_model_believes_in_what_may_compete(played: Replayed, seed: int) -> None:
    """Not in configurations that fail, that run out of memory, or that were tried without success."""
    limited = within_memory(LARGER, lambda knobs: knobs["micro_batch"] * 100.0, limit=2000.0)
    failing = where(
        limited, lambda launch: micro_batch_of(launch) == 12, outcome=Outcome.ERROR, cause="planted"
    )
    played.on(failing).run(
        search_space=SPACE,
        baseline=BASELINE,
        objective=FIXED,
        sampler="model",
        seed=seed,
        budget={"trials": 40, "min_improvement": 0.02},
    )
    best, gain = expected(played.said())
    assert "micro_batch=16" in best, best
    assert gain < 2.0
    assert len(played.attempts("search")) < 25


@pytest.mark.long
def test_out_of_memory_and_failed_ones_are_never_taken_for_the_best(played: Replayed) -> None:
    """All that is larger than the baseline fails."""
    failing = where(
        LARGER,
        lambda launch: micro_batch_of(launch) > 4,
        outcome=Outcome.ERROR,
        cause="planted",
    )
    played.on(failing).run(
        search_space=SPACE,
        baseline=BASELINE,
        objective=FIXED,
        sampler="model",
        budget={"trials": 20},
    )
    best, _ = expected(played.said())
    assert "micro_batch" not in best or int(re.findall(r"micro_batch=(\d+)", best)[0]) < 4


def test_the_largest_batch_is_a_split(played: Replayed) -> None:
    limited = within_memory(PLAIN, lambda knobs: knobs["micro_batch"] * 100.0, limit=2000.0)
    resources = {"workers": 2, "memory_per_worker": "1GiB"}
    verdict = played.on(limited).run(
        search_space={"micro_batch": ["max"]},
        baseline=BASELINE,
        objective=FIXED,
        resources=resources,
        budget={"trials": 20},
    )
    assert [a.result.state for a in played.attempts("fit")][:4] == ["COMPLETE"] * 3 + ["OOM"]
    assert "max is taken to be 16" in played.said()
    assert verdict["knobs"]["micro_batch"] == 16
    assert {configuration(a) for a in played.attempts("search")} == {
        *((4, 12), (6, 8), (8, 6), (12, 4), (16, 3))
    }


def test_the_largest_batch_is_the_whole_step_if_that_fits(played: Replayed) -> None:
    resources = {"workers": 2, "memory_per_worker": "1GiB"}
    played.on(PLAIN).run(
        search_space={"micro_batch": ["max"]},
        baseline=BASELINE,
        objective=FIXED,
        resources=resources,
        budget={"trials": 2},
    )
    assert "max is taken to be 48" in played.said()
    assert [configuration(a) for a in played.attempts("fit")][-1] == (48, 1)


def test_with_neither_knob_the_global_batch_stays_anyway(played: Replayed) -> None:
    played.run(search_space={"bucket_cap_mb": [1, 25]}, baseline=BASELINE, objective=FIXED)
    assert {configuration(a) for a in played.attempts("search")} == {(4, 12)}
    assert "2 configurations remain" in played.said()


@pytest.mark.long
def test_a_free_study_also_tells_the_best_at_the_users_global_batch(played: Replayed) -> None:
    """The finalists alone would all have larger ones."""
    verdict = played.on(LARGER).run(
        search_space={"micro_batch": [2, 4, 8, 16, 32], "accumulation_steps": [1, 2, 4]},
        baseline={"micro_batch": 4, "accumulation_steps": 4},
        objective={"global_batch_size": "free"},
        budget={"trials": 40},
    )
    assert (verdict["knobs"]["micro_batch"], verdict["knobs"]["accumulation_steps"]) == (32, 4)
    confirmed = {configuration(a) for a in played.recorded("confirm")}
    assert (16, 1) in confirmed
    own = larger_is_better({**verdict["knobs"], "micro_batch": 16, "accumulation_steps": 1})
    baseline = larger_is_better({**verdict["knobs"], "micro_batch": 4, "accumulation_steps": 4})
    batch = verdict["batch"]
    assert (batch["before"], batch["after"]) == (32, 256)
    assert batch["best_gain"]["value"] == pytest.approx(own / baseline, abs=0.005)
    best = batch["best_knobs"]
    assert (best["micro_batch"], best["accumulation_steps"]) == (16, 1)
    text = report(played.repository, "played", Verdict.from_dict(verdict))
    table = text[text.index("### Best per global batch") :].splitlines()
    rows = [line.split(" | ")[0] for line in table[4:11]]
    assert rows == ["| 4", "| 8", "| 16", "| 32 (yours)", "| 64", "| 128", "| 256"]
    assert f"{own / baseline:.2f}x " in table[7]
    assert "seen once" in table[4]


def test_a_study_that_keeps_its_global_batch_has_no_such_table(played: Replayed) -> None:
    verdict = played.on(LARGER).run(search_space=SIZES, baseline=BASELINE, objective=FIXED)
    assert "per global batch" not in report(played.repository, "played", Verdict.from_dict(verdict))
