"""Studies of a machine that has another name by now, as a container that was made anew."""

import re
import socket
from pathlib import Path

import pytest

from autotune.errors import BadInput, StaleLease
from autotune.service import queues
from autotune.service.queues import place_of, this_queue
from autotune.service.submission import DaemonSupervisor, move_to_this_machine
from storage import LeaseHolder, StudyState
from tests.control.replayed import Replayed
from tests.support.steering import ask

SHORT = {
    "budget": {"trials": 3, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2},
}


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine whose name the test can change."""
    monkeypatch.delenv(queues.VARIABLE, raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "4f1c0a")
    return monkeypatch


def test_a_study_of_another_name_is_refused_with_advice(
    played: Replayed, container: pytest.MonkeyPatch
) -> None:
    played.submit(**SHORT)
    container.setattr(socket, "gethostname", lambda: "9b2e77")
    with pytest.raises(BadInput) as refused:
        DaemonSupervisor(played.repository, played.study(), played.url)()
    told = str(refused.value)
    assert "runs on 4f1c0a, and this is 9b2e77" in told
    assert "autotune resume STUDY --here" in told
    assert "AUTOTUNE_MACHINE" in told


def test_what_is_refused_is_not_queued(played: Replayed, container: pytest.MonkeyPatch) -> None:
    played.submit(**SHORT)
    played.repository.studies.request_stop(played.name)
    container.setattr(socket, "gethostname", lambda: "9b2e77")
    told = ask("resume", played.name, "--detach", "--storage", played.url, cwd=played.folder)
    assert told.returncode == 2
    assert "runs on 4f1c0a, and this is 9b2e77" in told.stderr
    assert played.study().state == StudyState.STOPPED


def test_it_goes_on_where_it_is_moved_to(played: Replayed, container: pytest.MonkeyPatch) -> None:
    played.submit(**SHORT)
    container.setattr(socket, "gethostname", lambda: "9b2e77")
    played.serve()
    assert played.study().state == StudyState.QUEUED, "the queue of the old one is not this one's"
    move_to_this_machine(played.repository, played.name)
    assert place_of(played.study().queue) == "host:9b2e77"
    played.serve()
    played.assert_complete(trials=3)


def test_a_machine_with_a_name_of_its_own_keeps_its_studies(
    played: Replayed, container: pytest.MonkeyPatch
) -> None:
    container.setenv(queues.VARIABLE, "training-box")
    played.submit(**SHORT)
    container.setattr(socket, "gethostname", lambda: "9b2e77")
    assert place_of(this_queue()) == "host:training-box"
    played.serve()
    played.assert_complete(trials=3)


def test_a_daemon_that_was_left_behind_has_lost_its_lease(
    played: Replayed, container: pytest.MonkeyPatch
) -> None:
    played.submit(**SHORT)
    repository = played.repository
    claim = repository.claims.take(this_queue(), LeaseHolder("4f1c0a elsewhere", 1, 60.0))
    assert claim is not None
    left = claim.lease
    container.setattr(socket, "gethostname", lambda: "9b2e77")
    arguments = ["resume", played.name, "--here", "--detach", "--storage", played.url]
    told = ask(*arguments, cwd=played.folder)
    assert told.returncode == 2
    assert "process 1 on 4f1c0a runs played; stop it first: autotune stop played" in told.stderr
    assert re.search(r"try again in \d+ s", told.stderr)
    assert place_of(played.study().queue) == "host:4f1c0a"
    repository.leases.renew(left, 0.0)  # it has not renewed its lease since
    move_to_this_machine(repository, played.name)
    with pytest.raises(StaleLease):
        repository.messages.say(left, played.study().id, "late")
    played.serve()
    played.assert_complete(trials=3)


@pytest.mark.parametrize("host", ["localhost", "localhost.localdomain"])
def test_hosts_that_are_called_the_same_are_two(
    container: pytest.MonkeyPatch, tmp_path: Path, host: str
) -> None:
    container.setattr(socket, "gethostname", lambda: host)
    found = []
    for number in range(2):
        path = tmp_path / f"machine-id-{number}"
        path.write_text(f"{number}123456789abcdef\n")
        container.setattr(queues, "_MACHINE_IDS", (tmp_path / "none", path))
        found.append(queues.this_machine())
    assert found == [f"{host}-01234567", f"{host}-11234567"]


@pytest.mark.parametrize("name", ["a b", "a\nb", "x" * 201])
def test_a_name_that_cannot_be_one_is_refused(container: pytest.MonkeyPatch, name: str) -> None:
    container.setenv(queues.VARIABLE, name)
    with pytest.raises(BadInput, match="at most 200 printable characters without spaces"):
        this_queue()
