"""Planted bottlenecks are named, first."""

import json
import re
from pathlib import Path

import pytest

from autotune.paths import StudyPaths, diagnosis_mark
from tests.support.steering import autotune, write_study

WORKLOADS = Path(__file__).parent.parent / "workloads"


def diagnosed(folder: Path, factory: str, args: dict, baseline: dict) -> dict:
    (folder / "bottlenecks.py").write_text((WORKLOADS / "bottlenecks.py").read_text())
    workload = {"name": factory, "args": args}
    write_study(folder, workload=workload, baseline=baseline, search_space={"micro_batch": [1, 2]})
    done = autotune("diagnose", "study.yaml", "--json", cwd=folder, check=True)
    return json.loads(done.stdout)


@pytest.mark.errand
@pytest.mark.parametrize(
    ("planted", "baseline", "named", "answer"),
    [
        pytest.param("loader", {}, "loader", "num_workers", marks=pytest.mark.errand),
        ("buckets", {"bucket_cap_mb": 0.01}, "communication", "bucket_cap_mb"),
        pytest.param(
            "reading",
            {"log_interval": 1},
            "synchronisation",
            "log_interval",
            marks=pytest.mark.errand,
        ),
        pytest.param("rank", {}, "straggler", None, marks=pytest.mark.errand),
    ],
)
def test_a_planted_bottleneck_is_named_first(
    tmp_path: Path, planted: str, baseline: dict, named: str, answer: str | None
) -> None:
    found = diagnosed(tmp_path, "bottlenecks:build", {"planted": planted}, baseline)
    first = found["findings"][0]
    assert first["name"] == named, found
    assert (answer is None and not first["knobs"]) or answer in first["knobs"]
    assert all(Path(trace).exists() for trace in found["traces"])
    assert diagnosis_mark(StudyPaths(tmp_path, "tiny").diagnosis).exists()
    assert len(found["traces"]) == 2


@pytest.mark.errand
def test_a_batch_that_leaves_its_place_and_unequal_memory_are_found(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, "bottlenecks:build", {"planted": "layout"}, {"micro_batch": 3})
    texts = {finding["name"]: finding["text"] for finding in found["findings"]}
    assert "(3, 5, 4, 8) to (4, 3, 5, 8)" in texts["layout"]
    found = diagnosed(tmp_path, "bottlenecks:build", {"planted": "memory"}, {})
    texts = {finding["name"]: finding["text"] for finding in found["findings"]}
    assert "rank 1 takes" in texts["memory"]


@pytest.mark.errand
def test_a_diagnosis_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "bottlenecks.py").write_text((WORKLOADS / "bottlenecks.py").read_text())
    write_study(
        tmp_path,
        workload={"name": "bottlenecks:build", "args": {"planted": "loader"}},
        search_space={"micro_batch": [1, 2]},
        objective={
            "metric": "samples_per_joule",
            "global_batch_size": "free",
        },  # time is told all the same
    )
    done = autotune("diagnose", "study.yaml", cwd=tmp_path, check=True)
    throughput, _, first, knobs, *_ = done.stdout.splitlines()
    assert re.match(
        r"Throughput of the baseline: [\d.,]+ samples/s; \d\.\d\dx with twice", throughput
    )
    assert first.startswith("1. loader, ")
    assert "num_workers" in knobs
    assert "*" not in done.stdout
    named = {name for line in done.stdout.splitlines() if "Knobs" in line for name in line.split()}
    assert not {"attention,", "qkv_streams,", "loss_chunks,", "channels_last,"} & named
    assert "ui.perfetto.dev" in done.stdout


@pytest.mark.errand
def test_a_baseline_that_fails_is_told_with_its_output(tmp_path: Path) -> None:
    (tmp_path / "bottlenecks.py").write_text((WORKLOADS / "bottlenecks.py").read_text())
    write_study(tmp_path, workload={"name": "bottlenecks:build", "args": {"planted": "nothing"}})
    done = autotune("diagnose", "study.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "the baseline ended in ERROR" in done.stderr
    assert "KeyError" in done.stderr
