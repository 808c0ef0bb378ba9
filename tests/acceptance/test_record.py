"""Recording a replay table, on real ranks."""

import csv
import json
from pathlib import Path

import pytest

from autotune.errors import BadInput
from launchers.replay.tables import read_table
from tests.support.steering import TINY_WORKLOAD, ask, autotune, write_study

SPACE = {"micro_batch": [1, 2, 4], "log_interval": [1, 10]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    return tmp_path


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.errand
def test_a_table_holds_every_configuration_once(folder: Path) -> None:
    write_study(folder, search_space=SPACE)
    done = autotune("record", "study.yaml", "-o", "t.csv", "--refine", "1", cwd=folder, check=True)
    assert done.stdout.splitlines()[-1] == "t.csv"
    found = rows(folder / "t.csv")
    assert list(found[0]) == ["log_interval", "micro_batch", "throughput", "trial_seconds", "state"]
    chosen = {(row["micro_batch"], row["log_interval"]) for row in found}
    assert len(chosen) == len(found) == 6
    assert all(float(row["throughput"]) > 0 and row["state"] == "COMPLETE" for row in found)
    origin = json.loads((folder / "t.json").read_text())
    assert origin["workers"] == 2
    assert origin["noise"] > 0
    assert origin["runs"] == len(rows(folder / "t.runs.csv")) > 6
    read = read_table(folder / "t.csv")
    assert read.names == ["log_interval", "micro_batch"]
    assert {type(row["micro_batch"]) for row in read.rows} == {int}


@pytest.mark.errand
def test_what_is_recorded_is_not_run_again(folder: Path) -> None:
    write_study(folder, search_space=SPACE)
    command = ("record", "study.yaml", "-o", "t.csv", "--refine", "0")
    autotune(*command, cwd=folder, check=True)
    lines = (folder / "t.runs.csv").read_text().splitlines(keepends=True)
    (folder / "t.runs.csv").write_text("".join(lines[:4]))
    again = autotune(*command, cwd=folder, check=True)
    assert again.stdout.count("COMPLETE") == 3
    assert (folder / "t.runs.csv").read_text().startswith("".join(lines[:4]))
    assert len(rows(folder / "t.csv")) == 6


@pytest.mark.errand
def test_a_failure_is_a_row(folder: Path) -> None:
    workload = {"name": "tiny:build", "args": {"trouble": "raise", "above": 2}}
    write_study(folder, search_space=SPACE, workload=workload)
    autotune("record", "study.yaml", "-o", "t.csv", "--refine", "0", cwd=folder, check=True)
    states = {
        row["micro_batch"]: (row["state"], row["throughput"]) for row in rows(folder / "t.csv")
    }
    assert states["4"] == ("ERROR", "")
    assert states["2"][0] == "COMPLETE"


@pytest.mark.errand
def test_what_a_full_disk_has_failed_is_no_row(folder: Path) -> None:
    """Once there is room again, the same command goes on."""
    (folder / "full.py").write_text(_FULL)
    write_study(folder, search_space=SPACE, workload={"name": "full:build"})
    command = ("record", "study.yaml", "-o", "t.csv", "--refine", "0")
    (folder / "no_room").touch()
    done = autotune(*command, cwd=folder)
    assert done.returncode
    assert "a disk is full" in done.stderr
    assert "the same command goes on" in done.stderr
    (folder / "no_room").unlink()
    autotune(*command, cwd=folder, check=True)
    assert [row["state"] for row in rows(folder / "t.csv")] == ["COMPLETE"] * 6


_FULL = """
import errno, os
from pathlib import Path
import tiny

def build(**arguments):
    if Path("no_room").exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return tiny.build(**arguments)
"""


@pytest.mark.errand
def test_a_journal_of_another_space_is_left_alone(folder: Path) -> None:
    write_study(folder, search_space=SPACE)
    (folder / "t.runs.csv").write_text("pass,other,throughput,trial_seconds,state\n")
    done = autotune("record", "study.yaml", "-o", "t.csv", cwd=folder)
    assert done.returncode == 2
    assert "t.runs.csv has the columns pass, other" in done.stderr
    assert (folder / "t.runs.csv").read_text() == "pass,other,throughput,trial_seconds,state\n"


@pytest.mark.parametrize("name", ["gpt2.csv", "gpt2.json"])
def test_files_of_the_user_are_not_replaced(folder: Path, name: str) -> None:
    write_study(folder, search_space=SPACE)
    (folder / name).write_text("hidden: 768\n")
    before = {path.name for path in folder.iterdir()}
    done = ask("record", "study.yaml", "-o", "gpt2.csv", cwd=folder)
    assert done.returncode == 2
    assert f"{name} exists" in done.stderr
    assert (folder / name).read_text() == "hidden: 768\n"
    assert {path.name for path in folder.iterdir()} == before


def test_table_and_origin_are_two_files(folder: Path) -> None:
    write_study(folder, search_space=SPACE)
    done = ask("record", "study.yaml", "-o", "t.json", cwd=folder)
    assert done.returncode == 2
    assert "name the table *.csv" in done.stderr


@pytest.mark.parametrize("objective", [{"metric": "samples_per_joule"}, {"power_limit": 100.0}])
def test_study_of_energy_or_power_is_not_recorded(folder: Path, objective: dict) -> None:
    write_study(folder, search_space=SPACE, objective={**objective, "global_batch_size": "free"})
    done = ask("record", "study.yaml", "-o", "t.csv", cwd=folder)
    assert done.returncode == 2
    assert "a table tells no energy" in done.stderr
    assert not (folder / "t.runs.csv").exists()


def test_a_table_without_its_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("micro_batch,throughput\n1,2\n")
    with pytest.raises(BadInput, match="no column state, trial_seconds"):
        read_table(tmp_path / "t.csv")
