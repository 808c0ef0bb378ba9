"""The search on a machine whose speed wanders: each trial takes turns with the baseline."""

import dataclasses
import math
import statistics
from typing import Any

import pytest

from autotune.analysis.estimates import leader
from autotune.analysis.gate import GateRecord
from autotune.analysis.noise_backfill import error_of
from autotune.views.recompute import recomputed_attempts
from autotune.worker.protocol import Outcome
from launchers.replay import Answer, Launch
from launchers.replay.answers import SpeedVariation
from launchers.replay.behaviours import noisy
from storage import Attempts, StoredAttempt
from tests.control.deaths import Died, mortal, writers
from tests.control.replayed import PLAIN, Replayed, rate
from tests.support.behaviours import where

RESTLESS = SpeedVariation(0.15, 10.0)
SPACE = {
    "micro_batch": [1, 2, 4, 8, 16, 32],
    "accumulation_steps": [1, 2],
    "log_interval": [1, 10],
}
TRIALS = 16
BY_THEMSELVES = 4
"""The baseline and three more, before the baseline runs again."""
ASKED: dict[str, Any] = {
    "budget": {"trials": TRIALS},
    "search_space": SPACE,
    "measurement": {"baseline_runs": 3, "search_ci_half_width": 0.05},
}


def restless(played: Replayed, **options: Any) -> Replayed:
    behaviour = options.pop("behaviour", PLAIN)
    options.setdefault("variation", RESTLESS)
    return played.on(noisy(behaviour, run=0.005, block=0.01), seed=2, **options)


def errors(played: Replayed) -> list[float]:
    """How far the logarithms of the rates of complete trials are off the truth, but for what all have
    in common."""
    done = [a for a in played.attempts("search")[BY_THEMSELVES:] if a.result.state == "COMPLETE"]
    off = [math.log((a.result.throughput or 0.0) / rate(a.knobs)) for a in done]
    return [one - sum(off) / len(off) for one in off]


def spread(values: list[float]) -> float:
    return math.sqrt(sum(one**2 for one in values) / (len(values) - 1))


@pytest.mark.long
def test_trials_compare_though_the_machine_wanders(played: Replayed) -> None:
    alone = Replayed(played.folder, played.repository.database, "alone")
    restless(alone).run(**ASKED | {"measurement": {"baseline_runs": 1}})
    assert alone.attempts("paired") == []
    restless(played).run(**ASKED)
    played.assert_complete(trials=TRIALS)
    trials, baselines = played.attempts("search")[BY_THEMSELVES:], played.attempts("paired")
    assert [one.beside for one in baselines] == [one.trial for one in trials]
    assert {(one.trial, one.result.state) for one in baselines} == {(0, "COMPLETE")}
    assert len(errors(played)) >= 4
    assert 3 * spread(errors(played)) < spread(errors(alone))
    assert played.said().count("Each trial takes turns with the baseline from now on") == 1
    assert "by the runs of the baseline one of them is off by" in played.said()


@pytest.mark.long
def test_where_one_run_shows_it_no_trial_runs_by_itself(played: Replayed) -> None:
    """Those that did would be compared with those that take turns."""
    uneven = noisy(PLAIN, run=0.005, block=0.5)
    played.on(uneven, seed=2).run(**ASKED)
    played.assert_complete(trials=TRIALS)
    paired = [one.beside for one in played.attempts("paired")]
    assert paired == [*range(1, TRIALS)]
    assert played.attempts("calibrate") == []


@pytest.mark.long
def test_a_baseline_that_is_not_to_run_again_sets_no_pace(played: Replayed) -> None:
    uneven = noisy(PLAIN, run=0.005, block=0.5)
    played.on(uneven, seed=2).run(**ASKED | {"measurement": {"baseline_runs": 1}})
    assert played.attempts("paired") == played.attempts("calibrate") == []


