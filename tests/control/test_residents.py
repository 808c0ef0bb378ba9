"""Trials of a search that take over the processes of the one before."""

import pytest

from autotune.worker.protocol import Outcome
from launchers.replay import Launch
from launchers.replay.behaviours import running_at
from storage import StoredAttempt
from tests.control.replayed import PLAIN, Replayed
from tests.control.test_longest import ON_GPU
from tests.support.behaviours import where

LAUNCH = 30.0
SLOW = where(PLAIN, lambda _: True, startup=LAUNCH)
"""A workload that takes long to build."""


def unlucky(launch: Launch) -> bool:
    return launch.taken_over and launch.knobs["micro_batch"] == 4


def of_batch(played: Replayed, size: int) -> list[StoredAttempt]:
    return [a for a in played.attempts("search") if a.knobs["micro_batch"] == size]


@pytest.mark.long
@pytest.mark.parametrize("slots", [1, 2])
def test_the_verdict_is_the_same_for_fewer_launches(played: Replayed, slots: int) -> None:
    fresh = Replayed(played.folder, played.repository.database, "fresh")
    leaving = where(SLOW, lambda _: True, stays=False)
    expected = fresh.on(leaving, slots=slots).run(budget={"trials": 10})
    found = played.on(SLOW, slots=slots).run(budget={"trials": 10})
    played.assert_complete(trials=10)
    assert (found["knobs"], found["speedup"]) == (expected["knobs"], expected["speedup"])
    launched = [
        sum(slot.launches for slot in one.machine.opened[-1].slots) for one in (played, fresh)
    ]
    # The baseline's own trial takes over whom was looked at.
    assert launched == [launched[1] - 10 + slots - 1, launched[1]]
    assert played.seconds < fresh.seconds - 3 * LAUNCH


def test_the_record_says_in_whose_processes_each_ran(played: Replayed) -> None:
    played.on(SLOW).run(budget={"trials": 5})
    look, *rest = played.attempts()
    assert (look.purpose, look.result.resident_of) == ("profile", None)
    assert {one.result.resident_of for one in played.attempts("search")} == {look.id}
    finals = [a for a in rest if a.purpose not in ("search", "calibrate")]
    assert {"confirm", "profile"} <= {a.purpose for a in finals}
    assert all(a.result.resident_of is None for a in finals)


@pytest.mark.long
def test_what_acts_above_a_step_is_launched_anew(played: Replayed) -> None:
    space = {"micro_batch": [2, 4], "bucket_cap_mb": [1, 25]}
    played.on(SLOW).run(budget={"trials": 4}, search_space=space)
    for before, one in zip(played.attempts("search"), played.attempts("search")[1:], strict=False):
        same = before.knobs["bucket_cap_mb"] == one.knobs["bucket_cap_mb"]
        assert (one.result.resident_of is not None) == same


@pytest.mark.long
@pytest.mark.parametrize(
    "outcome",
    [
        *(Outcome.CRASH, Outcome.OOM),
        *(pytest.param(one, marks=pytest.mark.slow) for one in (Outcome.HANG, Outcome.ERROR)),
    ],
)
def test_what_fails_in_the_processes_of_another_is_launched_again(
    played: Replayed, outcome: Outcome
) -> None:
    broken = where(SLOW, unlucky, outcome=outcome, cause="rank 0: out of luck")
    played.on(broken).run(budget={"trials": 10})
    played.assert_complete(trials=10)
    attempts = of_batch(played, 4)
    assert [a.result.resident_of is None for a in attempts] == [False, True] * 2
    assert [a.result.state for a in attempts[::2]] == ["LOST"] * 2
    assert {a.result.state for a in attempts[1::2]} <= {"COMPLETE", "PRUNED"}
    assert f"{outcome} in the processes of trial" in attempts[0].result.cause
    assert "out of luck; it is launched again." in played.said()


