"""The journal of a recording: what it holds stays, whatever happens while it is opened."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

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
