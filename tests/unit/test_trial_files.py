"""The files of a trial: their ends, and how long they may become."""

import subprocess
import time
from pathlib import Path

import pytest

from autotune.worker.files import TrialFiles
from autotune.worker.observers.progress import Progress

GIB = 2**30
MIB = 2**20


@pytest.fixture
def files(tmp_path: Path) -> TrialFiles:
    return TrialFiles(tmp_path)


def bytes_read() -> int:
    """By this process, since it started."""
    counted = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counted["rchar"])


def test_the_end_of_a_log_is_read_without_the_rest(files: TrialFiles) -> None:
    with files.log(0).open("wb") as log:
        log.truncate(64 * GIB)  # a hole: it would not fit in memory
        log.seek(0, 2)
        log.write("last wörds".encode())
    before = bytes_read()
    assert files.tail(0, 11) == "last wörds"
    assert bytes_read() - before < MIB
    assert files.tail(1, 10) == ""
    files.log(2).write_text("short")
    assert files.tail(2, 6000) == "short"


def test_a_log_that_is_too_long_is_cut_to_its_end(files: TrialFiles) -> None:
    with subprocess.Popen(
        [
            "sh",
            "-c",
            'exec >>"$0"; yes first | head -c 60000; echo last; read _; echo after',
            files.log(0),
        ],
        stdin=subprocess.PIPE,
    ) as printing:
        while not files.tail(0, 100).endswith("last\n"):
            time.sleep(0.01)
        files.cut(0, 200_000)
        assert files.log(0).stat().st_size == 60_005
        files.cut(0, 1000)
        assert printing.stdin is not None
        printing.stdin.write(b"\n")
    content = files.log(0).read_text()
    assert content.startswith("[autotune: the log was longer than 1000 bytes; here is its end]\n")
    assert content.endswith("first\nlast\nafter\n")
    assert len(content) < 1000
    files.cut(1)  # there is none


def test_whoever_counts_in_an_older_file_is_not_taken_for_progress(files: TrialFiles) -> None:
    """A rank of an earlier trial, in a folder of the same name."""
    Progress.create(files.progress(0), 1)
    older = Progress(files.progress(0))
    newer = Progress.create(files.progress(0), 1)
    older.counter(0)()
    assert newer[0] == 0
    Progress(files.progress(0)).counter(0)()
    assert newer[0] == 1


class TestTaken:
    """By a machine that does not share the folder."""

    def test_logs_traces_and_surveys_are_given_and_gone(self, tmp_path: Path) -> None:
        files = TrialFiles(tmp_path / "trial")
        files.folder.mkdir()
        files.log(1).write_bytes(b"printed\xff\n")
        files.trace(1).write_bytes(b"\x1f\x8b")
        files.survey(1).write_bytes(b"{}")
        files.progress(0).write_bytes(b"counters")
        assert files.taken("token") == {
            "rank-1.log": b"printed\xff\n",
            "trace-1.json.gz": b"\x1f\x8b",
            "survey-1.json": b"{}",
        }
        assert not files.folder.exists()
        assert files.taken("token") == {}

    def test_the_same_folder_stays(self, tmp_path: Path) -> None:
        files = TrialFiles(tmp_path)
        files.log(1).write_text("printed\n")
        (tmp_path / "token").touch()
        assert files.taken("token") == {}
        assert files.log(1).read_text() == "printed\n"

    def test_a_long_log_is_its_end(self, tmp_path: Path) -> None:
        files = TrialFiles(tmp_path / "trial")
        files.folder.mkdir()
        files.log(0).write_bytes(b"x" * 2**21 + b"end")
        [content] = files.taken("token").values()
        assert len(content) == 2**20
        assert content.endswith(b"xend")
