"""Studies over training scripts, as a user would give them."""

import json
from pathlib import Path

import pytest
import yaml

from autotune.export.best import load
from autotune.export.tuned_job import script_job
from storage import Purpose
from tests.support.steering import StudyFolder, quick_measurement

SCRIPTS = Path(__file__).parent.parent / "scripts"
OURS = {
    "script": "plain_ddp.py",
    "args": ["--batch-size", "4", "--epochs", "100000"],
    "flags": {"micro_batch": "--batch-size", "accumulation_steps": "--accumulate"},
}


def write(tiny: StudyFolder, workload: dict, **changes: object) -> None:
    for script in SCRIPTS.glob("*.py"):
        (tiny.folder / script.name).write_text(script.read_text())
    tiny.write(workload=workload, **changes)


@pytest.mark.long
def test_doctor_says_knob_by_knob_what_takes_effect(tiny: StudyFolder) -> None:
    """telling.py takes no --accumulate: it would be measured as what it is not."""
    script = {
        "script": "telling.py",
        "args": ["--batch", "4"],
        "flags": {
            "micro_batch": "--batch",
            "accumulation_steps": "--accumulate",
            "num_workers": "--workers",
        },
    }
    space = {
        "micro_batch": [4, 8],
        "accumulation_steps": [1, 2],
        "bucket_cap_mb": [5, 25],
        "num_workers": [0, 1],
        "gradient_compression": ["none", "fp16"],
    }
    write(
        tiny,
        script,
        search_space=space,
        baseline={"accumulation_steps": 1, "num_workers": 0},
        objective={"global_batch_size": "free"},
        env={"TOLD": str(tiny.folder / "told")},
    )
    told = tiny.ask("doctor", "study.yaml", "--storage", tiny.url).stdout
    assert "ok    knob micro_batch: 8 takes effect, by --batch" in told
    assert "knob num_workers: 1 runs, by --workers; whether the script heeds it is not" in told
    assert "ok    knob bucket_cap_mb: 5 takes effect, from outside" in told
    assert "ok    knob gradient_compression: fp16 takes effect, from outside" in told
    assert "fail  knob accumulation_steps: 2: " in told
    assert "4 a step, are not the 8 that the configuration says" in told


@pytest.mark.errand
def test_a_file_that_nobody_reads_is_told(tiny: StudyFolder) -> None:
    """plain_ddp.py has its settings from arguments: it would be measured as what it is not."""
    (tiny.folder / "train.yaml").write_text("batch: 4\nlr: 1.0\n")
    write(
        tiny,
        {**OURS, "flags": {"micro_batch": "train.yaml::batch"}},
        search_space={"micro_batch": [4, 8]},
        baseline={},
        objective={"global_batch_size": "free"},
        knobs={"lr": {"values": [0.5, 1.0], "flag": "train.yaml::lr"}},
    )
    told = tiny.ask("doctor", "study.yaml", "--storage", tiny.url).stdout
    assert "ok    baseline" in told
    failed = [line for line in told.splitlines() if line.startswith("fail  knob ")]
    assert len(failed) == 2
    assert all("train.yaml: no rank has read it" in line for line in failed), told


