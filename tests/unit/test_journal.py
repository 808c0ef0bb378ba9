"""The journal of a recording: what it holds stays, whatever happens while it is opened."""

import contextlib
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.config import StudySpec
from autotune.errors import BadInput
from autotune.standalone.recording import Journal, Run, _check_origin
from launchers.replay import Answer, ReplayLauncher
from launchers.replay.launcher import ENVIRONMENT

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


@pytest.mark.parametrize(
    "line",
    ["\0" * 40, "0,16", "first,16,10.0,1.0,COMPLETE", "0,{,1,1,ERROR"],
    ids=["zeros", "short", "no number", "no YAML"],
)
def test_line_that_is_no_run_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "table.runs.csv"
    journal = Journal(path, ["micro_batch"])
    journal.add(RUNS[0])
    with path.open("a") as file:
        file.write(f"{line}\n")
    journal.add(RUNS[1])
    before = path.read_bytes()
    with pytest.raises(BadInput, match=r"table\.runs\.csv, line 3: no run of a recording"):
        Journal(path, ["micro_batch"])
    assert path.read_bytes() == before


SPEC = StudySpec(name="a", workload={"script": "train.py"}, search_space={"bucket_cap_mb": [5, 25]})


def machine(workers: int, *devices: str) -> ReplayLauncher:
    described = [{"name": name, "memory_bytes": 2**34, "capability": [8, 0]} for name in devices]
    environment = {**ENVIRONMENT, "devices": described}
    return ReplayLauncher(lambda _: Answer(), workers=workers, environment=environment)


@pytest.mark.parametrize(
    ("there", "here", "told"),
    [
        (machine(2, "A100", "A100"), machine(2, "H100", "H100"), "2 ranks on A100, and .* on H100"),
        (machine(4, "A100"), machine(8, "A100"), "4 ranks on A100, and here are 8 ranks on A100"),
        (machine(2), machine(2, "A100"), "2 ranks on replayed processor, and here .* on A100"),
    ],
)
def test_recording_of_another_machine_is_not_continued(
    tmp_path: Path, there: ReplayLauncher, here: ReplayLauncher, told: str
) -> None:
    table = tmp_path / "t.csv"
    _check_origin(table, SPEC, there, [])
    _check_origin(table, SPEC, there, RUNS)
    with pytest.raises(BadInput, match=told):
        _check_origin(table, SPEC, here, RUNS)


@pytest.mark.parametrize("later", [{"of_tomorrow": 1}, {"baseline": {"of_tomorrow": 1}}])
def test_recording_of_another_version_is_not_continued(
    tmp_path: Path, later: dict[str, Any]
) -> None:
    table, launcher = tmp_path / "t.csv", machine(2)
    _check_origin(table, SPEC, launcher, [])
    beside = tmp_path / "t.json"
    origin = json.loads(beside.read_text())
    origin["study"].update(later)
    beside.write_text(json.dumps(origin))
    with pytest.raises(BadInput, match=r"t\.json was recorded by another version of autotune"):
        _check_origin(table, SPEC, launcher, RUNS)
