"""A slot that holds what nobody can end is left alone: the study goes on elsewhere, or waits."""

import pytest

from autotune.service import daemon as service
from launchers.replay import Answer, Launch
from tests.control.replayed import PLAIN, Replayed

pytestmark = pytest.mark.fault(28)

SHORT = {
    "budget": {"trials": 6, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2, "baseline_runs": 1},
}
STUCK = "process 17 (python train.py, state D)"


class Sticking:
    """The first slot of the first launcher holds such a process after its second trial."""

    def __init__(self, played: Replayed) -> None:
        self.played = played
        self.launches = 0

    def __call__(self, launch: Launch) -> Answer:
        self.launches += 1
        if self.launches == 2:
            self.played.machine.opened[0].slots[0].unusable = STUCK
        return PLAIN(launch)


def test_the_other_slots_go_on(played: Replayed) -> None:
    played.submit(**SHORT)
    played.on(Sticking(played), slots=2).serve()
    played.assert_complete(trials=6)
    assert f"Nothing more runs on replay-0: {STUCK}" in played.said()
    assert "1 slot left" in played.said()
    assert len(played.machine.opened) == 1


def test_without_another_the_study_waits_and_says_for_what(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FIRST_SECONDS", 0.1)
    played.submit(**SHORT)
    played.on(Sticking(played)).serve()
    assert f"replay-0 is out of use: {STUCK}; tried again" in played.said()
    played.assert_complete(trials=6)
    assert len(played.machine.opened) == 2, "the launcher was opened anew"


def test_that_runs_of_a_round_were_resident_there_is_said_once(played: Replayed) -> None:
    """Each of them ends on the slot that is to be left alone."""

    def sticking(launch: Launch) -> Answer:
        if launch.request.interleaved:
            played.machine.opened[0].slots[0].unusable = STUCK
        return PLAIN(launch)

    played.submit(**SHORT)
    played.on(sticking, slots=2).serve()
    played.assert_complete(trials=6)
    assert played.said().count("Nothing more runs on replay-0") == 1
