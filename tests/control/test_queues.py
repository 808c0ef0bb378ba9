"""On a database that several share, a study runs for whom it was asked for: user, Python, devices,
processors."""

import socket
import threading

import pytest

from autotune.errors import BadInput
from autotune.service import queues
from autotune.service.daemon import LEASE_SECONDS, Daemon
from autotune.service.queues import checked, place_of, this_queue
from autotune.service.submission import DaemonSupervisor, resume_study
from storage import LeaseHolder
from tests.control.replayed import Replayed
from tests.support.waiting import wait_for

SHORT = {
    "budget": {"trials": 2, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2, "baseline_runs": 1},
}


def other(what: str, patch: pytest.MonkeyPatch) -> None:
    """Be somebody else from now on."""
    if what == "user":
        patch.setattr(queues, "user_name", lambda: "bob")
    elif what == "python":
        patch.setattr("sys.prefix", "/home/bob/venv")
    elif what == "processors":
        patch.setattr("os.sched_getaffinity", lambda pid: {0} if pid == 0 else {0, 1})
    else:
        patch.setenv("CUDA_VISIBLE_DEVICES", "7")


OTHERS = pytest.mark.parametrize("what", ["user", "python", "devices", "processors"])


@pytest.mark.long
@OTHERS
def test_a_daemon_leaves_alone_what_is_not_its_own(
    played: Replayed, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.submit(**SHORT)
    with monkeypatch.context() as patch:
        other(what, patch)
        played.serve()
        assert played.study().state == "QUEUED"
        assert played.machine.opened == []
    played.serve()
    played.assert_complete(trials=2)


@pytest.mark.long
@OTHERS
def test_whoever_asks_for_it_next_has_it_in_their_queue(
    played: Replayed, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.submit(**SHORT)
    other(what, monkeypatch)
    with pytest.raises(BadInput, match="autotune resume takes it into yours"):
        DaemonSupervisor(played.repository, played.study(), played.url)()
    resume_study(played.repository, played.name)
    assert played.study().queue == this_queue()
    played.serve()
    played.assert_complete(trials=2)


def test_what_a_daemon_runs_stays_with_it(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.submit(**SHORT)
    mine = this_queue()
    assert played.repository.claims.take(mine, LeaseHolder("there", 1, LEASE_SECONDS))
    other("devices", monkeypatch)
    resume_study(played.repository, played.name)
    assert played.study().queue == mine


def test_one_that_an_earlier_version_has_queued_is_taken_over(played: Replayed) -> None:
    played.submit(**SHORT)
    played.repository.studies.enqueue(played.name, queue=queues.place_of(this_queue()))
    with pytest.raises(BadInput, match="an earlier version of autotune"):
        DaemonSupervisor(played.repository, played.study(), played.url)()
    resume_study(played.repository, played.name)
    assert played.study().queue == this_queue()


@pytest.mark.slow
def test_a_daemon_that_stays_is_found_while_it_has_nothing_to_do(played: Replayed) -> None:
    """Else `start` would start another one beside it."""
    daemon = Daemon(played.repository, this_queue(), played.machine.open)
    thread = threading.Thread(target=daemon.serve)
    thread.start()
    try:
        wait_for(lambda: played.lease() is not None, "it holds the lease")
        first = played.lease()
        assert first is not None

        def renewed() -> bool:
            now = played.lease()
            assert now is not None, "it has let go"
            return now.seconds_left > LEASE_SECONDS - 1 and now.seconds_left > first.seconds_left

        wait_for(lambda: played.lease().seconds_left < LEASE_SECONDS - 1, "time passes")  # type: ignore[union-attr]
        wait_for(renewed, "it renews the lease")
        played.submit(**SHORT)
        wait_for(lambda: played.study().state == "DONE", "it runs what comes")
        assert played.lease() is not None
    finally:
        daemon.shut_down()
        thread.join()
    assert played.lease() is None


@pytest.mark.parametrize(
    ("error", "refused"),
    [(socket.EAI_NONAME, True), (socket.EAI_NODATA, True), (socket.EAI_AGAIN, False)],
)
def test_unknown_machine_of_a_cluster_is_refused_unless_no_name_server_answers(
    error: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(*given: object) -> None:
        raise socket.gaierror(error, "as the name server says")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    place = "ray:gpu-haed:6379"
    if refused:
        with pytest.raises(BadInput, match="there is no machine gpu-haed"):
            checked(place, ())
    assert checked(place, () if not refused else {place}) == place


def test_place_of_this_machine_or_of_a_stored_study_is_served(played: Replayed) -> None:
    played.submit(**SHORT)
    queue = played.study().queue
    assert played.repository.studies.queues() == {queue}
    assert checked(place_of(this_queue()), ()) == place_of(this_queue())
    assert checked("host:elsewhere", {"host:elsewhere"}) == "host:elsewhere"
    with pytest.raises(BadInput, match="AUTOTUNE_MACHINE=elsewhere"):
        checked("host:elsewhere", {place_of(queue)})