@pytest.mark.long
def test_a_script_is_diagnosed(tiny: StudyFolder) -> None:
    write(tiny, OURS, search_space={"micro_batch": [4, 8]}, baseline={"accumulation_steps": 1})
    told = tiny.ask("diagnose", "study.yaml", "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert set(found["parts"]) >= {"compute", "communication", "optimizer", "loader"}
    assert all(found["parts"][part] > 0 for part in ("compute", "optimizer", "loader"))
    named = {knob for finding in found["findings"] for knob in finding["knobs"]}
    # Which part takes most is the machine's; but no knob is named that the study cannot turn.
    assert named, found["findings"]
    assert named <= {"micro_batch", "accumulation_steps"}
    assert found["rising"] > 0
    assert len(found["traces"]) == 2


@pytest.mark.errand
def test_doctor_says_which_knob_has_every_step_compiled(tiny: StudyFolder) -> None:
    script = SCRIPTS / "varied" / "recompiling.py"
    (tiny.folder / script.name).write_bytes(script.read_bytes())
    tiny.write(
        workload={"script": script.name},
        resources={"workers": 1},
        search_space={"num_workers": [0, 1]},
        baseline={"micro_batch": 32},
        knobs={"ragged": {"values": [False, True], "flag": "--ragged"}},
    )
    told = tiny.ask("doctor", "study.yaml", "--storage", tiny.url).stdout
    assert "ok    baseline" in told, "the first steps compile, too"
    assert "ok    knob num_workers" in told
    assert "warn  knob ragged: true: torch.compile has compiled anew in each of the last 3" in told


@pytest.mark.errand
def test_a_script_is_tuned_and_left_as_it_is(tiny: StudyFolder) -> None:
    space = {"micro_batch": [4, 64], "precision": ["fp32", "bf16"]}
    before = (SCRIPTS / "plain_ddp.py").read_text()
    write(
        tiny,
        OURS,
        search_space=space,
        baseline={"accumulation_steps": 1},
        objective={"global_batch_size": "free"},
        budget={"trials": 4, "min_improvement": 0},
        measurement=quick_measurement(max_measure_time=1.0, rounds=4),
    )
    found = tiny.run("start", "study.yaml", "--foreground")
    assert found.returncode == 0, found.stdout + found.stderr
    tiny.assert_complete(trials=4)
    rates = {a.knobs["micro_batch"]: a.result.throughput for a in tiny.attempts(Purpose.SEARCH)}
    assert rates[64] > 2 * rates[4], "sixteen times the samples for little more time"
    best = yaml.safe_load((tiny.folder / "best.yaml").read_text())
    assert best["script"]["target"] == "plain_ddp.py"
    assert best["knobs"]["micro_batch"] == best["script"]["turned"].get("micro_batch", 4)
    again = tiny.run("report", tiny.name, "--recompute", "--json")
    assert json.loads(again.stdout)["verdict"]["trial"] == tiny.study().verdict["trial"]
    assert (tiny.folder / "plain_ddp.py").read_text() == before
    assert not (tiny.folder / "model.pt").exists(), "it was ended before it would have saved"


def with_own_knobs(tiny: StudyFolder, **changes: object) -> None:
    """shared_batch.py, which takes what is in no catalogue."""
    write(
        tiny,
        {"script": "shared_batch.py", "args": ["--mode", "slow"], "samples": 8},
        search_space={},
        baseline={},
        objective={"global_batch_size": "fixed"},
        knobs={
            "tensor_parallel": {"values": [1, 2, 4], "flag": "--tensor-parallel", "default": 1},
            "mode": {"values": ["slow", "fast"], "flag": "--mode", "numerics": False},
            "overlap": {"values": [False, True], "flag": "--overlap"},
        },
        constraints=["tensor_parallel <= world_size", "not overlap or mode == 'fast'"],
        **changes,
    )


@pytest.mark.errand
def test_doctor_tries_knobs_of_ones_own(tiny: StudyFolder) -> None:
    with_own_knobs(tiny)
    told = tiny.ask("doctor", "study.yaml", "--storage", tiny.url).stdout
    assert "ok    knob tensor_parallel: 2 runs, by --tensor-parallel" in told
    assert "ok    knob mode: fast runs, by --mode; whether the script heeds it is not seen" in told
    assert "knob overlap: not tried: `not overlap or mode == 'fast'` allows no other value" in told


@pytest.mark.errand
def test_knobs_of_ones_own_are_tuned(tiny: StudyFolder) -> None:
    with_own_knobs(
        tiny,
        budget={"trials": 6, "min_improvement": 0},
        measurement=quick_measurement(max_measure_time=1.0, rounds=4),
    )
    found = tiny.run("start", "study.yaml", "--foreground")
    assert found.returncode == 0, found.stdout + found.stderr
    tried = [a.knobs for a in tiny.attempts(Purpose.SEARCH)]
    assert all(
        k["tensor_parallel"] <= 2 and (k["mode"] == "fast" or not k["overlap"]) for k in tried
    )
    best = yaml.safe_load((tiny.folder / "best.yaml").read_text())
    assert best["knobs"]["mode"] == best["script"]["turned"]["mode"] == "fast"
    command = ["torchrun", "--nproc-per-node", "2", "shared_batch.py", "--mode", "slow"]
    job = script_job(load(tiny.folder / "best.yaml"), command, {})
    assert job.command[:6] == (*command[:5], "fast")
