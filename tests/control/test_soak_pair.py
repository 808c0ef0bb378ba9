"""What was chosen and the baseline run once for minutes, where a study has room: devices grow hot."""

import json

import pytest

from autotune.analysis.verdict import Verdict
from autotune.views.recompute import recomputed_verdict
from autotune.worker.protocol import Outcome
from launchers.replay import Behaviour, Launch
from launchers.replay.behaviours import noisy, running_at
from tests.control.replayed import PLAIN, Replayed
from tests.support.behaviours import where

SPACE = {"micro_batch": [1, 2, 4]}
CALM = noisy(PLAIN, run=0.003, block=0.005)


def studied(played: Replayed, behaviour: Behaviour, wall_time: str = "2h") -> dict:
    """Of a study that has taken ten minutes by then, most of which its launches take to start."""
    slow = where(behaviour, lambda _: True, startup=60.0)
    return played.on(slow).run(
        search_space=SPACE,
        budget={"trials": 3, "wall_time": wall_time},
        measurement={"max_measure_time": 20.0, "baseline_runs": 3},
    )


def hot(share: float) -> Behaviour:
    return where(CALM, lambda launch: launch.knobs["micro_batch"] == 4, slows=share)


def test_a_speed_up_that_stays_is_told_with_its_shift(played: Replayed) -> None:
    verdict = studied(played, CALM)
    runs = played.recorded("soak")
    assert {run.knobs["micro_batch"] for run in runs} == {2, 4}
    assert all(120 <= run.result.wall_seconds <= 720 for run in runs)
    assert verdict["soak"]["ratio"]["value"] == pytest.approx(1.5, abs=0.1)
    assert verdict["soak"]["shift"]["low"] < 1 < verdict["soak"]["shift"]["high"]
    again = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(again.as_dict())) == verdict


@pytest.mark.long
@pytest.mark.parametrize("share", [0.25, 0.6])
def test_speed_up_that_shrinks_over_minutes_is_told_beside_the_rounds(
    played: Replayed, share: float
) -> None:
    verdict = studied(played, hot(share))
    found = Verdict.from_dict(verdict)
    assert (found.kind, found.knobs["micro_batch"] if found.knobs else 0) == ("better", 4)
    assert found.soak is not None
    assert found.soak.contradicts
    assert found.speedup is not None
    assert found.soak.ratio.high < found.speedup.low, "the rounds' own figure stays"
    again = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(again.as_dict())) == verdict


def test_one_that_fails_after_minutes_is_told(played: Replayed) -> None:
    def for_minutes(launch: Launch) -> bool:
        return "-soak" in launch.request.trial and launch.knobs["micro_batch"] == 4

    leaking = where(CALM, for_minutes, outcome=Outcome.OOM, cause="rank 0: no memory", after=50)
    verdict = studied(played, leaking)
    failure = verdict["soak_failure"]
    assert (failure["state"], failure["cause"]) == ("OOM", "rank 0: no memory")
    again = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(again.as_dict())) == verdict


def test_one_that_fails_once_is_repeated(played: Replayed) -> None:
    seen: list[Launch] = []

    def first(launch: Launch) -> bool:
        seen.extend([launch] if "-soak" in launch.request.trial else [])
        return "-soak" in launch.request.trial and len(seen) == 1

    broken = where(CALM, first, outcome=Outcome.ERROR, cause="connection reset", after=20)
    verdict = studied(played, broken)
    assert sorted(played.states("soak")) == ["COMPLETE", "COMPLETE", "ERROR"]
    assert (verdict["soak"] is None, verdict["soak_failure"]) == (False, None)


def test_both_are_measured_anew_once_the_search_has_gone_on(played: Replayed) -> None:
    """The machine is slower by then, and another configuration wins."""
    gains = {2: 1.0, 8: 1.3, 4: 2.5}

    def study(share: float, trials: int, wall_time: str) -> dict:
        at = running_at(lambda knobs: 100.0 * share * gains[knobs["micro_batch"]])
        played.on(where(noisy(at, run=0.003, block=0.005), lambda _: True, startup=60.0))
        return played.run(
            search_space={"micro_batch": [2, 4, 8]},
            sampler="grid",
            budget={"trials": trials, "wall_time": wall_time},
            measurement={"max_measure_time": 20.0, "baseline_runs": 3, "finalists": 1},
        )

    assert study(1.0, 2, "2h")["soak"] is not None
    before = [run.knobs["micro_batch"] for run in played.recorded("soak")]
    verdict = study(0.7, 3, "6h")
    later = [run.knobs["micro_batch"] for run in played.recorded("soak")][len(before) :]
    assert (sorted(before), sorted(later)) == ([2, 8], [2, 4])
    shift = verdict["soak"]["shift"]
    assert shift["low"] < 1 < shift["high"]


def test_a_study_without_room_for_it_has_none(played: Replayed) -> None:
    verdict = studied(played, CALM, wall_time="15m")
    assert played.attempts("soak") == []
    assert verdict["soak"] is None
