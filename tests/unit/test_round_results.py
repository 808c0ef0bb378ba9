"""Results of a round: which failures are final, and which are repeated."""

import dataclasses

import pytest

from autotune.analysis.round_results import failed_in_a_round, round_results
from search_spaces import defaults
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt

Run = tuple[int, int, str]
"""Trial, round and state."""


def recorded(*runs: Run) -> Attempts:
    knobs = defaults()
    found = [
        StoredAttempt(
            number,
            trial,
            Purpose.CONFIRM,
            round_,
            1,
            knobs,
            0.0,
            1.0,
            AttemptResult(AttemptState(state), throughput=5.0 if state == "COMPLETE" else None),
        )
        for number, (trial, round_, state) in enumerate(runs, 1)
    ]
    return Attempts(found, knobs)


@pytest.mark.parametrize("state", ["ERROR", "CRASH", "HANG"])
def test_first_failure_is_to_be_repeated_and_the_second_is_final(state: str) -> None:
    once = (0, 1, "COMPLETE"), (3, 1, state)
    assert round_results(recorded(*once), 1) == {0: 5.0}
    assert round_results(recorded(*once, (3, 1, "COMPLETE")), 1) == {0: 5.0, 3: 5.0}
    twice = recorded(*once, (3, 1, state))
    assert round_results(twice, 1) == {0: 5.0, 3: None}
    assert failed_in_a_round(twice) == {3}


@pytest.mark.parametrize("state", ["OOM", "POWER"])
def test_what_another_run_would_not_change_is_final_at_once(state: str) -> None:
    assert round_results(recorded((3, 1, state)), 1) == {3: None}


def test_run_without_time_is_to_be_repeated() -> None:
    assert round_results(recorded((3, 1, "PRUNED"), (3, 1, "PRUNED")), 1) == {}


def by_daemons(*runs: tuple[int, int, float]) -> Attempts:
    """Runs of trials in a round, each with the epoch of its daemon and its rate."""
    found = [
        dataclasses.replace(
            one, epoch=epoch, result=AttemptResult(AttemptState.COMPLETE, throughput=r)
        )
        for one, (_, epoch, r) in zip(
            recorded(*((trial, 1, "COMPLETE") for trial, _, _ in runs)), runs, strict=True
        )
    ]
    return Attempts(found, defaults())


def test_runs_of_an_earlier_daemon_do_not_count_in_a_round_that_another_goes_on_with() -> None:
    yesterday, today = (0, 1, 100.0), (3, 2, 90.0)
    assert round_results(by_daemons(yesterday), 1) == {0: 100.0}
    assert round_results(by_daemons(yesterday, today), 1) == {3: 90.0}
    assert round_results(by_daemons(yesterday, today, (0, 2, 90.0)), 1) == {0: 90.0, 3: 90.0}


def test_round_that_no_daemon_lasts_for_is_completed_by_several() -> None:
    runs = [(trial, epoch, 100.0 + epoch) for epoch, trial in enumerate((0, 3, 0, 3, 0), 1)]
    assert round_results(by_daemons(*runs[:4]), 1) == {3: 104.0}
    assert round_results(by_daemons(*runs), 1) == {0: 105.0, 3: 104.0}


def test_round_of_an_earlier_version_by_two_daemons_counts_where_another_has_begun() -> None:
    older = Attempts(
        [*by_daemons((0, 1, 100.0), (3, 2, 90.0)), *recorded((0, 2, "COMPLETE"))], defaults()
    )
    assert round_results(older, 1) == {0: 100.0, 3: 90.0}


def test_first_failure_is_not_final_where_another_round_has_run_since() -> None:
    later = recorded((0, 1, "COMPLETE"), (3, 1, "CRASH"), (0, 2, "COMPLETE"))
    assert round_results(later, 1) == {0: 5.0}
    assert failed_in_a_round(later) == set()
