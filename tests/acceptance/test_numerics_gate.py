"""A configuration that is fast and computes something else is never recommended."""

import json
from pathlib import Path

import pytest

from storage import Purpose
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
