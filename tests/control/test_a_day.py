"""A day of two users, replayed: 20 studies, and whatever may befall a service; nothing is lost."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import LauncherError, StorageUnreachable
from autotune.service import daemon as service
from autotune.service.daemon import Daemon
from autotune.service.queues import this_queue
from autotune.worker.protocol import Outcome
from launchers.replay import Answer, Launch, ReplayLauncher
from storage import Database, Repository
from storage.attempt_records import AttemptRecords
from storage.lease_keys import key_of
from tests.control.deaths import Died, mortal
from tests.control.replayed import PLAIN, Replayed
from tests.control.test_deaths import METHODS
from tests.support.records import end_lease

STUDIES = 10
"""Of each user."""
TRIALS = 2
SHORT: dict[str, Any] = {
    "budget": {"trials": TRIALS, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2, "baseline_runs": 1},
}
DEVICES = {"alice": "0", "bob": "1"}
"""By which their queues differ."""
OTHER_VERSION = "the agent of node 0 speaks protocol 4 and this side 3: restart the daemon"
FROZEN = "the agent of node 0 has not said anything for 60 s"
NO_SPACE = "rank 0: OSError: [Errno 28] No space left on device"
KILLED = {3: ("AttemptRecords.finish", "before", 4), 6: ("AttemptRecords.begin", "after", 5)}
"""Shift -> where its daemon dies by kill -9; see tests.control.deaths."""


class Day:
    """What befalls launches, by their number over all studies, and the daemons that run them."""

    def __init__(self, patch: pytest.MonkeyPatch, database: Database) -> None:
        self.story: list[str] = []
        self._patch = patch
        self._database = database
        self._launches = itertools.count(1)
        self._shifts = itertools.count(1)
        self._daemon: Daemon | None = None
        self._upgraded: Daemon | None = None
        self._refusals = 0
        self._happens: dict[int, Callable[[Launch], Answer]] = {
            5: self._restart,
            12: self._lose_agent,
            20: self._storage_away,
            28: self._freeze_agent,
            36: self._fill_disk,
            44: self._upgrade,
            52: self._lose_agent,
            60: self._storage_away,
            68: self._restart,
        }
        finish = AttemptRecords.finish

        def refusing(*arguments: Any, **options: Any) -> Any:
            if self._refusals:
                self._refusals -= 1
                raise StorageUnreachable("the server is away")
            return finish(*arguments, **options)

        patch.setattr(AttemptRecords, "finish", refusing)

    def serve(self, user: str) -> None:
        """One daemon of theirs, to its end, however that comes."""
        shift = next(self._shifts)
        self._patch.setenv("CUDA_VISIBLE_DEVICES", DEVICES[user])
        repository = Repository(self._database)
        self._daemon = Daemon(repository, this_queue(), self._open)
        self.story.append(f"{user}'s daemon starts")
        if shift not in KILLED:
            self._daemon.serve(idle_seconds=0.0)
            return
        with mortal(METHODS, KILLED[shift]), pytest.raises(Died):
            self._daemon.serve(idle_seconds=0.0)
        self.story.append(f"{user}'s daemon is killed")
        for study in repository.studies.all():
            for key in (key_of(study.id), study.queue):
                if lease := repository.leases.holder(key):
                    end_lease(repository, lease)

    def _open(self, *_: object) -> ReplayLauncher:
        if self._upgraded is not None and self._daemon is self._upgraded:
            self.story.append(OTHER_VERSION)
            self._daemon.shut_down()  # as somebody does who reads that, and starts the next one
            raise LauncherError(OTHER_VERSION)
        return ReplayLauncher(self._launched)

    def _launched(self, launch: Launch) -> Answer:
        return self._happens.get(next(self._launches), PLAIN)(launch)

    def _restart(self, launch: Launch) -> Answer:
        self.story.append("systemd restarts the daemon")
        assert self._daemon is not None
        self._daemon.shut_down()
        return PLAIN(launch)

    def _lose_agent(self, _: Launch) -> Answer:
        self.story.append("an agent is killed")
        return Answer(outcome=Outcome.CRASH, cause="the agent of node 0 died", lost_agent=True)

    def _freeze_agent(self, _: Launch) -> Answer:
        self.story.append("an agent freezes")
        return Answer(outcome=Outcome.CRASH, cause=FROZEN, lost_agent=True, startup=60.0)

    def _storage_away(self, launch: Launch) -> Answer:
        self.story.append("the storage is away")
        self._refusals = 3
        return PLAIN(launch)

    def _fill_disk(self, _: Launch) -> Answer:
        self.story.append("the disk is full")
        return Answer(outcome=Outcome.ERROR, cause=NO_SPACE)

    def _upgrade(self, launch: Launch) -> Answer:
        self.story.append("the package is upgraded")
        self._upgraded = self._daemon
        return PLAIN(launch)


@pytest.mark.slow
@pytest.mark.fault(26)
@pytest.mark.fault(29)
def test_nothing_of_a_day_is_lost(
    played: Replayed, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_IDLE_POLL_SECONDS", 0.01), ("_OUTAGE_POLL_SECONDS", 0.01)):
        monkeypatch.setattr(service, name, seconds)
    monkeypatch.setattr(service, "FIRST_SECONDS", 0.01)
    studies = []
    for user, number in itertools.product(DEVICES, range(STUDIES)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", DEVICES[user])
        folder = tmp_path / user
        folder.mkdir(exist_ok=True)
        studies.append(Replayed(folder, database, f"{user}-{number}"))
        studies[-1].submit(**SHORT, export=f"{user}-{number}.yaml")
    day = Day(monkeypatch, database)
    users = itertools.cycle(DEVICES)
    while not all(study.study().state.ended for study in studies):
        day.serve(next(users))
    for study in studies:
        study.assert_complete(trials=TRIALS)
        assert study.losses(TRIALS) == (0, 0)
        assert study.lease() is None
    for text in ("systemd", "is killed", "freezes", "away", "full", "upgraded", OTHER_VERSION):
        assert any(text in line for line in day.story), day.story
