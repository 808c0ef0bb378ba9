"""Two daemons for one cluster: a study is run by one of them, and one that comes back is too late."""

import contextlib
import os
import signal
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from storage import StoredAttempt
from tests.support.steering import StudyFolder
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(1800)

SPACE = {"micro_batch": [1, 2, 4, 8, 16], "log_interval": [1, 5, 10]}
SLOW = {"name": "tiny:build", "args": {"sleep": 0.03}}


def rows(tiny: StudyFolder, query: str) -> list[tuple[object, ...]]:
    with tiny.repository.database.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def pause(tiny: StudyFolder, pid: int) -> StoredAttempt:
    """Stop the daemon while a trial runs, but not while it writes: none could write to SQLite then."""

    def stopped() -> StoredAttempt | None:
        tiny.wait_running(after=1)
        os.kill(pid, signal.SIGSTOP)
        if writable(tiny.folder / "autotune.db") and (last := tiny.attempts()[-1]).running:
            return last
        os.kill(pid, signal.SIGCONT)
        return None

    return wait_for(stopped, "the daemon is stopped as a trial runs")


def writable(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(path, timeout=0.2)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return False
    return True


@pytest.mark.sample
@pytest.mark.slow
@pytest.mark.fault(3)
@pytest.mark.parametrize("comes_back", ["in mid study", "when all is done"])
def test_a_paused_daemon_that_comes_back_writes_nothing(tiny: StudyFolder, comes_back: str) -> None:
    trials = 14 if comes_back == "in mid study" else 4
    budget = {"trials": trials, "min_improvement": 0}
    tiny.write(resources={"workers": 1}, search_space=SPACE, budget=budget, workload=SLOW)
    tiny.run("start", "study.yaml", "--detach")
    paused = tiny.wait_lease()
    interrupted = pause(tiny, paused.pid)
    rival = tiny.spawn("daemon", "--idle-exit", "20", "--storage", tiny.url)

    def taken_over() -> bool:
        lease = tiny.lease()
        return lease is not None and lease.pid == rival.pid

    wait_for(taken_over, "the second daemon takes over")
    at_takeover = len(tiny.recorded())
    if comes_back == "in mid study":
        wait_for(lambda: len(tiny.recorded()) >= at_takeover + 2, "the second daemon records")
        assert tiny.study().state == "RUNNING"
    else:
        tiny.wait_state("DONE")
    os.kill(paused.pid, signal.SIGCONT)
    tiny.wait_state("DONE")
    # It finds its attempt given up, and serves nobody from then on.
    log = tiny.folder / ".autotune" / "daemon.log"
    told = ("another daemon has taken over", "lease on the study is gone")
    wait_for(lambda: any(text in log.read_text() for text in told), "it notices")
    wait_for(lambda: not Path(f"/proc/{paused.pid}").exists(), "the first daemon leaves")
    tiny.assert_complete(trials=trials)
    states = rows(tiny, f"select state from autotune_attempt where id = {interrupted.id}")
    assert states == [("ABANDONED",)]
    assert rows(tiny, f"select * from autotune_block where attempt_id = {interrupted.id}") == []
    by_epoch = rows(tiny, "select epoch, min(id), max(id) from autotune_attempt group by epoch")
    (_, _, last_of_first), (_, first_of_second, _) = sorted(by_epoch)
    assert last_of_first == interrupted.id < first_of_second
    assert rows(tiny, "select count(*) from autotune_recommendation") == [(1,)]
    rival.send(signal.SIGTERM)
    assert rival.wait() == 0, rival.output()
    tiny.wait_nothing_runs()


@pytest.mark.sample
@pytest.mark.slow
@pytest.mark.fault(4)
def test_of_several_daemons_one_runs_the_study(tiny: StudyFolder) -> None:
    """They even create the tables at the same time."""
    daemons = [tiny.spawn("daemon", "--idle-exit", "8", "--storage", tiny.url) for _ in range(3)]
    tiny.write(resources={"workers": 1}, budget={"trials": 3})
    found = tiny.run("start", "study.yaml")
    assert found.returncode == 0, found.stdout + found.stderr
    tiny.assert_complete(trials=3)
    served = [d for d in daemons if "study tiny: running" in d.output()]
    spawned = tiny.folder / ".autotune" / "daemon.log"
    also = spawned.exists() and "study tiny: running" in spawned.read_text()
    assert len(served) + also == 1
    assert [d.wait() for d in daemons] == [0, 0, 0], [d.output() for d in daemons]
    assert all("Traceback" not in d.output() for d in daemons)
