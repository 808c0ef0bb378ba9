"""Outlook of a study: its next runs, the time that they take, and the time taken so far."""

import dataclasses

import pytest

from autotune.analysis.standing import Present
from autotune.config import StudySpec
from autotune.views.outlook import Outlook, outlook, present_of
from storage import AttemptState, Purpose, SlotHealth, StoredAttempt
from tests.control.replayed import PLAIN, Replayed

NOW, HOUR = 1_000_000.0, 3600.0


def looked(
    played: Replayed,
    running: list[StoredAttempt],
    slots: SlotHealth | None = None,
    usual: dict[str, float] | None = None,
) -> Outlook:
    """Return the outlook of a study of which this runs; before it one trial took a minute."""
    study = played.study()
    spec = StudySpec.model_validate(study.spec)
    done = dataclasses.replace(
        present_of(played.repository, study, spec).standing,
        seconds=0.0,
        launched=4,
        usual=usual or {},
        usual_trial=60.0,
        last=(Purpose.SEARCH, 0),
    )
    return outlook(study, spec, Present(done, running), NOW, slots)


def running(
    played: Replayed, purpose: Purpose, trial: int, round_: int, *, since: float = HOUR
) -> StoredAttempt:
    [model, *_] = played.attempts("search")
    result = dataclasses.replace(model.result, state=AttemptState.RUNNING)
    return dataclasses.replace(
        model,
        id=100 + trial,
        purpose=purpose,
        trial=trial,
        round=round_,
        started=NOW - since,
        ended=None,
        result=result,
    )


@pytest.mark.long
def test_trials_side_by_side_take_less_time(played: Replayed) -> None:
    played.on(PLAIN).run(budget={"trials": 12})
    alone, beside = (
        looked(played, [], SlotHealth(alive, 4, {})).next.partition(", then")[0] for alive in (1, 4)
    )
    assert alone == "up to 8 more trials, about 8 min"
    assert beside == "up to 8 more trials, about 2 min"


@pytest.mark.parametrize(
    ("several", "runs"),
    [
        ([(Purpose.CONFIRM, 0, 1), (Purpose.CONFIRM, 1, 1), (Purpose.CONFIRM, 2, 1)], 1),
        ([(Purpose.PAIRED, 0, 3), (Purpose.SEARCH, 3, 0)], 1),
        ([(Purpose.SEARCH, 3, 0), (Purpose.SEARCH, 4, 0)], 2),
        ([(Purpose.CALIBRATE, 0, 0), (Purpose.SEARCH, 4, 0)], 2),
    ],
    ids=["round", "pair", "two-trials", "two-purposes"],
)
def test_attempts_that_take_turns_are_one_run(
    played: Replayed, several: list[tuple[Purpose, int, int]], runs: int
) -> None:
    played.on(PLAIN, workers=2).run(budget={"trials": 2})
    found = looked(played, [running(played, *one) for one in several])
    ranks = (played.study().facts or {})["world_size"]
    assert found.device_hours == pytest.approx(runs * ranks)


@pytest.mark.parametrize(
    ("several", "told"),
    [
        (
            [(Purpose.CONFIRM, 0, 2), (Purpose.CONFIRM, 3, 2)],
            "confirming, round 2, trials 0, 3, since 40 s, usually 14 s",
        ),
        (
            [(Purpose.SEARCH, 3, 0), (Purpose.PAIRED, 0, 3)],
            "searching, beside the baseline, trial 3, since 40 s, usually 9 s",
        ),
    ],
    ids=["round", "pair"],
)
def test_run_in_turns_is_named_once_and_takes_the_turns_of_all(
    played: Replayed, several: list[tuple[Purpose, int, int]], told: str
) -> None:
    played.on(PLAIN, workers=2).run(budget={"trials": 2})
    usual = {Purpose.CONFIRM: 7.0, Purpose.SEARCH: 5.0, Purpose.PAIRED: 4.0}
    members = [running(played, *one, since=40.0) for one in several]
    assert looked(played, members, usual=dict(usual)).running == (told,)
