"""kill -9 of daemons and agents at any moment: nothing survives them, nothing is lost or repeated."""

import itertools
import os
import random
import signal
from pathlib import Path

import pytest

from autotune.config import load
from autotune.service.submission import submit
from storage import StoredAttempt
from tests.faults.replaying import ReplayedFolder
from tests.support.fault_table import Tally
from tests.support.steering import (
    TINY_WORKLOAD,
    Command,
    StudyFolder,
    alive,
    ends_within,
    processes_in,
    quick_measurement,
    wait_for,
)

pytestmark = pytest.mark.timeout(1800)

TRIALS = 8
ALL_TRIALS = {"trials": TRIALS, "min_improvement": 0}
LATEST = 1.5
"""Seconds after a moment within which a daemon is killed: about as long as a trial takes."""
SPACE = {"micro_batch": [1, 2, 4, 8, 16], "log_interval": [1, 5, 10]}
HELD_WORKLOAD = TINY_WORKLOAD.with_name("held.py")


def kill_daemon(tiny: StudyFolder, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    tiny.wait_nothing_runs()


def kill_at_random(tiny: StudyFolder, tally: Tally, seed: int, kills: int) -> None:
    """Daemons are killed so many times, in as many studies as that takes; each is then completed."""
    moments = random.Random(seed)
    for number in itertools.count():
        if tally.tried == kills:
            return
        study = type(tiny)(tiny.folder, tiny.url, f"{tiny.name}-{number}")
        study.write(resources={"workers": 1}, search_space=SPACE, budget=ALL_TRIALS)
        submit(study.repository, load(study.folder / "study.yaml"), study.folder)
        while tally.tried < kills and kill_once(study, moments):
            tally.tried += 1
        found = study.go_on()
        assert found.returncode == 0, found.stdout + found.stderr
        lost, duplicated = study.losses(TRIALS)
        tally.lost += lost
        tally.duplicated += duplicated
        study.assert_complete(trials=TRIALS)
        assert (study.folder / "best.yaml").exists()
        tally.survived = tally.tried


def kill_once(study: StudyFolder, moments: random.Random) -> bool:
    """A daemon, killed soon after it has got to a moment of its work; False if it was done sooner."""
    study.bury_daemon()
    recorded = len(study.recorded())
    daemon = study.daemon()
    reached = moments.choice(
        (
            lambda: study.lease() is not None,
            lambda: any(attempt.running for attempt in study.attempts()),
            lambda: len(study.recorded()) > recorded,
        )
    )
    wait_for(lambda: reached() or not alive(daemon.pid), "a moment of the daemon's work")
    if ends_within(daemon.pid, moments.uniform(0, LATEST)):
        assert daemon.wait() == 0, daemon.output()
        return False
    kill_daemon(study, daemon.pid)
    daemon.wait()
    return True


@pytest.mark.fault(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 102))
def test_kills_at_random_moments(tiny: StudyFolder, tally: Tally, seed: int) -> None:
    kill_at_random(tiny, tally, seed, kills=20)


@pytest.mark.sample
@pytest.mark.fault(1)
@pytest.mark.slow
@pytest.mark.parametrize(("seed", "kills"), [(199, 4), *((seed, 20) for seed in range(200, 213))])
def test_kills_of_daemons_that_replay(
    replayed: ReplayedFolder, tally: Tally, seed: int, kills: int
) -> None:
    """Many more of them, as there are no ranks to start."""
    kill_at_random(replayed, tally, seed, kills)


@pytest.mark.sample
@pytest.mark.slow
@pytest.mark.fault(9)
def test_no_process_of_a_study_survives_its_daemon(tiny: StudyFolder) -> None:
    """Not even one that left its session and ignores SIGTERM."""
    arguments = {"trouble": "grandchild that is waited for", "at": 1}
    workload = {"name": "tiny:build", "args": arguments}
    tiny.write(workload=workload, measurement=quick_measurement(step_timeout=400))
    tiny.run("start", "study.yaml", "--detach")
    pid = tiny.daemon_pid()

    def escaped() -> bool:
        return any("escaping-grandchild" in line for line in processes_in(tiny.folder).values())

    wait_for(escaped, "a rank has started its grandchild")
    marked = [found for found in processes_in(tiny.folder) if is_marked(found)]
    assert len(marked) >= 4, "agent, fork server and two ranks"
    kill_daemon(tiny, pid)
    assert [found for found in marked if alive(found)] == []


def is_marked(pid: int) -> bool:
    try:
        return b"AUTOTUNE_AGENT=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.fault(1)
