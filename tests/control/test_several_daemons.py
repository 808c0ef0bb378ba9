"""Several daemons of one queue, and a process that runs one study alone."""

import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import Requeued, StaleLease, StorageError
from autotune.service import daemon as service
from autotune.service.daemon import Daemon, _Heartbeat
from autotune.service.queues import this_queue
from autotune.service.submission import InProcessRunner
from autotune.study.tuner import Signals
from launchers import DeviceHolder
from launchers.replay import Answer, Launch, ReplayLauncher
from storage import Database, Lease, LeaseHolder, Repository
from storage.host import this_host
from storage.leases import Leases
from storage.owner import user_name
from tests.control.replayed import PLAIN, Machine, Replayed
from tests.support.waiting import wait_for

SHORT = {
    "budget": {"trials": 2, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2, "baseline_runs": 1},
}


@pytest.fixture
def other(played: Replayed, tmp_path: Path, database: Database) -> Replayed:
    """A second study in the same queue."""
    folder = tmp_path / "other"
    folder.mkdir()
    return Replayed(folder, database, "other")


def test_studies_of_one_queue_run_at_the_same_time_in_two_daemons(
    played: Replayed, other: Replayed
) -> None:
    both = threading.Barrier(2, timeout=60)
    met: set[int] = set()

    def meeting(launch: Launch) -> Answer:
        if threading.get_ident() not in met:  # each daemon in a launch of its own study
            met.add(threading.get_ident())
            if len(met) <= 2:
                both.wait()
        return PLAIN(launch)

    played.submit(**SHORT)
    other.submit(**SHORT)
    machine = Machine(meeting)
    daemons = [
        Daemon(Repository(played.repository.database), this_queue(), machine.open) for _ in range(2)
    ]
    threads = [threading.Thread(target=d.serve, kwargs={"idle_seconds": 0.0}) for d in daemons]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not both.broken
    played.assert_complete(trials=2)
    other.assert_complete(trials=2)


def test_study_that_waits_for_devices_tells_for_whose_study_and_how_long(
    played: Replayed, other: Replayed
) -> None:
    class Busy(Machine):
        def open(self, *given: Any) -> ReplayLauncher:
            given[2](DeviceHolder(process.pid, "process measures on processor 0"))
            return super().open()

    with subprocess.Popen(["sleep", "600"]) as process:
        other.submit(**{**SHORT, "budget": {"wall_time": 90}})
        holder = LeaseHolder(this_host(), process.pid, 600.0)
        assert other.repository.claims.take(this_queue(), holder) is not None
        played.submit(**SHORT)
        only = played.study().id
        Daemon(played.repository, this_queue(), Busy().open, only=only).serve(idle_seconds=0.0)
        process.kill()
    told = f"process measures on processor 0: study other of {user_name()}, at most 90 s more."
    assert told in played.said()


def test_process_for_one_study_leaves_the_rest_of_the_queue(
    played: Replayed, other: Replayed
) -> None:
    other.submit(**SHORT)
    played.submit(**SHORT)
    only = played.study().id
    daemon = Daemon(played.repository, this_queue(), played.machine.open, only=only)
    daemon.serve(idle_seconds=0.0)
    played.assert_complete(trials=2)
    assert other.study().state == "QUEUED"
    assert played.lease() is None


def test_study_of_a_process_that_is_told_to_leave_is_queued_again(played: Replayed) -> None:
    running = threading.Event()

    def slow(launch: Launch) -> Answer:
        running.set()
        wait_for(lambda: daemon.leaves, "the process is told to leave")
        return PLAIN(launch)

    played.submit(**SHORT)
    only = played.study().id
    daemon = Daemon(played.repository, this_queue(), Machine(slow).open, only=only)
    here = InProcessRunner(played.repository, played.study(), daemon)
    here()
    assert running.wait(60)
    daemon.shut_down()

    def left() -> bool:
        try:
            here()
        except Requeued as told:
            assert told.exit_code == 75
            return True
        return False

    wait_for(left, "it has left")
    assert played.study().state == "QUEUED"
    played.serve()
    played.assert_complete(trials=2)


def test_daemon_that_leaves_by_itself_takes_no_lease_while_it_is_idle(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    acquire = Leases.acquire

    def watched(leases: Leases, key: str, holder: LeaseHolder) -> Lease | None:
        asked.append(key)
        return acquire(leases, key, holder)

    monkeypatch.setattr(Leases, "acquire", watched)
    monkeypatch.setattr(service, "_IDLE_POLL_SECONDS", 0.01)
    Daemon(played.repository, this_queue(), played.machine.open).serve(idle_seconds=0.2)
    assert asked == []
    played.submit(**SHORT)
    played.serve()
    assert asked == [this_queue()]


def test_study_whose_lease_cannot_be_renewed_is_given_up_at_once(
    played: Replayed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A role may have lost a right; another daemon takes the study once the lease has run out."""
    refusal = "permission denied for table autotune_lease"
    tried: list[str] = []

    def refused(_: Leases, lease: Lease, seconds: float) -> None:
        tried.append(lease.key)
        raise StorageError(refusal)

    played.submit(**SHORT)
    claim = played.repository.claims.take(this_queue(), LeaseHolder(this_host(), 1, 600.0))
    assert claim is not None
    monkeypatch.setattr(Leases, "renew", refused)
    signals = Signals()
    beat = _Heartbeat(played.repository, claim.study, claim.lease, signals, lambda: None)
    beat.run(threading.Event())
    assert tried == [claim.lease.key]
    with pytest.raises(StaleLease, match=r"^this daemon's lease on the study is gone"):
        signals.check()
    [told] = caplog.records
    assert told.getMessage() == f"study played: its lease cannot be renewed: {refusal}"
    assert told.exc_info is None
