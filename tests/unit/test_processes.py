"""Finding and killing processes: real ones, forked, orphaned, stopped and in sessions of their own.

Each scene is played by a Python process of its own, which becomes a subreaper as the agent does.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from autotune.worker import proc, processes
from tests.support.waiting import wait_for

CAST = """
import contextlib, ctypes, json, os, signal, subprocess, sys, threading, time
from pathlib import Path
from autotune.worker import proc, processes

processes.become_subreaper()

def child(act, *, session=False):
    pid = os.fork()
    if pid:
        return pid
    if session:
        os.setsid()
    act()
    os._exit(0)

def sleep():
    time.sleep(60)

def stubborn():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(60)

def alive(pid):
    return proc.state(pid) not in "ZX?"

def wait_until(true, seconds=120):
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up, "the scene did not come about"
        time.sleep(0.002)

def without_main_thread():
    threading.Thread(target=sleep, daemon=True).start()
    ctypes.CDLL(None).pthread_exit(None)

def tell(**facts):
    print(json.dumps(facts))
    sys.stdout.flush()
    os._exit(0)
"""


def play(scene: str, **environment: str) -> dict:
    """What the scene tells. Nobody in it lives longer than a minute."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", CAST + textwrap.dedent(scene)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# Finding


def test_descendants_are_children_and_their_children():
    told = play(
        """
        read, write = os.pipe()
        def parent():
            os.write(write, str(child(sleep)).encode())
            sleep()
        son = child(parent)
        grandson = int(os.read(read, 20))
        found = processes.descendants(os.getpid())
        of_son = processes.descendants(son)
        started = processes.started_by(os.getpid())
        processes.kill_descendants(set())
        family = [son, grandson]
        tell(found=sorted(found), started=sorted(started), family=family, of_son=list(of_son))
        """
    )
    assert told["found"] == told["started"] == told["family"]
    assert told["of_son"] == told["family"][1:]


def test_an_orphan_in_its_own_session_is_still_a_descendant():
    told = play(
        """
        read, write = os.pipe()
        def parent():
            os.write(write, str(child(sleep, session=True)).encode())
        son = child(parent)
        orphan = int(os.read(read, 20))
        os.waitpid(son, 0)
        found = orphan in processes.descendants(os.getpid())
        processes.kill_descendants(set())
        tell(found=found, left=sorted(processes.descendants(os.getpid())))
        """
    )
    assert told == {"found": True, "left": []}


def test_a_zombie_counts_and_a_stranger_does_not():
    told = play(
        """
        dead = child(lambda: None)
        wait_until(lambda: proc.state(dead) == "Z")
        found = processes.descendants(os.getpid())
        tell(zombie=dead in found, parent=os.getppid() in found, me=os.getpid() in found)
        """
    )
    assert told == {"zombie": True, "parent": False, "me": False}


def test_of_a_process_that_does_not_exist_there_are_no_descendants():
    assert processes.descendants(2**22 + 1) == set()


@pytest.mark.parametrize("name", ["plain", "a b", "x) R 1 (y", "))", "line\nbreak", "é"])
def test_no_name_of_a_program_leads_astray(name, tmp_path):
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    running = subprocess.Popen([program, "60"])
    try:
        wait_for(lambda: proc.state(running.pid) == "S", "it sleeps")
        assert running.pid in processes.descendants(os.getpid())
    finally:
        running.kill()
        running.wait()


def test_states():
    told = play(
        """
        def run():
            while True:
                pass
        busy, asleep, stopped, dead = child(run), child(sleep), child(sleep), child(lambda: None)
        os.kill(stopped, signal.SIGSTOP)
        expected = {busy: "R", asleep: "S", stopped: "T", dead: "Z"}
        wait_until(lambda: {pid: proc.state(pid) for pid in expected} == expected)
        processes.kill_descendants(set())
        tell(gone=[proc.state(pid) for pid in expected])
        """
    )
    assert told["gone"] == ["?", "?", "?", "?"]


# Killing


def test_nothing_survives():
    told = play(
        """
        read, write = os.pipe()
        def father():
            child(stubborn, session=True)
            child(lambda: child(stubborn, session=True), session=True)
            os.write(write, b"x")
            stubborn()
        family = [child(father, session=True), child(stubborn), child(sleep)]
        os.kill(family[2], signal.SIGSTOP)
        os.read(read, 1)
        wait_until(lambda: len(processes.descendants(os.getpid())) >= 5)
        processes.kill_descendants(set())
        tell(left=sorted(processes.descendants(os.getpid())))
        """
    )
    assert told["left"] == []


def test_one_that_keeps_forking_into_new_sessions_is_caught():
    told = play(
        """
        born = time.monotonic()
        def flee():
            while time.monotonic() - born < 20:
                time.sleep(0.1)
                if os.fork():
                    os._exit(0)
                os.setsid()
        for _ in range(3):
            child(flee)
        time.sleep(0.3)
        processes.kill_descendants(set())
        first = processes.descendants(os.getpid())
        time.sleep(0.3)
        tell(left=sorted(first | processes.descendants(os.getpid())))
        """
    )
    assert told["left"] == []


