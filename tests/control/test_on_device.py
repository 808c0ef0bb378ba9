"""Studies of minutes over a recorded CUDA device, whose launches take seconds and compilation more."""

import pytest

from autotune.worker.protocol import Outcome
from benchmarks import gpu_policy
from launchers.replay.behaviours import where
from launchers.replay.device import RecordedDevice, read_device
from tests.control.replayed import Replayed

MEASUREMENT = {"warmup": 2.0, "longest": 5.0, "block_seconds": 0.25, "attribution": 0}


@pytest.fixture(scope="module")
def device() -> RecordedDevice:
    return read_device(gpu_policy.TABLE)


def run(played: Replayed, seconds: int, baseline: str = "mb16", **space: object) -> None:
    played.run(
        measurement=MEASUREMENT,
        baseline=gpu_policy.BASELINES[baseline],
        search_space={**gpu_policy.SPACE, **space},
        budget={"trials": None, "wall_time": seconds},
        objective={"metric": "tokens_per_second"},
        sampler="model",
        resources={"workers": 1},
    )


@pytest.fixture
def on_device(played: Replayed, device: RecordedDevice) -> Replayed:
    environment = device.environment
    return played.on(device.behaviour(script=True), workers=1, environment=environment)


@pytest.mark.parametrize(("baseline", "least"), [("mb4", 1.4), ("mb16", 1.25)])
def test_study_of_two_minutes_finds_and_proves_a_large_gain(
    device: RecordedDevice, baseline: str, least: float
) -> None:
    found = gpu_policy.study(device, baseline, "factory", 120, 0)
    assert (found.kind, found.speedup > least) == ("better", True)
    assert found.lower is not None and found.lower > 1.0
    assert found.elapsed <= 126


def test_study_too_short_to_compile_never_does_and_says_so(on_device: Replayed) -> None:
    run(on_device, 60)
    tried = on_device.attempts("search")
    assert {attempt.knobs["compile"] for attempt in tried} == {"none"}
    assert len(tried) > 1
    said = on_device.said()
    assert "compile=default is left out" in said
    assert "float8=tensorwise is left out" in said


def test_bundle_that_fails_is_split(played: Replayed, device: RecordedDevice) -> None:
    fails = where(
        device.behaviour(script=True),
        lambda launch: bool(launch.knobs["optimizer_kernels"] == "fused"),
        outcome=Outcome.ERROR,
        cause="no such kernel",
    )
    played.on(fails, workers=1, environment=device.environment)
    run(played, 150, compile=["none"], float8=["none"])
    own, bundle, *rest = played.attempts("search")
    assert bundle.result.state == "ERROR"
    split = [a for a in rest[:2] if a.knobs["optimizer_kernels"] == own.knobs["optimizer_kernels"]]
    assert split and split[0].result.state == "COMPLETE"
