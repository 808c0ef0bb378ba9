"""Leases of processes that are dead: on this machine they are known to be, and hold nothing."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from storage import LeaseHolder, Repository
from storage.host import is_gone, started, this_host
from tests.contract.storage.making import CLUSTER, LONG, submit
from tests.support.waiting import wait_for


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_killed_holder_holds_nothing(
    repository: Repository, sleeper: subprocess.Popen[bytes]
) -> None:
    study = submit(repository, "first")
    repository.leases.acquire(CLUSTER, LeaseHolder(this_host(), sleeper.pid, LONG))
    assert repository.leases.holder(CLUSTER) is not None
    assert repository.leases.acquire(CLUSTER, LeaseHolder(this_host(), os.getpid(), LONG)) is None
    sleeper.kill()
    # Not waited for: a zombie is dead, too.
    wait_for(lambda: repository.leases.holder(CLUSTER) is None, "the holder is seen to be dead")
    state = repository.leases.state(CLUSTER)
    assert state is not None
    assert state.gone
    assert state.seconds_left > 0
    repository.studies.request_stop(study.name)
    assert repository.studies.named(study.name).state == "STOPPED"
    lease = repository.leases.acquire(CLUSTER, LeaseHolder(this_host(), os.getpid(), LONG))
    assert lease is not None
    assert (lease.epoch, lease.predecessor) == (2, sleeper.pid)
    assert repository.leases.holder(CLUSTER) is not None


def test_a_later_process_of_the_same_number_is_not_the_holder(
    sleeper: subprocess.Popen[bytes],
) -> None:
    since = started(this_host(), sleeper.pid)
    assert since is not None
    assert not is_gone(this_host(), sleeper.pid, since)
    assert is_gone(this_host(), sleeper.pid, since - 1)


def test_nothing_is_known_of_other_machines_and_of_leases_of_earlier_versions(
    repository: Repository, sleeper: subprocess.Popen[bytes]
) -> None:
    assert not is_gone("another machine", sleeper.pid, 1)
    assert not is_gone(this_host(), sleeper.pid, None)
    assert started("another machine", sleeper.pid) is None
    sleeper.kill()
    sleeper.wait()
    assert not is_gone("another machine", sleeper.pid, 1)
    assert started(this_host(), sleeper.pid) is None
    assert is_gone(this_host(), sleeper.pid, 1)
