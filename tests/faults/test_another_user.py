"""Another user of the same machine, with an account and nothing else, beside somebody's study."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from autotune.worker.node.agent_process import AgentProcess
from autotune.worker.protocol import (
    Hello,
    NodeReport,
    Placement,
    Preload,
    StartTrial,
)
from launchers import Resources, section_of
from launchers.reservation import IGNORED_USERS
from tests.support import stranger
from tests.support.steering import StudyFolder, study_folder
from tests.support.trials import heard, trial
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.fault(30), pytest.mark.timeout(900)]

SECRET = "planted-hunter2"
READS = """
found = []
for folder, folders, files in os.walk(sys.argv[1]):
    for name in [*folders, *files]:
        path = os.path.join(folder, name)
        try:
            found.append((os.listdir if name in folders else open)(path) and path)
        except OSError:
            pass
print("\\n".join(found))
"""
SQUATS = """
sockets = []
for processor in os.sched_getaffinity(0):
    for name in ("", "/1", "/2"):
        sockets.append(socket.socket(socket.AF_UNIX))
        sockets[-1].bind(f"\\0autotune/processor {processor}{name}")
        sockets[-1].listen(1)
print("there", flush=True)
time.sleep(600)
"""
ASKS = """
for method in ("GET", "POST", "DELETE"):
    asked = urllib.request.Request(sys.argv[1], method=method, headers={"Cookie": "autotune=1"})
    try:
        print(urllib.request.urlopen(asked).status)
    except urllib.error.HTTPError as error:
        print(error.code)
for entry in os.listdir("/proc"):
    try:
        told = entry.isdigit() and open(f"/proc/{entry}/cmdline").read()
        if told and sys.argv[2] in told and entry != str(os.getpid()):
            print("told by", told)
    except OSError:
        pass
"""


@pytest.fixture
def beside() -> Iterator[StudyFolder]:
    """A study in a folder that every user may enter, as below a home that is open."""
    with tempfile.TemporaryDirectory(prefix="autotune-open-") as parent:
        Path(parent).chmod(0o755)
        with study_folder(Path(parent)) as found:
            found.folder.chmod(0o755)
            yield found


def readable(folder: Path) -> set[str]:
    """What the other user can read below a folder."""
    found = stranger.told("import os, sys", READS, str(folder)).split()
    return {str(Path(path).relative_to(folder)) for path in found}


@pytest.mark.slow
def test_what_a_study_stores_and_prints_is_nobody_elses_to_read(beside: StudyFolder) -> None:
    (beside.folder / "telling.py").write_text(
        f"import tiny\n\ndef build(**args):\n    print({SECRET!r})\n    return tiny.build(**args)\n"
    )
    beside.write(workload="telling:build", budget={"trials": 1}, logs="all")
    assert beside.run("start", "study.yaml").returncode == 0
    beside.wait_nothing_runs()
    logs = beside.folder / ".autotune"
    assert any(SECRET in log.read_text() for log in logs.rglob("rank-*.log")), "it was printed"
    assert (logs / "daemon.log").exists()
    theirs = readable(beside.folder)
    assert {"study.yaml", "telling.py", "best.yaml"} <= theirs
    assert not [path for path in theirs if path.startswith((".autotune", "autotune.db"))]
    kept = [beside.folder / "autotune.db", *beside.folder.glob("autotune.db-*")]
    assert {stat.S_IMODE(file.stat().st_mode) for file in kept} == {0o600}


@pytest.mark.sample
def test_nobody_else_reads_a_storage_while_it_is_written(beside: StudyFolder) -> None:
    """Nor what SQLite keeps beside it."""
    with beside.repository.database.writing():
        assert (beside.folder / "autotune.db-wal").exists()
        assert readable(beside.folder) == {"tiny.py"}


@pytest.mark.long
def test_nobody_else_drives_the_dashboard(beside: StudyFolder) -> None:
    beside.write()
    assert beside.ask("start", "study.yaml", "--detach").returncode == 0
    assert beside.ask("stop", beside.name).returncode == 0
    beside.wait_state("STOPPED")
    browser = beside.folder / "browser"
    browser.write_text('#!/bin/sh\nsleep 600 "$1"\n')
    browser.chmod(0o755)
    shown = beside.spawn(
        "dashboard", beside.name, "--port", "0", env={"BROWSER": f"{browser} %s &"}
    )
    try:
        line = wait_for(lambda: "?token=" in shown.output() and shown.output(), "it is there")
        link = next(word for word in line.split() if "?token=" in word)
        address, _, token = link.partition("?token=")
        asks = "import encodings.idna, os, sys, urllib.error, urllib.request"
        assert stranger.told(asks, ASKS, address, token).split() == ["403"] * 3
        [page] = (beside.folder / ".autotune").glob("*.html")
        assert link in page.read_text()
        assert not [path for path in readable(beside.folder) if path.endswith(".html")]
        assert urllib.request.urlopen(link).status == 200
    finally:
        shown.send(signal.SIGINT)
        shown.wait()


@pytest.mark.slow
def test_nobody_else_has_a_study_wait_for_ever(beside: StudyFolder) -> None:
    squatter = stranger.spawn("import os, socket, time", SQUATS)
    try:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "there\n"
        beside.write(budget={"trials": 1})
        asked = beside.spawn("start", "study.yaml", "--foreground")
        wait_for(
            lambda: f"process {squatter.pid} of user {stranger.NAME}" in asked.output(),
            "whom it waits for is named",
        )
        assert f"{IGNORED_USERS}={stranger.NAME}" in asked.output()
        assert beside.ask("stop", beside.name).returncode == 0
        asked.wait()
        done = beside.run("resume", beside.name, "--foreground", env={IGNORED_USERS: stranger.NAME})
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        squatter.kill()
        squatter.communicate()


LOCKS = """
os.mkdir(sys.argv[1])
folder = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(folder, fcntl.LOCK_SH)
print("there", flush=True)
time.sleep(600)
"""


def test_nobody_else_has_an_agent_wait_for_a_lock() -> None:
    """Agents sweep what killed trials have left before they begin."""
    with tempfile.TemporaryDirectory(prefix="autotune-open-") as place:
        Path(place).chmod(0o1777)
        theirs = Path(place, f"autotune-sandbox-{os.geteuid()}")
        squatter = stranger.spawn("import fcntl, os, sys, time", LOCKS, str(theirs))
        try:
            assert squatter.stdout is not None
            assert squatter.stdout.readline() == "there\n"
            code = "from autotune.worker.sandbox import scratch; print(scratch.sweep())"
            swept = subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "TMPDIR": place},
                capture_output=True,
                text=True,
                timeout=300,
                check=True,
            )
            assert place not in swept.stdout
            assert theirs.is_dir()
        finally:
            squatter.kill()
            squatter.communicate()


JOINS = """
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False)
for prefix in sys.argv[2:]:
    for name in ("port", "0", "1", "rank_0", "rank_1", "default_pg/0//cpu//0/rank_0"):
        store.set(f"{prefix}/{name}", "not what they expect")
