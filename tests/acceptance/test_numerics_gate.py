"""A configuration that is fast and computes something else is never recommended."""

import json
from pathlib import Path

import pytest

from storage import AttemptState, Purpose
from tests.support.steering import StudyFolder, quick_measurement

PLANTED = (Path(__file__).parent.parent / "workloads" / "planted.py").read_text()


def study_with(tiny: StudyFolder, fault: str) -> None:
    """A study in which bf16 is the fastest by far, and carries this fault."""
    (tiny.folder / "planted.py").write_text(PLANTED)
    tiny.write(
        workload={"name": "planted:build", "args": {"fault": fault, "slow_fp32": 0.05}},
        search_space={"precision": ["fp32", "bf16"]},
        baseline={"micro_batch": 4},
        budget={"trials": 2},
        measurement=quick_measurement(rounds=8, baseline_runs=1),
    )
    found = tiny.run("start", "study.yaml", "--foreground")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.errand
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param("scale", "its gradient in the first step", marks=pytest.mark.errand),
        ("sync", "as if gradients were not exchanged"),
    ],
)
def test_a_planted_fault_is_refused(tiny: StudyFolder, fault: str, reason: str) -> None:
    study_with(tiny, fault)
    verdict = tiny.study().verdict
    assert verdict is not None
    assert verdict["kind"] == "nothing_better"
    assert verdict["knobs"]["precision"] == "fp32"
    [refused] = verdict["refused"]
    assert refused["knobs"]["precision"] == "bf16"
    assert reason in refused["reason"]
    [fast] = [a for a in tiny.attempts(Purpose.SEARCH) if a.knobs["precision"] == "bf16"]
    [slow] = [a for a in tiny.attempts(Purpose.SEARCH) if a.knobs["precision"] == "fp32"]
    assert fast.result.throughput > 1.5 * slow.result.throughput  # type: ignore[operator]
    assert {a.trial for a in tiny.attempts(Purpose.CONFIRM)} == {slow.trial}
    again = tiny.run("report", tiny.name, "--recompute", "--json")
    assert json.loads(again.stdout)["verdict"]["refused"] == verdict["refused"]


@pytest.mark.errand
def test_an_honest_bf16_passes_and_the_verdict_says_how_closely(tiny: StudyFolder) -> None:
    study_with(tiny, "")
    verdict = tiny.study().verdict
    assert verdict is not None
    assert verdict["kind"] == "better"
    assert verdict["refused"] == []
    assert verdict["numerics"]["loss_distance"] < 0.01
    assert verdict["numerics"]["norm_ratio"] == pytest.approx(1, abs=0.05)
    assert verdict["numerics"]["steps"] > 0
    again = tiny.run("report", tiny.name, "--recompute", "--json")
    assert json.loads(again.stdout)["verdict"]["numerics"] == verdict["numerics"]
    [reference] = tiny.attempts(Purpose.REFERENCE)
    assert reference.knobs["precision"] == "fp32"
    steps = tiny.repository.attempts.blocks(reference.id)
    # Three products of 2 x 32 x 64 and 2 x 64 each, forward and backward; no gradient of the data.
    assert steps[0].observed["flops_per_sample"] == 2 * (2 * 32 * 64 + 3 * 64)


_SPLITS = """
import argparse, time, torch
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--microbatch", type=int, default=4)
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--epochs", type=int, default=1000)
told = parser.parse_args()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(4800, 64)
loader = DataLoader(TensorDataset(data, data[:, :1]), batch_size=told.batch_size, shuffle=True)
for _ in range(told.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        for part, wanted in zip(x.split(told.microbatch), y.split(told.microbatch)):
            time.sleep(0.03 if told.dtype == "float32" else 0.002)
            with torch.autocast("cpu", torch.bfloat16, enabled=told.dtype == "bfloat16"):
                found = model(part)
            loss = torch.nn.functional.mse_loss(found.float(), wanted)
            (loss * len(part) / len(x)).backward()
        optimizer.step()
print("trained in", told.dtype)
"""


@pytest.mark.errand
@pytest.mark.parametrize("number", [1, 2, 4])
def test_finalist_of_a_script_that_splits_its_batch_is_compared_with_a_reference(
    tiny: StudyFolder, number: int
) -> None:
    size = 8 // number
    (tiny.folder / "own.py").write_text(_SPLITS)
    tiny.write(
        workload={
            "script": "own.py",
            "args": ["--microbatch", str(size), "--dtype", "float32"],
            "launch": "python",
            "flags": {"micro_batch": "--microbatch", "precision": "--dtype"},
            "words": {"precision": {"fp32": "float32", "bf16": "bfloat16"}},
            "keeps_global_batch": True,
        },
        resources={"workers": 1},
        search_space={"micro_batch": [2, 4, 8], "precision": ["fp32", "bf16"]},
        baseline={"micro_batch": size, "accumulation_steps": number},
        objective={},
        budget={"trials": 6},
        measurement=quick_measurement(rounds=8),
    )
    found = tiny.run("start", "study.yaml", "--foreground")
    for purpose in (Purpose.REFERENCE, Purpose.NUMERICS):
        states = {one.result.state for one in tiny.attempts(purpose)}
        assert states == {AttemptState.COMPLETE}, found.stdout + found.stderr
    verdict = tiny.study().verdict
    assert verdict is not None
    assert verdict["knobs"]["precision"] == "bf16"
    command = f"python own.py --microbatch {size} --dtype float32 --epochs 1"
    told = tiny.run("run", "best.yaml", "--", *command.split())
    assert "trained in bfloat16" in told.stdout, told.stdout + told.stderr
