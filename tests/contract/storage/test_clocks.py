"""Leases under clocks that are wrong, or are set; and in a database that was restored."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from autotune.errors import StaleLease
from storage import Lease, LeaseHolder, Repository, Retry, StoredStudy, database, host
from tests.contract.storage.making import CLUSTER, LONG, claim, rows, taken
from tests.support.waiting import wait_for

HOUR = 3600
ROOT = Path(__file__).parents[3]
WRONG_CLOCK = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    int failed = syscall(SYS_clock_gettime, id, t);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        t->tv_sec += atol(getenv("CLOCK_OFF_BY"));
    return failed;
}
int gettimeofday(struct timeval *t, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    t->tv_sec = found.tv_sec, t->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *t) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    return t ? (*t = found.tv_sec) : found.tv_sec;
}
"""
DAEMON = """
import sys, time
from storage import Database, LeaseHolder, Repository
url, queue = sys.argv[1:]
leases, holder = Repository(Database(url)).leases, LeaseHolder("off", 1, 60.0)
print(round(time.time()), leases.acquire(queue, holder), leases.holder(queue) is not None)
print(leases.acquire("its own", holder).epoch)
"""
needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


def set_clock(patch: pytest.MonkeyPatch, seconds: int) -> None:
    """Of the machine that a SQLite file is on."""
    patch.setitem(database._NOW, "sqlite", f"{PLAIN_CLOCK} + {seconds}")


PLAIN_CLOCK = database._NOW["sqlite"]


@pytest.fixture
def sqlite(repository: Repository) -> Repository:
    if repository.database.folder is None:
        pytest.skip("of SQLite alone: a server has a clock of its own")
    return repository


@pytest.mark.long
@pytest.mark.sample
@needs_compiler
@pytest.mark.fault(14)
@pytest.mark.parametrize("wrong", [HOUR, -HOUR])
def test_a_daemon_whose_clock_is_wrong_takes_no_lease_and_loses_none(
    repository: Repository, url: str, tmp_path: Path, wrong: int
) -> None:
    shim = tmp_path / "wrong.so"
    (tmp_path / "wrong.c").write_text(WRONG_CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, tmp_path / "wrong.c"], check=True)
    taken(repository, CLUSTER)
    before = time.time()
    found = subprocess.run(
        [sys.executable, "-c", DAEMON, url, CLUSTER],
        env={**os.environ, "LD_PRELOAD": str(shim), "CLOCK_OFF_BY": str(wrong)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    said, epoch = found.stdout.splitlines()
    its_time, acquired, held = said.split()
    assert abs(int(its_time) - before - wrong) < 60, "its clock was wrong"
    assert (acquired, held, epoch) == ("None", "True", "1")
    state = repository.leases.state("its own")
    assert state is not None
    assert 0 < state.seconds_left <= 60
    assert repository.leases.acquire("its own", LeaseHolder("here", 1, LONG)) is None


@pytest.mark.long
def test_a_clock_that_is_set_back_does_not_prolong_a_lease(
    sqlite: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = taken(sqlite, seconds=5)
    set_clock(monkeypatch, -HOUR)
    assert sqlite.leases.acquire(CLUSTER, LeaseHolder("other", 2, LONG)) is None
    wait_for(lambda: sqlite.leases.holder(CLUSTER) is None, "it has run out")
    assert taken(sqlite).epoch == first.epoch + 1


def test_a_clock_that_is_set_forwards_ends_none(
    sqlite: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = taken(sqlite)
    set_clock(monkeypatch, HOUR)
    assert sqlite.leases.acquire(CLUSTER, LeaseHolder("other", 2, LONG)) is None
    assert sqlite.leases.holder(CLUSTER) is not None
    sqlite.leases.renew(lease, LONG)
    set_clock(monkeypatch, 0)
    state = sqlite.leases.state(CLUSTER)
    assert state is not None
    assert LONG - 10 < state.seconds_left <= LONG
    sqlite.leases.release(lease)
    assert sqlite.leases.holder(CLUSTER) is None


def test_nobody_holds_a_lease_from_before_the_machine_was_booted(
    sqlite: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken(sqlite, seconds=HOUR)
    another = tmp_path / "boot_id"
    another.write_text("another\n")
    monkeypatch.setattr(host, "_BOOT_ID", another)
    assert sqlite.leases.holder(CLUSTER) is None
    taken(sqlite)


def test_a_lease_of_an_earlier_version_runs_out_by_the_wall_clock(sqlite: Repository) -> None:
    lease = taken(sqlite)
    with sqlite.database.writing() as connection:
        connection.execute(text("update autotune_lease set boot = null, boot_expires = null"))
    assert sqlite.leases.holder(CLUSTER) is not None
    with sqlite.database.writing() as connection:
        connection.execute(text("update autotune_lease set expires = expires - 100"))
    assert sqlite.leases.holder(CLUSTER) is None
    sqlite.leases.renew(lease, LONG)
    assert sqlite.leases.holder(CLUSTER) is not None


def test_a_study_is_not_put_off_for_long_by_a_clock_that_is_set_back(
    repository: Repository, lease: Lease, study: StoredStudy
) -> None:
    repository.claims.put_back(lease, study.id, Retry("no cluster", 300.0, 9))
    assert claim(repository, lease) is None
    with repository.database.writing() as connection:
        connection.execute(text("update autotune_study set retry_at = retry_at + 3600"))
    assert claim(repository, lease) is not None


@pytest.mark.fault(3)
def test_an_epoch_that_a_restored_database_gives_out_again_is_not_the_same(
    repository: Repository, lease: Lease, study: StoredStudy
) -> None:
    backup = saved(repository)
    repository.leases.release(lease)
    late = taken(repository, lease.key)
    restore(repository, backup)
    repository.leases.release(lease)
    now = taken(repository, lease.key)
    assert now.epoch == late.epoch
    before = rows(repository)
    with pytest.raises(StaleLease):
        repository.messages.say(late, study.id, "late")
    assert rows(repository) == before
    repository.messages.say(now, study.id, "mine")


def saved(repository: Repository) -> dict[str, Any]:
    with repository.database.engine.connect() as connection:
        return dict(connection.execute(text("select * from autotune_lease")).mappings().one())


def restore(repository: Repository, backup: dict[str, Any]) -> None:
    values = ", ".join(f"{name} = :{name}" for name in backup)
    with repository.database.writing() as connection:
        connection.execute(text(f"update autotune_lease set {values}"), backup)
