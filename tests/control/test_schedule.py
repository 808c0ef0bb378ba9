"""Studies whose steps take seconds, in virtual time: the wall time is a limit, and the end is honest."""

import itertools

import pytest

from launchers.behaviours import noisy, running_at, where
from tests.control.replayed import Replayed

SPACE = {"micro_batch": [4, 8, 16], "bucket_cap_mb": [5, 25, 100], "log_interval": [1, 10]}
BASELINE = {"micro_batch": 8}
USUAL = {"block_seconds": 1.0, "min_steps": 5, "warmup": 20.0, "longest": 30.0, "baseline_runs": 3}


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
    measurement = {**USUAL, "rounds": 5, "attribution": 3, **changes.pop("measurement", {})}
    given = {"search_space": SPACE, "baseline": BASELINE, "sampler": "model", **changes}
    budget = {"trials": None, "wall_time": wall_time}
    return played.run(measurement=measurement, budget=budget, **given)


@pytest.mark.parametrize(
    ("step", "budget"), list(itertools.product([0.05, 1.0, 3.0, 5.0], [60, 120, 300]))
)
def test_the_wall_time_is_kept_and_the_end_is_a_verdict(played: Replayed, step, budget) -> None:
    played.on(noisy(with_steps_of(step), run=0.02, block=0.02))
    verdict = run(played, f"{budget}s")
    assert played.seconds <= max(1.1 * budget, budget + step)
    attempts = played.attempts()
    assert {a.purpose for a in attempts} >= {"search"}
    assert len(played.attempts("search")) > 1, "there is something to compare the baseline with"
    if verdict["kind"] in ("undecided", "not_enough_time"):
        assert "s more would do" in verdict["sentence"]
        assert verdict["missing_seconds"] > 0
    else:
        assert verdict["kind"] == "better"
        assert verdict["speedup"]["low"] > 1.1
    played.assert_complete()