@pytest.mark.long
def test_what_is_too_large_costs_nothing_else(played: Replayed) -> None:
    def large(launch: Launch) -> bool:
        return launch.knobs["micro_batch"] == 16

    played.on(where(SLOW, large, outcome=Outcome.OOM)).run(budget={"trials": 10})
    played.assert_complete()
    assert [a.result.state for a in of_batch(played, 16)].count("OOM") >= 1
    assert all(a.result.resident_of is None for a in of_batch(played, 16) if a.recorded)
    others = [a for a in played.attempts("search") if a.knobs["micro_batch"] != 16]
    assert {a.result.state for a in others} <= {"COMPLETE", "PRUNED"}
    assert any(a.result.resident_of is not None for a in others)


def begun(played: Replayed) -> tuple[StoredAttempt, StoredAttempt]:
    """The look before the search, and the baseline's own trial."""
    look, own, *_ = played.attempts()
    assert (look.purpose, own.purpose) == ("profile", "search")
    return look, own


def test_a_build_for_which_the_look_has_too_little_time_is_not_lost(played: Replayed) -> None:
    played.on(SLOW).run(budget={"wall_time": f"{5 * LAUNCH}s"})
    look, own = begun(played)
    assert (look.result.state, own.result.state) == ("COMPLETE", "COMPLETE")
    assert own.result.resident_of == look.id


def test_nor_is_that_of_a_look_whose_steps_are_too_long(played: Replayed) -> None:
    crawling = where(running_at(lambda _: 1.0), lambda _: True, startup=LAUNCH)
    played.on(crawling).run(budget={"wall_time": f"{10 * LAUNCH}s"})
    look, own = begun(played)
    assert (look.result.state, own.result.state) == ("PRUNED", "COMPLETE")
    assert "too long to be profiled" in look.result.cause
    assert own.result.resident_of == look.id


def test_on_devices_the_baseline_has_processes_of_its_own(played: Replayed) -> None:
    played.on(SLOW, environment=ON_GPU).run(budget={"trials": 3})
    look, own = begun(played)
    assert (look.result.resident_of, own.result.resident_of) == (None, None)
    launched = {own.id}
    assert {a.result.resident_of for a in played.attempts("search")[1:]} == launched


def test_a_baseline_that_is_built_again_is_timed_as_long_as_ever(played: Replayed) -> None:
    """A build takes twice what the first trial may train for."""
    leaving = where(SLOW, lambda _: True, stays=False)
    played.on(leaving).run(budget={"wall_time": f"{5 * LAUNCH}s"})
    look, own = begun(played)
    assert (look.result.state, own.result.state) == ("COMPLETE", "COMPLETE")
    assert own.result.resident_of is None
    kept = [b for b in played.repository.attempts.blocks(own.id) if b.kept]
    assert len(kept) >= 3


def test_a_baseline_that_fails_where_it_was_profiled_is_launched_again(played: Replayed) -> None:
    def unlucky_once(launch: Launch) -> bool:
        return launch.taken_over and launch.number <= 2

    broken = where(SLOW, unlucky_once, outcome=Outcome.ERROR, cause="rank 0: out of luck")
    played.on(broken).run(budget={"trials": 3})
    look, own = begun(played)
    assert (own.result.state, own.result.resident_of) == ("LOST", look.id)
    assert "ERROR in the processes in which it was profiled" in own.result.cause
    again = played.attempts("search")[1]
    assert (again.trial, again.result.state, again.result.resident_of) == (0, "COMPLETE", None)


def test_a_baseline_that_goes_with_its_training_has_processes_of_its_own(played: Replayed) -> None:
    played.on(SLOW).run(budget={"trials": 3}, baseline={"layer_keep": 0.5})
    _, own = begun(played)
    assert own.result.resident_of is None


@pytest.mark.long
def test_trials_that_take_over_have_the_time_of_a_launch_besides(played: Replayed) -> None:
    """A launch takes all that a trial could have."""
    played.on(SLOW).run(budget={"wall_time": f"{12 * LAUNCH}s"})
    whole = [a for a in played.attempts("search") if a.result.state == "COMPLETE"]
    assert len(whole) > 2
    assert all(one.result.resident_of is not None for one in whole)
    timed = [sum(b.kept for b in played.repository.attempts.blocks(one.id)) for one in whole]
    assert min(timed) >= 3, timed
