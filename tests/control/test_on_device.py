"""Studies of minutes over a recorded CUDA device, whose launches take seconds and compilation more."""

import dataclasses
import re

import pytest

from autotune.views.figures import figures_of
from autotune.views.page import page
from autotune.worker.protocol import Observed, Outcome
from benchmarks import gpu_policy
from benchmarks.gpu_policy import EmptyStorage, Studied
from benchmarks.recorded_device import RecordedDevice, read_device
from launchers.replay import member
from launchers.replay.answers import Answer, Launch, SpeedVariation
from launchers.replay.behaviours import noisy
from storage import StoredBlock
from tests.control.replayed import Replayed
from tests.control.shown import words
from tests.support.behaviours import where

MEASUREMENT = {"warmup": 2.0, "max_measure_time": 5.0, "block_seconds": 0.25, "ablation_rounds": 0}


@pytest.fixture(scope="module")
def device() -> RecordedDevice:
    return read_device(gpu_policy.TABLE)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> EmptyStorage:
    return EmptyStorage(tmp_path_factory.mktemp("storage"))


def run(
    played: Replayed, seconds: int, baseline: str = "mb16", longest: float = 5.0, **space: object
) -> None:
    played.run(
        measurement={**MEASUREMENT, "max_measure_time": longest},
        baseline=gpu_policy.BASELINES[baseline],
        search_space={n: v for n, v in {**gpu_policy.SPACE, **space}.items() if v},
        budget={"trials": None, "wall_time": seconds},
        objective={"metric": "tokens_per_second"},
        sampler="model",
        resources={"workers": 1},
    )


def blocks(played: Replayed, purpose: str) -> list[StoredBlock]:
    attempts = played.attempts(purpose)
    return [block for one in attempts for block in played.repository.attempts.blocks(one.id)]


@pytest.fixture
def in_warm_workers(played: Replayed, device: RecordedDevice) -> Replayed:
    behaviour = device.behaviour(script=False)
    return played.on(behaviour, workers=1, environment=device.environment)


@pytest.fixture
def on_device(played: Replayed, device: RecordedDevice) -> Replayed:
    environment = device.environment
    return played.on(device.behaviour(script=True), workers=1, environment=environment)


@pytest.mark.long
@pytest.mark.parametrize(
    ("baseline", "kind", "true", "lower"),
    [
        ("mb4", "factory", 1.9, 1.3),
        pytest.param("mb16", "factory", 1.3, 1.3, marks=pytest.mark.slow),
        ("mb16", "script", 1.3, 1.3),
    ],
)
def test_study_of_two_minutes_compiles_and_proves_a_large_gain(
    storage: EmptyStorage,
    device: RecordedDevice,
    baseline: str,
    kind: str,
    true: float,
    lower: float,
) -> None:
    found = gpu_policy.study(storage, device, baseline, kind, 120, 0)
    assert (found.kind, found.speedup > true) == ("better", True)
    assert found.lower is not None and found.lower > lower
    assert found.elapsed <= 126


@pytest.mark.long
def test_slow_step_of_a_short_trial_does_not_make_its_processes_unsteady(
    storage: EmptyStorage, device: RecordedDevice
) -> None:
    found = gpu_policy.study(storage, device, "mb16", "script", 120, 3)
    assert (found.kind, found.lower is not None and found.lower > 1.3) == ("better", True)


# 8: the first rounds do not show the gain.
@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("kind", gpu_policy.KINDS)
def test_study_of_one_minute_proves_a_gain_over_an_unsteady_baseline(
    storage: EmptyStorage, device: RecordedDevice, kind: str, seed: int
) -> None:
    found = gpu_policy.study(storage, device, "mb4", kind, 60, seed)
    assert (found.kind, found.speedup > 1.5) == ("better", True)
    assert found.elapsed <= 63


def half_width(found: gpu_policy.Studied) -> float:
    """Return the relative half-width of the interval of a study's speed-up."""
    assert found.lower and found.upper
    return (found.upper - found.lower) / (found.upper + found.lower)


@pytest.mark.long
def test_steady_gain_of_two_minutes_is_known_to_two_percent(
    storage: EmptyStorage, device: RecordedDevice
) -> None:
    found = gpu_policy.study(storage, device, "mb16", "factory", 120, 1)
    assert half_width(found) <= 0.017