print("there")
"""


@pytest.mark.slow
def test_what_others_leave_in_a_store_beforehand_is_not_met(project: Path) -> None:
    """Its name is known to whoever knows how trials are numbered."""
    agent = AgentProcess("127.0.0.1", str(project / "agent.log"))

    try:
        agent.send(Preload().to_line())
        hello = heard(agent, Hello)
        assert isinstance(hello, Hello)
        name = "1/0-search-1/1"
        joins = "import sys\nfrom torch.distributed import TCPStore\n"
        stranger.told(joins, JOINS, str(hello.store_port), name, f"{name}/")
        place = Placement(0, 0, 2, "127.0.0.1", hello.store_port, hello.interface, "secret")
        asked = trial(project, trial=name)
        agent.send(StartTrial(asked, place).to_line())
        report = heard(agent, NodeReport)
        assert isinstance(report, NodeReport)
        assert [end.outcome for end in report.ends] == [None, None]
    finally:
        agent.close()


@pytest.mark.slow
def test_every_launch_has_a_secret_of_its_own(project: Path) -> None:
    keys: list[str] = []
    with section_of("local").open(Resources(2, 0, 1, 1), str(project)) as launcher:
        [slot] = launcher.slots
        for _ in range(2):
            report = slot.run_solo(trial(project, trial="t"), lambda _: True)
            assert report.outcome is None, report.cause
        port = slot._agents._store_port  # type: ignore[attr-defined]
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        if not hasattr(store, "list_keys"):
            pytest.skip("this PyTorch cannot list keys")
        keys = store.list_keys()
    under = {key.removeprefix("t/").partition("/")[0] for key in keys}
    assert len(under) == 2
    assert {len(secret) for secret in under} == {32}


@pytest.mark.slow
def test_a_ray_of_our_own_is_for_nobody_without_its_token(project: Path) -> None:
    theirs = {name: value for name, value in os.environ.items() if "RAY_AUTH" not in name}
    with section_of("ray").open(Resources(1, 0, 1, 1), str(project)) as launcher:
        address = launcher.address  # type: ignore[attr-defined]
        code = "import ray, sys; ray.init(address=sys.argv[1]); print(ray.nodes())"
        for more in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "guessed"}):
            joined = subprocess.run(
                [sys.executable, "-c", code, address],
                env={**theirs, **more, "HOME": str(project)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert joined.returncode != 0
            assert joined.stdout == ""
        assert "InvalidAuthToken" in joined.stderr
        report = launcher.slots[0].run_solo(trial(project, world_size=1), lambda _: True)
        assert report.outcome is None, report.cause
