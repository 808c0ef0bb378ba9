"""A daemon that is told to leave, as systemd does: its study is the next daemon's, not stopped."""

import pytest

from autotune.service.daemon import Daemon
from autotune.service.queues import this_queue
from launchers.replay import Answer, Launch
from storage import Repository
from tests.control.replayed import PLAIN, Replayed

pytestmark = pytest.mark.fault(26)

SHORT = {
    "budget": {"trials": 3, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2, "baseline_runs": 1},
}


class Told:
    """A behaviour that, at its second launch, does something to the daemon that runs it."""

    def __init__(self, played: Replayed, what: str) -> None:
        self._played = played
        self._what = what
        self._launches = 0
        self._daemon = Daemon(
            Repository(played.repository.database), this_queue(), played.machine.open
        )

    def __call__(self, launch: Launch) -> Answer:
        self._launches += 1
        if self._launches == 2:
            if self._what == "stopped by its user, too":
                self._played.repository.studies.request_stop(self._played.name)
            if self._what == "stop":
                self._daemon.stop()
            else:
                self._daemon.shut_down()
        return PLAIN(launch)

    def serve(self) -> None:
        self._played.machine.behaviour = self
        self._daemon.serve(idle_seconds=0.0)
        self._played.machine.behaviour = PLAIN


@pytest.mark.sample
def test_the_next_daemon_goes_on(played: Replayed) -> None:
    played.submit(**SHORT)
    Told(played, "shut down").serve()
    assert played.study().state == "QUEUED"
    assert [a for a in played.attempts() if a.running] == []
    assert played.lease() is None
    played.serve()
    played.assert_complete(trials=3)


def test_what_its_user_has_stopped_stays_so(played: Replayed) -> None:
    played.submit(**SHORT)
    Told(played, "stopped by its user, too").serve()
    assert played.study().state == "STOPPED"
    played.serve()
    assert played.study().state == "STOPPED"


def test_a_daemon_in_the_foreground_stops_its_study(played: Replayed) -> None:
    played.submit(**SHORT)
    Told(played, "stop").serve()
    assert played.study().state == "STOPPED"