@pytest.mark.long
def test_finalist_that_met_a_wave_in_the_search_takes_no_time_of_the_proof(
    storage: EmptyStorage, device: RecordedDevice
) -> None:
    found = gpu_policy.study(storage, device, "mb16", "factory", 300, 1)
    assert half_width(found) <= 0.015


def test_study_too_short_to_compile_never_does_and_says_so(on_device: Replayed) -> None:
    run(on_device, 60)
    tried = on_device.attempts("search")
    assert {attempt.knobs["compile"] for attempt in tried} == {"none"}
    assert len(tried) > 1
    said = on_device.said()
    assert "compile=default is left out" in said
    assert re.search(r"included from about (\d+) s on", said), said
    assert "float8=tensorwise is left out" in said


def test_no_trial_of_two_minutes_is_cut_before_its_first_step(on_device: Replayed) -> None:
    run(on_device, 120)
    assert all(attempt.result.throughput for attempt in on_device.attempts("search"))


@pytest.mark.long
def test_compilation_far_longer_than_expected_is_not_cut_again_and_again(
    played: Replayed, device: RecordedDevice
) -> None:
    slow = dataclasses.replace(device, compile_scale=8.0)
    played.on(slow.behaviour(script=True), workers=1, environment=device.environment)
    run(played, 200)
    tried = [one for one in played.attempts("search") if one.knobs["compile"] != "none"]
    assert sum(one.result.throughput is None for one in tried) <= 2
    assert played.verdict["kind"] == "better"


def test_baseline_that_waits_for_its_host_is_repeated_and_its_winner_is_not(
    on_device: Replayed,
) -> None:
    run(on_device, 60, "mb4")
    rounds, repeats = on_device.attempts("confirm"), on_device.attempts("repeat")
    assert len({attempt.round for attempt in rounds}) == 2
    assert len(repeats) >= 2
    assert {attempt.trial for attempt in repeats} == {0}
    assert not any(attempt.result.resident_of for attempt in repeats)


@pytest.mark.long
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


@pytest.mark.long
def test_float8_is_tried_beside_compilation_only_and_in_new_processes(
    in_warm_workers: Replayed,
) -> None:
    run(in_warm_workers, 300)
    tried = in_warm_workers.attempts("search")
    assert ("none", "none") in {(one.knobs["float8"], one.knobs["compile"]) for one in tried}
    changed = [one for one in tried if one.knobs["float8"] != "none"]
    assert all(one.knobs["compile"] != "none" for one in changed)
    assert changed and changed[0].result.resident_of is None


def test_numerics_are_not_checked_and_no_time_is_kept_where_nothing_beats_the_baseline(
    on_device: Replayed,
) -> None:
    space = dict.fromkeys(gpu_policy.SPACE) | {"attention": ["auto", "unfused"]}
    run(on_device, 300, **space)
    tried = {one.knobs["attention"] for one in on_device.attempts("search")}
    assert tried == {"auto", "unfused"}
    assert not on_device.attempts("reference") and not on_device.attempts("numerics")
    assert on_device.seconds < 100


def test_trial_is_over_within_two_seconds_of_steps_and_knows_its_rate(on_device: Replayed) -> None:
    run(on_device, 120)
    plain = [one for one in on_device.attempts("search") if one.knobs["compile"] == "none"]
    for one in plain:
        kept = [block for block in on_device.repository.attempts.blocks(one.id) if block.kept]
        assert sum(block.seconds for block in kept) < 3
        assert one.result.block_half_width is not None and one.result.block_half_width < 0.05
    assert "still unsteady" not in on_device.said()


def test_warm_worker_of_a_factory_compiles_without_a_launch(in_warm_workers: Replayed) -> None:
    run(in_warm_workers, 120, float8=["none"])
    own, *others = in_warm_workers.attempts("search")
    assert "default" in {one.knobs["compile"] for one in others}
    assert {one.result.resident_of for one in others} == {own.id}


def test_winner_and_baseline_of_a_round_are_resident_at_once(on_device: Replayed) -> None:
    run(on_device, 120)
    rounds = on_device.attempts("confirm")
    assert len(rounds) >= 4
    assert all("turn" in block.observed for block in blocks(on_device, "confirm"))


