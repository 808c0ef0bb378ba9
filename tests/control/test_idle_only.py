"""A daemon that begins studies on idle devices only."""

import os
import threading
from pathlib import Path

import pytest

from autotune.service import daemon as daemons
from autotune.service import idleness
from autotune.service.daemon import Daemon
from autotune.service.queues import this_queue
from launchers import layout
from tests.control.replayed import Replayed
from tests.support.waiting import wait_for

SHORT = {
    "budget": {"trials": 2, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2},
}


def test_study_waits_for_other_load_and_its_time_does_not_run(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ["process 7, train uses the devices"]
    monkeypatch.setattr(idleness, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(idleness, "load_of_others", lambda: load[0])
    played.submit(**SHORT)
    daemon = Daemon(played.repository, this_queue(), idleness.when_idle(played.machine.open))
    thread = threading.Thread(target=daemon.serve, kwargs={"idle_seconds": 0.0})
    thread.start()
    wait_for(lambda: load[0] in played.said(), "it says what it waits for")
    assert played.study().elapsed == 0.0
    assert played.attempts() == []
    load[0] = ""
    thread.join(120)
    played.assert_complete(trials=2)


@pytest.mark.parametrize(("busy", "loaded"), [(10, False), (90, True)])
def test_processors_count_as_loaded_above_a_share_of_their_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, busy: int, loaded: bool
) -> None:
    stat = tmp_path / "stat"
    own = min(os.sched_getaffinity(0))
    monkeypatch.setattr(layout, "processors", lambda: [f"processor {own}"])
    monkeypatch.setattr(idleness, "_STAT", stat)
    lines = [f"cpu{own} {used} 0 0 {total - used} 0 0 0" for used, total in ((0, 100), (busy, 200))]
    monkeypatch.setattr(idleness.time, "sleep", lambda _: stat.write_text(lines[1]))
    stat.write_text(lines[0])
    assert bool(idleness._on_processors()) == loaded


def on_two_devices(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> Path:
    """A machine whose driver answers by this shell script."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(layout, "visible_devices", lambda: ["0", "1"])
    return program


def test_study_stays_in_the_queue_while_the_driver_does_not_answer(
    played: Replayed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing = tmp_path / "failing"
    failing.touch()
    on_two_devices(monkeypatch, tmp_path, f"test ! -e '{failing}'")
    monkeypatch.setattr(daemons, "FIRST_SECONDS", 0.05)
    played.submit(**SHORT)
    daemon = Daemon(played.repository, this_queue(), idleness.when_idle(played.machine.open))
    thread = threading.Thread(target=daemon.serve, kwargs={"idle_seconds": 0.0})
    thread.start()
    wait_for(
        lambda: "tried again now and then" in played.said() or played.study().error,
        "the study has been tried",
    )
    failing.unlink()
    thread.join(120)
    assert "nvidia-smi does not tell what runs" in played.said()
    played.assert_complete(trials=2)


@pytest.mark.parametrize("printed", ["", "77, python\n"])
def test_devices_are_idle_without_a_compute_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: str
) -> None:
    on_two_devices(monkeypatch, tmp_path, f"printf '{printed}'")
    assert bool(idleness.load_of_others()) == bool(printed)
