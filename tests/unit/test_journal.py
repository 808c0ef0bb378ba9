"""The journal of a recording: what it holds stays, whatever happens while it is opened."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.errors import BadInput
from autotune.standalone.recording import Journal, Run

RUNS = [Run(0, {"micro_batch": 2**n}, 10.0 + n, 1.0, "COMPLETE") for n in range(20)]


@contextlib.contextmanager
def no_file_longer_than(most: int) -> Iterator[None]:
    """As on a disk that is full: what is written beyond that is refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """A journal whose machine died in the middle of a line."""
    path = tmp_path / "table.runs.csv"
    journal = Journal(path, ["micro_batch"])
    for run in RUNS:
        journal.add(run)
    with path.open("a") as file:
        file.write("0,10485")
    return path


def test_half_a_line_is_cut_off(torn: Path) -> None:
    assert Journal(torn, ["micro_batch"]).runs == RUNS
    assert torn.read_text().endswith("COMPLETE\n")
    assert [path.name for path in torn.parent.iterdir()] == [torn.name]


def test_a_full_disk_meanwhile_costs_nothing(torn: Path) -> None:
    before = torn.read_bytes()
    with no_file_longer_than(100), pytest.raises(OSError, match="File too large"):
        Journal(torn, ["micro_batch"])
    assert torn.read_bytes() == before
    assert Journal(torn, ["micro_batch"]).runs == RUNS


@pytest.mark.parametrize("text", ["name,score\nann,1", "one line of notes", "micro_batch"])
def test_a_file_of_others_keeps_its_last_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "table.runs.csv").write_text(text)
    with pytest.raises(BadInput, match="choose another output"):
        Journal(tmp_path / "table.runs.csv", ["micro_batch"])
    assert (tmp_path / "table.runs.csv").read_text() == text


def test_a_first_line_that_a_crash_has_cut_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "table.runs.csv").write_text("pass,micro_b")
    assert Journal(tmp_path / "table.runs.csv", ["micro_batch"]).runs == []
    first = "pass,micro_batch,throughput,trial_seconds,state\n"
    assert (tmp_path / "table.runs.csv").read_text() == first