def test_start_brings_a_killed_daemon_back_while_it_follows(tiny: StudyFolder) -> None:
    tiny.write(resources={"workers": 1}, budget={"trials": 3})
    following = tiny.spawn("start", "study.yaml")
    killed = tiny.wait_lease().pid
    tiny.wait_recorded(1)
    os.kill(killed, signal.SIGKILL)
    before = len(tiny.attempts())
    wait_for(lambda: len(tiny.attempts()) > before, "the study runs again")
    assert following.wait() == 0, following.output()
    tiny.assert_complete(trials=3)


@pytest.mark.slow
@pytest.mark.fault(1)
def test_foreground_goes_on_after_a_killed_daemon(tiny: StudyFolder) -> None:
    tiny.write(resources={"workers": 1}, budget={"trials": 3})
    tiny.run("start", "study.yaml", "--detach")
    tiny.wait_recorded(1)
    kill_daemon(tiny, tiny.wait_lease().pid)
    before = len(tiny.attempts())
    found = tiny.spawn("start", "study.yaml", "--foreground")
    wait_for(lambda: len(tiny.attempts()) > before, "the study runs again")
    assert found.wait() == 0, found.output()
    tiny.assert_complete(trials=3)


@pytest.mark.slow
@pytest.mark.fault(1)
def test_a_study_whose_daemon_was_killed_can_be_stopped(tiny: StudyFolder) -> None:
    tiny.write(resources={"workers": 1})
    tiny.run("start", "study.yaml", "--detach")
    tiny.wait_running()
    kill_daemon(tiny, tiny.wait_lease().pid)
    assert tiny.run("stop", tiny.name).returncode == 0
    tiny.wait_state("STOPPED")


def agent_pid(tiny: StudyFolder) -> int:
    """Of the agent, once there is one: the leader of the session of the fork server and the ranks."""

    def found() -> int | None:
        lines = processes_in(tiny.folder).items()
        return next((pid for pid, line in lines if "autotune.worker.node.agent" in line), None)

    return wait_for(found, "an agent has started")


def hold(tiny: StudyFolder, *micro_batches: int) -> None:
    """Have trials with these wait in their first step."""
    new = tiny.folder / "new"
    new.write_text(" ".join(map(str, micro_batches)))
    new.rename(tiny.folder / "held")


def kill_agent_of_held(tiny: StudyFolder, *micro_batches: int) -> StoredAttempt:
    """SIGKILL the agent of the next trial with one of these that waits in a step."""
    reached = tiny.folder / "held.reached"

    def waits() -> bool:
        return reached.exists() and reached.read_text() in map(str, micro_batches)

    wait_for(waits, "a trial waits")
    running = tiny.wait_running()
    os.kill(agent_pid(tiny), signal.SIGKILL)

    def given_up() -> bool:
        return not next(a for a in tiny.attempts() if a.id == running.id).running

    wait_for(given_up, "the attempt is given up")
    reached.unlink()
    return running


@pytest.fixture
def held(tiny: StudyFolder) -> Command:
    """A study of two trials beside its baseline, which both wait."""
    (tiny.folder / "held.py").write_text(HELD_WORKLOAD.read_text())
    hold(tiny, 4, 8)
    tiny.write(
        workload="held:build",
        resources={"workers": 1},
        budget={"trials": 3},
        search_space={"micro_batch": [2, 4, 8]},
    )
    return tiny.spawn("start", "study.yaml", "--foreground")


@pytest.mark.sample
@pytest.mark.slow
@pytest.mark.fault(5)
def test_a_trial_whose_agent_was_killed_is_launched_again(tiny: StudyFolder, held: Command) -> None:
    first = kill_agent_of_held(tiny, 4, 8)
    (other,) = {4, 8} - {first.knobs["micro_batch"]}
    hold(tiny, other)
    last = kill_agent_of_held(tiny, other)
    hold(tiny)
    assert (first.trial, last.trial) == (1, 2), "the last of the budget, too"
    assert held.wait() == 0, held.output()
    assert [a.trial for a in tiny.attempts() if a.result.state == "LOST"] == [1, 2]
    tiny.assert_complete(trials=3)


@pytest.mark.slow
@pytest.mark.fault(5)
def test_a_trial_that_kills_its_agent_every_time_is_a_crash(
    tiny: StudyFolder, held: Command
) -> None:
    lost = [kill_agent_of_held(tiny, 4, 8) for _ in range(3)]
    hold(tiny)
    assert held.wait() == 0, held.output()
    assert [attempt.trial for attempt in lost] == [1, 1, 1]
    states = [a.result.state for a in tiny.attempts("search") if a.trial == 1]
    assert states == ["LOST", "LOST", "CRASH"]
    tiny.assert_complete(trials=3)
