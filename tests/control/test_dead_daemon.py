"""What is said of a study whose daemon was killed a moment ago: the truth, before its lease runs out."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from autotune.service.follow import detached
from autotune.service.queues import this_queue
from autotune.views.overview import describe, status_of, table
from storage import LeaseHolder, StudyState
from storage.host import this_host
from tests.control.replayed import Replayed
from tests.support.steering import Command
from tests.support.waiting import wait_for


@pytest.fixture
def daemon(played: Replayed) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lease and runs the study, for all that the records say."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    played.submit()
    holder = LeaseHolder(this_host(), process.pid, 600.0)
    assert played.repository.claims.take(this_queue(), holder) is not None
    yield process
    process.kill()
    process.wait()


def test_status_and_list(played: Replayed, daemon: subprocess.Popen[bytes]) -> None:
    alive = status_of(played.repository, played.name)
    assert alive["daemon"] == {"host": os.uname().nodename, "pid": daemon.pid}
    assert describe(alive).startswith("played: RUNNING\n")
    daemon.kill()
    daemon.wait()
    dead = status_of(played.repository, played.name)
    assert dead["daemon"] is None
    assert describe(dead).startswith("played: RUNNING, no daemon\n")
    assert "autotune resume played starts one" in describe(dead)
    assert "RUNNING, no daemon" in table([dead], played.repository.now())


def test_who_stops_following_is_told_whether_it_runs_on(
    played: Replayed, daemon: subprocess.Popen[bytes]
) -> None:
    assert "Detached; played runs on." in detached(played.repository, played.name)
    daemon.kill()
    daemon.wait()
    told = detached(played.repository, played.name)
    assert "played is RUNNING, but no daemon runs it. autotune resume played starts one." in told
    played.repository.studies.request_stop(played.name)
    assert "played is STOPPED" in detached(played.repository, played.name)


def test_ctrl_c_in_watch(played: Replayed, daemon: subprocess.Popen[bytes]) -> None:
    arguments = ["-m", "autotune", "watch", played.name, "--storage", played.url]
    watching = Command(arguments, played.folder)
    daemon.kill()
    daemon.wait()
    wait_for(lambda: "No daemon runs it" in watching.output(), "watch sees that the daemon is dead")
    watching.send(signal.SIGINT)
    assert watching.wait() == 0
    assert "runs on" not in watching.output()
    assert "played is RUNNING, but no daemon runs it." in watching.output()


@pytest.mark.long
def test_the_next_daemon_does_not_wait_for_its_lease(
    played: Replayed, daemon: subprocess.Popen[bytes]
) -> None:
    daemon.kill()
    daemon.wait()
    played.serve()
    assert played.study().state == StudyState.DONE