@pytest.mark.long
def test_the_interval_of_a_trial_is_that_of_its_ratio(played: Replayed) -> None:
    restless(played).run_once("restless", **ASKED)
    complete = [
        a for a in played.attempts("search")[BY_THEMSELVES:] if a.result.state == "COMPLETE"
    ]
    assert len(complete) >= 3
    noise = played.repository.noise.of(played.study().id)
    assert noise is not None
    for one in complete:
        assert one.result.sigma_run == pytest.approx(noise.sigma_run / 2)
        assert one.result.block_freedom >= 1
    own = [error_of(one.result) or 1.0 for one in complete]
    assert statistics.median(own) < 0.6 * noise.sigma_run


@pytest.mark.long
def test_on_a_quiet_machine_each_runs_by_itself(played: Replayed) -> None:
    restless(played, variation=SpeedVariation()).run(**ASKED)
    assert played.attempts("paired") == []
    assert "takes turns with the baseline" not in played.said()


@pytest.mark.long
def test_the_baseline_waits_for_the_next_trial_in_the_same_processes(played: Replayed) -> None:
    behaviour = where(PLAIN, lambda _: True, startup=3.0)
    restless(played, behaviour=behaviour).run(**ASKED)
    first, *others = played.attempts("paired")
    assert first.result.resident_of is None
    assert {one.result.resident_of for one in others} == {first.id}
    paired = {one.beside for one in played.attempts("paired")}
    began, *later = [a for a in played.attempts("search") if a.trial in paired]
    assert {one.result.resident_of for one in later} == {began.id}


@pytest.mark.long
def test_where_launches_are_dear_trials_run_in_processes_that_are_there(played: Replayed) -> None:
    """Two builds before the first answer would take longer than the search."""
    behaviour = where(PLAIN, lambda _: True, startup=1000.0)
    restless(played, behaviour=behaviour, variation=SpeedVariation(0.4, 5.0)).run(**ASKED)
    played.assert_complete(trials=TRIALS)
    assert played.attempts("paired") == []
    assert played.said().count("Trials run by themselves, though ") == 1
    assert "to launch one and the baseline beside it would take 33 min" in played.said()


@pytest.mark.long
def test_who_cannot_catch_up_is_stopped(played: Replayed) -> None:
    def lame(launch: Launch) -> bool:
        return launch.knobs["micro_batch"] in (1, 4)

    behaviour = where(PLAIN, lame, rate=8.0)
    restless(played, behaviour=behaviour).run(**ASKED)
    slow = [a for a in played.attempts("search")[1:] if a.knobs["micro_batch"] in (1, 4)]
    assert slow
    assert {a.result.state for a in slow} == {"PRUNED"}
    early = [a.result for a in played.attempts("paired") if a.result.state == "PRUNED"]
    assert {result.cause for result in early} <= {"its trial was over before it had a turn"}


def of_batch(played: Replayed, size: int) -> list[StoredAttempt]:
    """Less the first trials, which run by themselves."""
    beside = played.attempts("search")[BY_THEMSELVES:]
    return [a for a in beside if a.knobs["micro_batch"] == size]