def test_memory_left_free_is_that_of_a_run_that_has_its_device_alone(
    played: Replayed, device: RecordedDevice
) -> None:
    plain = device.behaviour(script=True)

    def shared_device_hides_memory(launch: Launch) -> Answer:
        peak = (8 if launch.request.interleaved else 10) << 30
        return dataclasses.replace(plain(launch), peak_bytes=peak)

    played.on(shared_device_hides_memory, workers=1, environment=device.environment)
    run(played, 60)
    assert {one.result.peak_bytes for one in played.attempts("confirm")} == {8 << 30}
    figures = figures_of(played.repository, played.study())
    memory = figures.verdict.memory
    assert memory and figures.running and memory.limit
    assert figures.running.peak_bytes == memory.peak == 10 << 30
    assert figures.running.headroom == pytest.approx(1 - memory.peak / memory.limit)


@pytest.mark.parametrize("seen", [True, False])
def test_processes_that_could_not_be_seen_on_the_devices_are_told(
    on_device: Replayed, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    plain = member._observed
    read: Observed = {"clock_mhz": 1410.0, "throttled": 0.0}
    if seen:
        read["foreign_processes"] = 0.0
    monkeypatch.setattr(member, "_observed", lambda *known: plain(*known) | read)
    run(on_device, 30)
    figures = figures_of(on_device.repository, on_device.study())
    found = {point.code: point for point in figures.trust if "GPUs" in point.title}
    assert set(found) == (set() if seen else {"processes_unseen"})
    assert seen or "--pid=host" in words(page(figures))


@pytest.mark.long
def test_rate_of_the_winner_allows_for_other_processes_and_for_drift(
    played: Replayed, device: RecordedDevice
) -> None:
    apart = noisy(device.behaviour(script=False), run=0.005)
    drift = SpeedVariation(sigma=0.005, seconds=60.0)
    played.on(apart, workers=1, environment=device.environment, variation=drift)
    run(played, 150)
    rate, knobs = played.verdict["throughput"], played.verdict["knobs"]
    true = gpu_policy.TOKENS * device.rate(knobs)
    assert rate["low"] <= true <= rate["high"]
    assert 0.005 <= (rate["high"] - rate["low"]) / (2 * true) <= 0.025


@pytest.mark.long
def test_ablation_whose_variants_do_not_fit_together_leaves_time_for_the_proof(
    storage: EmptyStorage, device: RecordedDevice
) -> None:
    found = gpu_policy.study(storage, device, "mb16", "factory", 300, 15)
    assert (found.kind, found.speedup > 1.3) == ("better", True)


@pytest.mark.long
def test_winner_over_an_unsteady_baseline_is_measured_until_its_own_rate_is_known(
    storage: EmptyStorage, device: RecordedDevice
) -> None:
    found = gpu_policy.study(storage, device, "mb4", "factory", 300, 0)
    assert found.own_low is not None and found.own_high is not None
    assert found.own_low <= 1 <= found.own_high
    assert (found.own_high - found.own_low) / 2 <= 0.0155


@pytest.mark.long
@pytest.mark.parametrize("script", [pytest.param(False, marks=pytest.mark.slow), True])
def test_run_of_a_proof_with_steps_of_seconds_has_twenty_of_them(
    played: Replayed, script: bool
) -> None:
    large = gpu_policy.devices()["7b"]
    played.on(large.behaviour(script=script), workers=1, environment=large.environment)
    run(played, 3600, longest=20.0)
    rounds = [one for one in played.attempts("confirm") if one.round <= 2]
    assert len(rounds) == 4
    for one in rounds:
        kept = [block for block in played.repository.attempts.blocks(one.id) if block.kept]
        assert sum(block.steps for block in kept) >= 20
    assert played.verdict["kind"] == "better"


def test_study_that_recommends_nothing_has_no_interval_that_holds_the_truth() -> None:
    nothing = Studied("nothing_better", 1.0, 1.0, 1.0, gap=0.5, elapsed=60.0)
    missed = Studied("better", 1.5, 1.6, 1.8, gap=0.0, elapsed=60.0)
    names = {"device": "h200", "baseline": "mb4", "kind": "factory", "budget": 60.0}
    cell = gpu_policy.summary([nothing, missed], policy="after", **names)
    assert (cell.nothing, cell.coverage) == (0.5, 0.0)
    assert cell.half_width_median == pytest.approx(0.2 / 3.4)
    assert gpu_policy.summary([nothing], policy="after", **names).coverage is None
