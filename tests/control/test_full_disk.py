"""A disk that is full while a study runs: nothing of that is held against configurations."""

from typing import Any

import pytest

from autotune.worker.protocol import Outcome
from launchers.replay import Launch
from tests.control.replayed import PLAIN, Replayed
from tests.support.behaviours import where
from tests.unit.database.opening import in_private_mounts, needs_mounts

NO_SPACE = "rank 0: OSError: [Errno 28] No space left on device"
TEN = {"trials": 10, "min_improvement": 0}


def test_a_trial_without_room_is_launched_again(played: Replayed) -> None:
    def first(launch: Launch) -> bool:
        return "/3-search-1/" in launch.request.trial

    played.on(where(PLAIN, first, outcome=Outcome.ERROR, cause=NO_SPACE)).run(budget=TEN)
    states = [(a.result.state, a.result.cause) for a in played.attempts("search") if a.trial == 3]
    assert states == [("LOST", f"a disk was full: {NO_SPACE}"), ("COMPLETE", "")]
    assert f"Trial 3: a disk was full: {NO_SPACE}; it is launched again." in played.said()
    played.assert_complete(trials=10)


def test_a_configuration_that_fills_the_disk_each_time_is_a_crash(played: Replayed) -> None:
    def large(launch: Launch) -> bool:
        return launch.knobs["micro_batch"] == 16

    played.on(where(PLAIN, large, outcome=Outcome.ERROR, cause=NO_SPACE)).run(budget=TEN)
    states = [a.result.state for a in played.attempts("search") if a.knobs["micro_batch"] == 16]
    assert sorted(states) == ["CRASH"] * 2 + ["LOST"] * 4
    assert played.verdict["knobs"]["micro_batch"] == 8
    played.assert_complete(trials=10)


SMALL_DISK = """
import subprocess, sys, tempfile, threading
from pathlib import Path
from launchers.replay import Launch
from storage import Database, MessageKind
from tests.control.replayed import PLAIN, Replayed
from tests.support.waiting import wait_for

disk = Path("disk").absolute()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
inside = sys.argv[1] == "inside"
folder = disk / "project"
folder.mkdir()
database = Database(f"sqlite:///{folder if inside else Path.cwd()}/autotune.db")
played = Replayed(folder, database)
filler, launches = disk / "filler", []

def told():
    study = played.study()
    return [m for m in played.repository.messages.of(study.id) if m.kind == MessageKind.WAITING]

def free_once_it_waits():
    wait_for((lambda: waits.is_set()) if inside else told, "the study waits for room")
    filler.unlink()

waits = threading.Event()
if inside:
    import logging
    class Heard(logging.Handler):
        def emit(self, record):
            if "no room is left on the disk of" in record.getMessage():
                print(record.getMessage())
                waits.set()
    logging.getLogger("autotune").addHandler(Heard())

def filling(launch):
    launches.append(launch.request.trial)
    if len(launches) == 4:
        threading.Thread(target=free_once_it_waits).start()
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
    return PLAIN(launch)

played.on(filling).run(budget={"trials": 10, "min_improvement": 0})
played.assert_complete(trials=10)
print("complete", [m.text for m in told()])
"""


NO_MORE_FILES = """
import itertools, subprocess, threading
from pathlib import Path
from storage import Database, MessageKind
from tests.control.replayed import Replayed
from tests.support.waiting import wait_for

disk = Path("disk").absolute()
subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=64", "tmpfs", disk], check=True)
played = Replayed(disk, Database(f"sqlite:///{Path.cwd()}/autotune.db"))
played.submit(budget={"trials": 2, "min_improvement": 0})
files = []
try:
    for number in itertools.count():
        (disk / f"file {number}").touch()
        files.append(disk / f"file {number}")
except OSError:
    pass

def told():
    found = played.repository.messages.of(played.study().id)
    return [message.text for message in found if message.kind == MessageKind.WAITING]

def free_once_it_waits():
    wait_for(told, "the study waits for room")
    for file in files:
        file.unlink()

threading.Thread(target=free_once_it_waits, daemon=True).start()
played.serve()
assert played.study().error is None, played.study().error
played.assert_complete(trials=2)
print("complete", told())
"""


@needs_mounts
@pytest.mark.fault(12)
@pytest.mark.long
def test_a_study_waits_where_no_file_can_be_made_though_there_are_free_bytes(tmp_path: Any) -> None:
    """Under a quota the file system tells of room that this user does not get."""
    (tmp_path / "disk").mkdir()
    found = in_private_mounts(NO_MORE_FILES, cwd=tmp_path)
    assert "complete" in found.stdout, found.stdout + found.stderr
    assert f"no room is left on the disk of {tmp_path}/disk" in found.stdout


@pytest.mark.long
@needs_mounts
@pytest.mark.fault(12)
@pytest.mark.parametrize("database", ["inside", pytest.param("outside", marks=pytest.mark.slow)])
def test_the_study_goes_on_once_there_is_room(tmp_path: Any, database: str) -> None:
    """Its folder is on the full disk, and its database is there, too, or not."""
    (tmp_path / "disk").mkdir()
    found = in_private_mounts(SMALL_DISK, database, cwd=tmp_path)
    assert "complete" in found.stdout, found.stdout + found.stderr
    assert "Traceback" not in found.stderr
    waiting = f"no room is left on the disk of {tmp_path}/disk/project"
    assert waiting in found.stdout