def test_one_that_breeds_is_caught():
    told = play(
        """
        def breed():
            for _ in range(500):
                child(sleep, session=True)
                time.sleep(0.002)
        child(breed)
        time.sleep(0.05)
        processes.kill_descendants(set())
        first = processes.descendants(os.getpid())
        time.sleep(0.1)
        tell(left=sorted(first | processes.descendants(os.getpid())))
        """
    )
    assert told["left"] == []


def test_helpers_are_spared_but_not_their_children():
    told = play(
        """
        read, write = os.pipe()
        def helper():
            os.write(write, str(child(sleep)).encode())
            sleep()
        spared = child(helper)
        rank = int(os.read(read, 20))
        processes.kill_descendants({spared})
        tell(spared=alive(spared), rank=alive(rank), kill=os.kill(spared, signal.SIGKILL))
        """
    )
    assert told == {"spared": True, "rank": False, "kill": None}


def test_what_belongs_to_another_trial_is_kept_and_so_is_what_it_starts_meanwhile():
    """Its children, and who has lost its parent but not the session."""
    told = play(
        """
        read, write = os.pipe()
        def rank():
            os.setsid()
            def father():
                os.write(write, b"%8d" % child(sleep))
                os._exit(0)
            child(father)
            os.write(write, b"%8d" % child(sleep))
            sleep()
        kept, ended = child(rank), child(rank)
        below = [int(os.read(read, 8)) for _ in range(4)]
        before = {pid: os.getsid(pid) for pid in below}
        processes.kill_descendants(set(), keep=[kept])
        found = [(alive(pid), before[pid] == kept) for pid in below]
        facts = {"kept": alive(kept), "ended": alive(ended), "found": sorted(found)}
        processes.kill_descendants(set())
        tell(**facts)
        """
    )
    assert told == {
        "kept": True,
        "ended": False,
        "found": [[False, False], [False, False], [True, True], [True, True]],
    }


def test_the_exit_status_of_a_helper_is_left_to_who_waits_for_it():
    told = play(
        """
        helper = child(lambda: os._exit(7))
        wait_until(lambda: proc.state(helper) == "Z")
        processes.kill_descendants({helper})
        tell(status=os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]))
        """
    )
    assert told["status"] == 7


def test_no_zombies_are_left():
    told = play(
        """
        for _ in range(20):
            child(lambda: child(sleep, session=True))
        time.sleep(0.2)
        processes.kill_descendants(set())
        tell(left=sorted(processes.descendants(os.getpid())))
        """
    )
    assert told["left"] == []


def test_what_cannot_be_killed_in_time_is_named():
    told = play(
        """
        son = child(sleep)
        try:
            processes.kill_descendants(set(), timeout=-1)
        except processes.Survivors as error:
            text = str(error)
        os.kill(son, signal.SIGKILL)
        tell(named=str(son) in text)
        """
    )
    assert told["named"]


HEADLESS = """
        def letter(pid):
            return proc.stat_of(pid)[0].decode()
        son = child(without_main_thread)
        wait_until(lambda: letter(son) == "Z" and proc.state(son) == "S")
"""


def test_a_process_whose_main_thread_is_dead_lives_with_its_other_threads():
    told = play(
        HEADLESS
        + """
        born = proc.started(son) is not None
        before = proc.state(son)
        processes.kill_descendants(set())
        tell(born=born, before=before, after=proc.state(son))
        """
    )
    assert told == {"born": True, "before": "S", "after": "?"}


def test_one_that_cannot_be_killed_is_named_also_if_its_main_thread_is_dead():
    told = play(
        HEADLESS
        + """
        kill, proc.kill = proc.kill, lambda pid: None
        try:
            processes.kill_descendants(set(), timeout=0.1)
            text = ""
        except processes.Survivors as error:
            text = str(error)
        kill(son)
        tell(expected=f"process {son} ({sys.executable} -P", text=text)
        """
    )
    assert told["text"].startswith(told["expected"])
    assert told["text"].endswith("state S)")


def test_shared_memory_of_the_killed_is_removed():
    told = play(
        """
        name = f"autotune-test-{os.getpid()}"
        program = f'''
        import time
        from multiprocessing.shared_memory import SharedMemory
        memory = SharedMemory("{name}", create=True, size=8)
        print(flush=True)
        time.sleep(60)
        '''
        command = [sys.executable, "-c", "\\n".join(map(str.strip, program.splitlines()))]
        subprocess.Popen(command, stdout=subprocess.PIPE).stdout.readline()
        there = name in os.listdir("/dev/shm")
        processes._REMOVAL_SECONDS = 60
        processes.kill_descendants(set())
        tell(there=there, left=name in os.listdir("/dev/shm"))
        """
    )
    assert told == {"there": True, "left": False}


