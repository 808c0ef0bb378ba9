"""A command as a rank runs it: how its end is judged, and what it prints."""

import itertools
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from autotune.worker import failure
from autotune.worker.files import TrialFiles
from autotune.worker.protocol import Command, Outcome
from autotune.worker.rank.command_run import CommandRun
from autotune.worker.rank.line import RankLine
from autotune.worker.rank.readings import OutputLines
from tests.support.trials import trial


class Left(Exception):
    """End of a rank."""


class Line(RankLine):
    """Line to an agent that listens to nothing but the end."""

    def __init__(self) -> None:
        super().__init__(multiprocessing.Pipe()[0], 0, lambda: None)

    def leave(
        self, outcome: Outcome | None, cause: str, *, ended_after: int | None = None, **_: Any
    ) -> NoReturn:
        raise Left(outcome, cause, ended_after)


@pytest.mark.parametrize(
    ("kills", "status", "outcome"),
    [(3, 1, Outcome.ERROR), (4, 1, Outcome.OOM), (4, 137, Outcome.OOM), (4, 0, Outcome.ERROR)],
)
def test_kill_for_want_of_memory_below_a_launcher_is_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int, status: int, outcome: Outcome
) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 3\n")
    monkeypatch.setattr(failure, "_OOM_KILL_COUNTERS", (counter,))
    text = f"echo oom_kill {kills} > {counter}; exit {status}"
    command = Command(("/bin/sh", "-c", text), str(tmp_path / "own"))
    request = trial(tmp_path, "", command=command)
    run = CommandRun(request, command, Line())
    with pytest.raises(Left) as left:
        run.run()
    assert left.value.args[0] is outcome
    assert f"exit status {status}" in left.value.args[1]
    assert left.value.args[2] == (None if status else 0)


TRACEBACK = "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("printed", "outcome"),
    [
        ((TRACEBACK, "KeyError: lr"), Outcome.ERROR),
        ((TRACEBACK, "MemoryError"), Outcome.OOM),
        ((TRACEBACK, "ChildFailedError: train.py FAILED", "Signal 9 (SIGKILL)"), Outcome.OOM),
        (("starts",), Outcome.OOM),
    ],
)
def test_error_of_python_is_none_of_memory_though_another_process_was_killed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: tuple[str, ...], outcome: Outcome
) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 3\n")
    monkeypatch.setattr(failure, "_OOM_KILL_COUNTERS", (counter,))
    command = Command(
        ("/bin/sh", "-c", f"echo oom_kill 4 > {counter}; exit 1"), str(tmp_path / "own")
    )
    request = trial(tmp_path, "", command=command)
    log = TrialFiles(Path(request.log_dir)).log(0)
    log.parent.mkdir(parents=True)
    log.write_text("\n".join(printed))
    run = CommandRun(request, command, Line())
    with pytest.raises(Left) as left:
        run.run()
    assert left.value.args[0] is outcome


class Printed:
    """Output of a command."""

    def __init__(self) -> None:
        output, self._end = os.pipe()
        self._output = os.fdopen(output, "rb")
        self.lines = OutputLines(self._output, os.open(os.devnull, os.O_WRONLY))

    def write(self, text: str) -> None:
        os.write(self._end, text.encode())

    def close(self) -> None:
        os.close(self._end)
        self._output.close()


@pytest.fixture
def printed() -> Iterator[Printed]:
    found = Printed()
    yield found
    found.close()


def test_reading_comes_back_though_more_is_printed_than_is_read(printed: Printed) -> None:
    printed.write("line\n")
    seen = 0
    for _ in itertools.islice(printed.lines.read(), 1000):
        printed.write("line\n")
        seen += 1
    assert seen < 1000
    assert list(printed.lines.read())


def test_line_that_comes_in_parts_is_one(printed: Printed) -> None:
    found: list[str] = []
    for part in ("12.5 ", "samples", "/s\r", "\n13", ".5 samples/s\n14"):
        printed.write(part)
        found += printed.lines.read()
    assert found == ["12.5 samples/s", "13.5 samples/s"]
