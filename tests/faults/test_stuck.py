"""What cannot be killed, what does not answer, what was suspended, what two deaths at once leave."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from autotune.worker import processes
from autotune.worker.node import agent_process
from autotune.worker.node.agent_process import AgentProcess
from autotune.worker.protocol import (
    BlockPlan,
    EndTrial,
    Hello,
    NodeReport,
    Placement,
    Preload,
    StartTrial,
    Timeouts,
    TrialRequest,
    from_line,
)
from launchers import Resources, agents, section_of
from search_spaces import defaults
from tests.support.steering import TINY_WORKLOAD, alive
from tests.support.trials import heard
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(600)

LONG = b"x" * 200_000
"""More than a pipe takes that nobody reads."""
ANOTHER_USERS_CHILD = """
import os, subprocess
from autotune.worker import processes
child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
os.setuid(65534)
try:
    processes.kill_descendants(set(), timeout=0.5)
except processes.Survivors as survivors:
    print(survivors)
"""
STARTER = """
import os, subprocess, sys
from autotune.worker import processes
mark = {**os.environ, processes.MARKER: processes.new_agent_id()}
code = "import os, time; os.setsid(); print('up', flush=True); time.sleep(600)"
pipe, null = subprocess.PIPE, subprocess.DEVNULL
child = subprocess.Popen([sys.executable, "-c", code], env=mark, stdout=pipe, stderr=null, text=True)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


