"""Trials of a script that writes: the files of its user stay as they are, whatever protects them."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.worker.sandbox import scratch
from tests.contract.files import footprint as marks
from tests.contract.files.footprint import footprint
from tests.support.steering import alive
from tests.support.stranger import USER
from tests.support.waiting import wait_for

PREFIXES = {
    "overlay": (),
    "user": (sys.executable, "-m", "tests.support.ordinary_user"),
    "copies": (sys.executable, "-m", "tests.support.without_namespaces"),
    "nothing": (sys.executable, "-m", "tests.support.without_namespaces", "--without-landlock"),
}
"""Who runs trials and where -> what a command begins with."""
TOLD = {"overlay": "overlay", "user": "overlay", "copies": "copies"}
ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def ended(started: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kill the process and those below it at the end, if they are still there."""
    with started:
        try:
            yield started
        finally:
            kill(started)


def kill(started: subprocess.Popen[str]) -> list[int]:
    """Kill the process and those below it; return the latter."""
    below = children(started.pid) if started.poll() is None else []
    started.kill()
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    started.wait()
    return below


class Place:
    """A project and a home, which are watched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = marks.project(folder / "project")
        self.home = marks.home(folder / "home")
        self.before = self.now()

    def now(self) -> tuple[marks.Footprint, marks.Footprint]:
        return footprint(self.project), footprint(self.home)

    def spawn(self, how: str, *arguments: str) -> subprocess.Popen[str]:
        """Start trials there."""
        module = [sys.executable, "-m", "tests.contract.files.trials"]
        return subprocess.Popen(
            [*PREFIXES[how], *module, str(self.project), str(self.folder / "logs"), *arguments],
            env={**os.environ, "HOME": str(self.home), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, how: str, *arguments: str) -> list[dict[str, str | None]]:
        """What became of trials there."""
        with ended(self.spawn(how, *arguments)) as started:
            output, _ = started.communicate(timeout=200)
        told: list[dict[str, str | None]] = json.loads(output.splitlines()[-1])
        return told


@pytest.fixture
def place() -> Iterator[Place]:
    # Not pytest's own folder, which no other user may enter.
    folder = Path(tempfile.mkdtemp(prefix="autotune-files-"))
    folder.chmod(0o755)
    try:
        yield Place(folder)
    finally:
        shutil.rmtree(folder)


def give_to_user(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for path in (place.folder, *place.folder.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)
    place.before = place.now()


@pytest.mark.long
@pytest.mark.parametrize("how", TOLD)
def test_files_after_trials_that_write_are_as_before(place: Place, how: str) -> None:
    if how == "user":
        give_to_user(place)
    programs = () if how == "copies" else ("--programs",)
    told = place.run(how, *programs)
    assert [trial["cause"] for trial in told] == ["", ""], (
        place.folder / "logs/0/rank-0.log"
    ).read_text()
    assert {trial["how"] for trial in told} == {TOLD[how]}
    assert place.now() == place.before


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "beforehand"),
    [
        ("overlay", ["calm"]),
        pytest.param("user", ["calm"], marks=pytest.mark.errand),
        ("copies", []),
    ],
)
def test_library_that_writes_when_imported_is_imported_where_files_are_protected(
    place: Place, monkeypatch: pytest.MonkeyPatch, how: str, beforehand: list[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(marks.install_libraries(place.home)))
    (place.project / "train.py").write_text(marks.USES_LIBRARIES)
    place.before = place.now()
    if how == "user":
        give_to_user(place)
    told = place.run(how)
    assert [trial["cause"] for trial in told] == ["", ""]
    assert place.now() == place.before
    second = (place.folder / "logs/1/rank-0.log").read_text()
    assert f"beforehand {json.dumps(beforehand)}" in second.splitlines()


@pytest.mark.long
def test_program_that_writes_past_copies_is_refused(place: Place) -> None:
    told = place.run("copies", "--programs")
    assert "may_write" in str(told[0]["cause"])
    assert "'by-cp.py': Permission denied" in (place.folder / "logs/0/rank-0.log").read_text()
    assert place.now() == place.before


@pytest.mark.long
def test_trial_that_nothing_protects_is_not_started(place: Place) -> None:
    told = place.run("nothing")
    assert told[0]["outcome"] == "ERROR"
    assert "may_write" in str(told[0]["cause"])
    assert place.now() == place.before


@pytest.mark.long
@pytest.mark.parametrize("how", ["overlay", "copies"])
def test_files_after_a_kill_in_mid_trial_are_as_before(place: Place, how: str) -> None:
    progress = place.folder / "logs/0/progress-0"
    with ended(place.spawn(how, "--endless")) as started:
        wait_for(lambda: progress.exists() and any(progress.read_bytes()), "the script trains")
        ours = kill(started)
    wait_for(lambda: not any(map(alive, ours)), "all processes have ended")
    assert place.now() == place.before
    assert "autotune-sandbox" not in Path("/proc/self/mountinfo").read_text()
    # Tests beside this one leave folders as well; what cannot be removed is found each time.
    wait_for(lambda: not scratch.sweep(), "nothing is left behind")


def children(pid: int) -> list[int]:
    """All processes below one."""
    below = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return below + [deeper for child in below for deeper in children(child)]