@pytest.mark.long
@pytest.mark.parametrize(
    "outcome",
    [
        Outcome.OOM,
        *(pytest.param(one, marks=pytest.mark.slow) for one in (Outcome.ERROR, Outcome.CRASH)),
    ],
)
def test_who_fails_beside_the_baseline_is_measured_again_alone(
    played: Replayed, outcome: Outcome
) -> None:
    """Where it counts: what failed for want of memory may have had too little because of the other."""

    def beside(launch: Launch) -> bool:
        return launch.request.interleaved and launch.knobs["micro_batch"] == 16

    behaviour = where(PLAIN, beside, outcome=outcome, cause="rank 0: no room")
    restless(played, behaviour=behaviour).run(**ASKED)
    played.assert_complete(trials=TRIALS)
    found = of_batch(played, 16)
    assert [a.result.state for a in found[::2]] == ["LOST"] * (len(found) // 2)
    assert {a.result.state for a in found[1::2]} <= {"COMPLETE", "PRUNED"}
    assert found
    assert "it is measured again alone" in found[0].result.cause


@pytest.mark.long
def test_without_the_baseline_beside_it_a_trial_is_measured_again(played: Replayed) -> None:
    def unlucky(launch: Launch) -> bool:
        batch = launch.knobs["micro_batch"], launch.knobs["accumulation_steps"]
        return launch.request.interleaved and batch == (2, 1)

    behaviour = where(PLAIN, unlucky, outcome=Outcome.CRASH, after=2)
    restless(played, behaviour=behaviour).run(**ASKED)
    played.assert_complete(trials=TRIALS)
    assert "LOST" in played.states()
    for trial in range(1, TRIALS):
        states = [a.result.state for a in played.attempts("search") if a.trial == trial]
        assert states[:-1] in ([], ["LOST"])
        assert states[-1] in ("COMPLETE", "PRUNED")


@pytest.mark.long
def test_the_records_give_the_same_figures_again(played: Replayed) -> None:
    restless(played).run_once("restless", **ASKED)
    again = {a.id: a.result for a in recomputed_attempts(played.repository, played.name)}
    for one in played.attempts("search"):
        found = again[one.id]
        assert found.throughput == pytest.approx(one.result.throughput)
        assert found.half_width == pytest.approx(one.result.half_width)


@pytest.mark.long
@pytest.mark.parametrize("method", ["AttemptRecords.begin", "AttemptRecords.finish"])
@pytest.mark.parametrize(
    "call", [8, 9, *(pytest.param(call, marks=pytest.mark.slow) for call in (10, 11))]
)
def test_a_daemon_that_dies_between_both_leaves_no_trial_without_its_pace(
    played: Replayed, method: str, call: int
) -> None:
    restless(played).submit(**ASKED)
    with mortal(writers(), (method, "after", call)), pytest.raises(Died):
        played.serve()
    played.bury_daemon()
    played.serve()
    played.assert_complete(trials=TRIALS)
    every = Attempts(played.attempts(), {})
    again = {a.trial for a in played.attempts("search") if a.result.state == "ABANDONED"}
    for one in played.recorded("search")[BY_THEMSELVES:]:
        beside = every.paired_baseline_of(one)
        assert (beside is None) == (one.trial in again)
        assert beside is None or beside.recorded


@pytest.mark.long
def test_where_two_cannot_be_at_once_the_rest_run_by_themselves(played: Replayed) -> None:
    behaviour = where(PLAIN, lambda launch: launch.request.interleaved, outcome=Outcome.ERROR)
    restless(played, behaviour=behaviour).run(**ASKED)
    played.assert_complete(trials=TRIALS)
    searched = played.attempts("search")
    assert [a.result.state for a in searched].count("LOST") == len(played.attempts("paired")) == 2


@pytest.mark.long
def test_a_machine_that_has_become_slower_stops_nobody(played: Replayed) -> None:
    """By a third, as soon as trials take turns: against the best that was seen before all would lose."""

    def slowed(launch: Launch) -> Answer:
        answer = PLAIN(launch)
        return dataclasses.replace(
            answer, rate=answer.rate * (0.66 if launch.request.interleaved else 1.0)
        )

    restless(played, behaviour=slowed).run(**ASKED)
    first, *others = played.attempts("search")
    best = max(others, key=lambda a: rate(a.knobs))
    assert rate(best.knobs) > 1.2 * rate(first.knobs)
    assert best.result.state == "COMPLETE"


@pytest.mark.long
def test_the_answer_in_between_compares_at_the_pace_of_the_baseline_s_own_trial(
    played: Replayed,
) -> None:
    restless(played).run_once("restless", **ASKED)
    before = [a for a in played.attempts() if a.purpose in ("search", "paired", "calibrate")]
    baseline = before[0].knobs
    found = leader(Attempts(before, baseline), baseline, GateRecord(), (), 2, None)
    own = before[0].result.throughput
    assert found.finalists
    of_baseline = next(one for one in found.finalists if one.trial == 0)
    assert of_baseline.rates == (own,)


@pytest.mark.long
def test_where_there_is_no_memory_for_two_each_runs_by_itself(played: Replayed) -> None:
    large = where(PLAIN, lambda _: True, peak_bytes=5 * 2**30)
    restless(played, behaviour=large).run(**ASKED)
    assert played.attempts("paired") == []