def request_in(folder: Path, **changes: object) -> TrialRequest:
    (folder / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    given = {
        "trial": "t",
        "factory": "tiny:build",
        "args": {},
        "knobs": {**defaults(), "micro_batch": 2},
        "world_size": 1,
        "seed": 0,
        "device": "cpu",
        "blocks": BlockPlan(0.05, 2),
        "workdir": str(folder),
        "import_paths": (str(folder),),
        "log_dir": str(folder / "logs"),
    }
    return TrialRequest(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.fault(28)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start what it cannot kill later")
def test_a_child_of_another_user_is_named_and_waited_for_no_longer() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", ANOTHER_USERS_CHILD],
        capture_output=True,
        text=True,
        check=True,
    )
    pid, told = done.stdout.splitlines()
    os.kill(int(pid), signal.SIGKILL)
    assert told == f"process {pid} (sleep 600, of another user)"


@pytest.mark.slow
@pytest.mark.fault(28)
def test_a_frozen_agent_is_given_up_and_the_next_trial_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands for one that waits for a file system: neither answers, reads or dies by itself."""
    monkeypatch.setattr(agents, "SILENT_SECONDS", 8.0)
    frozen: list[int] = []
    with section_of("local").open(Resources(1, 0, 1, 1), str(tmp_path)) as launcher:
        [one] = launcher.slots

        def freeze(_: object) -> bool:
            if not frozen:
                links = one._agents.links  # type: ignore[attr-defined]
                frozen.append(links[0]._agent.pid())
                os.kill(frozen[0], signal.SIGSTOP)
            return False

        report = one.run_solo(request_in(tmp_path), freeze)
        assert report.lost_agent
        assert "has not said anything for 8 s" in report.cause
        assert one.unusable == ""
        assert not alive(frozen[0])
        again = one.run_solo(request_in(tmp_path, trial="u"), lambda _: True)
        assert again.outcome is None, again.cause


@pytest.mark.sample
@pytest.mark.fault(28)
def test_a_frozen_agent_is_not_waited_for_until_it_takes_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_process, "SEND_SECONDS", 1.0)
    agent = AgentProcess("127.0.0.1", str(tmp_path / "agent.log"))
    os.kill(agent.pid(), signal.SIGSTOP)
    assert agent.send(Preload().to_line()), "a pipe has room for that"
    assert not agent.send(LONG + b"\n")
    assert not agent.send(Preload().to_line()), "it would follow half a command"
    assert agent.close(patience=0.1) == ""
    assert not alive(agent.pid())


@pytest.mark.fault(28)
def test_an_agent_that_has_missed_half_a_command_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_process, "SEND_SECONDS", 1.0)
    agent = AgentProcess("127.0.0.1", str(tmp_path / "agent.log"))
    os.kill(agent.pid(), signal.SIGSTOP)
    assert not agent.send(LONG + b"\n")
    os.kill(agent.pid(), signal.SIGCONT)
    try:
        wait_for(lambda: not alive(agent.pid()), "it is ended, as no command can reach it")
        assert agent.read() == b""
    finally:
        agent.close(patience=0.1)


@pytest.mark.fault(28)
def test_an_agent_is_closed_while_a_command_is_under_way(tmp_path: Path) -> None:
    agent = AgentProcess("127.0.0.1", str(tmp_path / "agent.log"))
    os.kill(agent.pid(), signal.SIGSTOP)
    taken: list[bool] = []
    sender = threading.Thread(target=lambda: taken.append(agent.send(LONG)))
    sender.start()
    wait_for(agent._write_lock.locked, "it is being sent")
    assert agent.close(patience=0.1) == ""
    sender.join(180)
    assert taken == [False]


@pytest.mark.slow
@pytest.mark.fault(28)
def test_a_trial_whose_agent_is_frozen_before_it_hears_of_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_process, "SEND_SECONDS", 1.0)
    with section_of("local").open(Resources(1, 0, 1, 1), str(tmp_path)) as launcher:
        [one] = launcher.slots
        frozen = one._agents.links[0]._agent.pid()  # type: ignore[attr-defined]
        os.kill(frozen, signal.SIGSTOP)
        report = one.run_solo(request_in(tmp_path, args={"text": LONG.decode()}), lambda _: True)
        assert report.lost_agent
        assert not alive(frozen)
        again = one.run_solo(request_in(tmp_path, trial="u"), lambda _: True)
        assert again.outcome is None, again.cause


@pytest.mark.sample
@pytest.mark.slow
@pytest.mark.fault(32)
def test_a_suspended_machine_is_no_hang(tmp_path: Path) -> None:
    """All processes are stopped for longer than a step may take, as `docker pause` does."""
    agent = AgentProcess("127.0.0.1", str(tmp_path / "agent.log"))
    try:
        agent.send(Preload().to_line())
        hello = heard(agent, Hello)
        assert isinstance(hello, Hello)
        asked = request_in(tmp_path, timeouts=Timeouts(60.0, 4.0))
        place = Placement(0, 0, 1, "127.0.0.1", hello.store_port, hello.interface)
        agent.send(StartTrial(asked, place).to_line())
        for _ in range(3):
            from_line(agent.read())
        stopped = [agent.pid(), *processes.descendants(agent.pid())]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(6.0)
        # The agent first: it looks at ranks that have not done anything for long.
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        for _ in range(3):
            assert not isinstance(from_line(agent.read()), NodeReport), "it goes on"
        agent.send(EndTrial("t", on_purpose=True).to_line())
        report = heard(agent, NodeReport)
        assert isinstance(report, NodeReport)
        assert report.ends == ()
    finally:
        assert agent.close() == ""


@pytest.mark.fault(5)
def test_what_daemon_and_agent_leave_that_are_killed_at_once_is_ended_by_the_next(
    tmp_path: Path,
) -> None:
    command, pipe = [sys.executable, "-P", "-c", STARTER], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as starter:
        assert starter.stdout is not None
        escaped = int(starter.stdout.readline())
        assert alive(escaped)
        # From here on any agent on this machine ends it, that of a test beside this one as well.
        starter.kill()
    agent = AgentProcess("127.0.0.1", str(tmp_path / "agent.log"))
    wait_for(lambda: not alive(escaped), "what was left is ended")
    assert alive(agent.pid()), "its own mark is of a living starter"
    assert processes.sweep() == ""
    assert alive(agent.pid())
    agent.close()


@pytest.mark.slow
def test_a_rank_is_what_the_kernel_ends_first_where_memory_is_short(tmp_path: Path) -> None:
    with section_of("local").open(Resources(1, 0, 1, 1), str(tmp_path)) as launcher:
        [one] = launcher.slots
        agent = one._agents.links[0]._agent.pid()  # type: ignore[attr-defined]
        seen: list[set[int]] = []

        def look(_: object) -> bool:
            below = processes.descendants(agent)
            seen.append({int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in below})
            return True

        own = int(Path("/proc/self/oom_score_adj").read_text())
        report = one.run_solo(request_in(tmp_path), look)
        assert report.outcome is None, report.cause
        assert max(seen[0]) > own
        assert min(seen[0]) == own, "not the agent's helpers"


@pytest.mark.long
def test_what_trials_leave_in_the_store_does_not_pile_up(tmp_path: Path) -> None:
    agent = AgentProcess("127.0.0.1", str(tmp_path / "agent.log"))
    try:
        agent.send(Preload().to_line())
        hello = heard(agent, Hello)
        assert isinstance(hello, Hello)
        place = Placement(0, 0, 1, "127.0.0.1", hello.store_port, hello.interface)
        store = TCPStore("127.0.0.1", hello.store_port, is_master=False, wait_for_workers=False)
        if not hasattr(store, "list_keys"):
            pytest.skip("this PyTorch cannot list keys")
        for name in ("1/0-search-1/1", "1/1-search-1/1", "1/2-search-1/1"):
            asked = request_in(tmp_path, trial=name, blocks=BlockPlan(0.01, 2, max_blocks=1))
            agent.send(StartTrial(asked, place).to_line())
            report = heard(agent, NodeReport)
            assert isinstance(report, NodeReport)
            assert [end.outcome for end in report.ends] == [None]
        left = store.list_keys()
        assert left
        assert all(key.startswith("1/2-search-1/1/") for key in left)
    finally:
        agent.close()