def test_remover_of_shared_memory_that_does_not_end_is_killed():
    told = play(
        """
        command = [sys.executable, "-c", "# torch_shm_manager\\nimport time; time.sleep(60)"]
        subprocess.Popen(command)
        processes._REMOVAL_SECONDS = 0.1
        processes.kill_descendants(set())
        tell(alive=len(processes.descendants(os.getpid())))
        """
    )
    assert told == {"alive": 0}


def test_killing_one_that_is_gone_is_no_error():
    gone = subprocess.Popen(["true"])
    gone.wait()
    proc.kill(gone.pid)


def test_child_of_a_dead_parent_ends_though_it_still_has_the_handler_of_that_parent():
    """A child that is to run another program has it until then; that program has none."""
    told = play(
        """
        read, write = os.pipe()
        def parent():
            signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
            def before_exec():
                processes.leave_with(father)
                os.write(write, str(os.getpid()).encode())
                time.sleep(60)
            father = os.getpid()
            child(before_exec)
            sleep()
        father = child(parent)
        son = int(os.read(read, 20))
        os.kill(father, signal.SIGKILL)
        os.waitpid(father, 0)
        tell(status=os.waitstatus_to_exitcode(os.waitpid(son, 0)[1]))
        """
    )
    assert told["status"] == -signal.SIGTERM


# By the mark of a dead agent


@contextlib.contextmanager
def sleeper(code: str = "import time; time.sleep(60)", **environment: str):
    running = subprocess.Popen(
        [sys.executable, "-S", "-c", code], env=environment, start_new_session=True
    )
    try:
        # Until exec the child still has this process's environment.
        wait_for_environment(running.pid, environment)
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def wait_for_environment(pid: int, environment: dict[str, str]) -> None:
    wanted = {f"{name}={value}".encode() for name, value in environment.items()}
    wait_for(lambda: wanted <= set(proc.variables_of(pid)), "the process is started")


def test_the_marked_are_killed_and_nobody_else():
    mark = f"mark-{os.getpid()}"
    with (
        sleeper(**{processes.MARKER: mark}) as marked,
        sleeper(COLOUR="green", **{processes.MARKER: mark}, LAST="x") as marked_too,
        sleeper(**{processes.MARKER: mark + "-longer"}) as longer,
        sleeper(**{processes.MARKER: mark[:-1]}) as shorter,
        sleeper(OTHER=f"{processes.MARKER}={mark}") as mentioning,
        sleeper() as bare,
    ):
        killed = processes.kill_marked(mark)
        assert sorted(killed) == sorted([marked.pid, marked_too.pid])
        assert [p.wait(30) for p in (marked, marked_too)] == [-signal.SIGKILL] * 2
        assert all(p.poll() is None for p in (longer, shorter, mentioning, bare))


def test_the_mark_of_a_process_whose_main_thread_is_dead_is_found():
    mark = f"headless-{os.getpid()}"
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with sleeper(code, **{processes.MARKER: mark}) as headless:
        wait_for(lambda: proc.stat_of(headless.pid)[0] == b"Z", "its main thread is dead")
        assert processes.living_of(mark) == [headless.pid]
        assert processes.kill_marked(mark) == [headless.pid]


def test_the_killer_spares_itself():
    told = play("tell(killed=processes.kill_marked('mine'))", **{processes.MARKER: "mine"})
    assert told["killed"] == []


def test_a_mark_that_nobody_bears():
    assert processes.kill_marked(f"nobody-{os.getpid()}") == []


def test_what_is_born_during_the_search_is_found_too():
    mark = f"breeding-{os.getpid()}"
    code = (
        "import os, time\n"
        "while True:\n"
        "    if not os.fork():\n"
        "        os.setsid(); time.sleep(20); os._exit(0)\n"
        "    time.sleep(0.001)\n"
    )
    with sleeper(code, **{processes.MARKER: mark}):
        time.sleep(0.2)
        processes.kill_marked(mark)
    time.sleep(0.1)
    assert processes.kill_marked(mark) == []


# Variables

FOR_MPIRUN = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "PMIX_MCA_gds": "hash",
    "PRTE_MCA_plm_rsh_agent": "ssh",
}
"""Variables that a user sets for the mpirun of a command."""


def test_settings_of_mpirun_are_inherited():
    assert processes.inherited(FOR_MPIRUN) == FOR_MPIRUN


def test_variables_of_a_rank_of_mpirun_are_not():
    of_rank = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:5",
        "PMIX_RANK": "1",
        "PMIX_NAMESPACE": "a",
        "PRTE_LAUNCHED": "1",
        "PMI_RANK": "1",
    }
    kept = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMP_NUM_THREADS": "2"}
    assert processes.inherited({**of_rank, **kept}) == kept
