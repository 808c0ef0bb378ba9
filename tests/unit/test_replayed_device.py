"""The replayed device answers with what was recorded, and borrows from neighbours elsewhere."""

import dataclasses
import itertools
import random
import statistics
from pathlib import Path

import pytest

from autotune.worker.protocol import Knobs, Outcome, TimeLimit
from benchmarks.recorded_device import RecordedDevice, read_device
from launchers.replay import Answer, Launch, ReplayLauncher
from search_spaces import defaults
from tests.support.trials import trial

TABLE = Path("benchmarks/tables/h200-gpt2-124m.jsonl")


@pytest.fixture(scope="module")
def device() -> RecordedDevice:
    return read_device(Path(__file__).parents[2] / TABLE)


def knobs(**changes: object) -> Knobs:
    return {**defaults(), "precision": "bf16", "accumulation_steps": 1, **changes}


def launch(given: Knobs, before: Knobs | None = None) -> Launch:
    request = trial(Path("/w"), knobs=given)
    return Launch(request, 1, 0.0, random.Random(0), random.Random(0), before)


def test_recorded_configuration_runs_at_its_recorded_median(device: RecordedDevice) -> None:
    assert device.rate(knobs(micro_batch=32)) * 1024 == pytest.approx(409_966, rel=1e-3)
    best = knobs(micro_batch=32, compile="default", optimizer_kernels="fused")
    assert device.rate(best) * 1024 == pytest.approx(531_827, rel=1e-3)


def test_unrecorded_configuration_lies_between_its_neighbours(device: RecordedDevice) -> None:
    plain = device.step(knobs(micro_batch=2))
    compiled = device.step(knobs(micro_batch=2, compile="default"))
    assert 0.6 * plain < compiled < plain


def test_float8_without_compile_is_slower_than_with_it(device: RecordedDevice) -> None:
    alone = device.step(knobs(micro_batch=32, float8="tensorwise"))
    compiled = device.step(knobs(micro_batch=32, float8="tensorwise", compile="default"))
    assert alone > 2.5 * compiled


def test_second_compilation_of_a_graph_finds_a_warm_cache(device: RecordedDevice) -> None:
    behaviour = device.behaviour(script=True)
    given = knobs(micro_batch=16, compile="default")
    cold = behaviour(launch(given))
    cold.begun()
    warm = behaviour(launch(given))
    assert cold.first_step is not None and warm.first_step is not None
    assert cold.first_step > 10 > 3 * warm.first_step / 2


def test_compilation_that_was_cut_off_leaves_the_cache_cold(device: RecordedDevice) -> None:
    launcher = ReplayLauncher(device.behaviour(script=True), workers=1)
    given = knobs(micro_batch=16, compile="default")

    def blocks(hard: float) -> list[float]:
        request = trial(Path("/w"), knobs=given, world_size=1, limit=TimeLimit(hard=hard))
        report = launcher.slots[0].run_solo(request, lambda _: False)
        return [block.seconds for block in report.blocks]

    assert blocks(6.0) == []
    cold, warm = blocks(60.0)[0], blocks(60.0)[0]
    assert cold == pytest.approx(device.first_step(given), rel=0.01)
    assert warm < cold / 2


def test_warm_worker_compiles_for_another_graph_only(device: RecordedDevice) -> None:
    behaviour = device.behaviour(script=False)
    plain, compiled = knobs(micro_batch=16), knobs(micro_batch=16, compile="default")
    several = [
        behaviour(launch(compiled, plain)),
        behaviour(launch({**compiled, "log_interval": 1}, compiled)),
        behaviour(launch({**compiled, "micro_batch": 32}, compiled)),
        behaviour(launch(plain, compiled)),
    ]
    assert [bool(answer.first_steps.get("compilations")) for answer in several] == [
        *(True, False),
        *(True, False),
    ]
    cold, same, other, undone = (answer.first_step for answer in several)
    assert cold and same and other and undone
    assert min(cold, other) > 10 > 1 > max(same, undone)


def test_launch_bound_processes_differ_and_compute_bound_ones_do_not(
    device: RecordedDevice,
) -> None:
    behaviour = device.behaviour(script=True)

    def rates(given: Knobs) -> list[float]:
        request = trial(Path("/w"), knobs=given)
        draws = [(random.Random(seed), random.Random(seed)) for seed in range(20)]
        return [behaviour(Launch(request, 1, 0.0, *both)).rate for both in draws]

    assert max(rates(knobs(micro_batch=4))) > 1.3 * min(rates(knobs(micro_batch=4)))
    assert max(rates(knobs(micro_batch=32))) < 1.03 * min(rates(knobs(micro_batch=32)))


@pytest.mark.parametrize(("stays", "launches"), [(True, 1), (False, 8)])
def test_launch_bound_trials_in_one_process_share_its_speed(
    device: RecordedDevice, stays: bool, launches: int
) -> None:
    behaviour, rates = device.behaviour(script=False), []

    def noted(launch: Launch) -> Answer:
        answer = behaviour(launch)
        rates.append(answer.rate)
        return answer

    (slot,) = ReplayLauncher(noted, workers=1).slots
    for number in range(8):
        given = knobs(micro_batch=4, num_workers=number)
        request = trial(Path("/w"), trial=f"{number}", knobs=given, world_size=1, stays=stays)
        slot.run_solo(request, lambda _: False)
    assert (slot.launches, len(rates)) == (launches, 8)
    apart = max(rates) / min(rates)
    assert apart < 1.02 if stays else apart > 1.3


def test_steps_are_recorded_stretches_whose_waves_come_at_random(device: RecordedDevice) -> None:
    given = knobs(micro_batch=32, compile="default", optimizer_kernels="fused")
    pattern = device.behaviour(script=True)(launch(given)).pattern
    steps = list(itertools.islice(pattern, 20_000))
    assert statistics.fmean(steps) == pytest.approx(1, abs=0.005)
    recorded = set(itertools.pairwise(steps[:27]))
    assert len(recorded & set(itertools.pairwise(steps[27:200]))) > 10
    seconds = [statistics.fmean(steps[at : at + 54]) for at in range(0, 19_980, 54)]
    assert statistics.stdev(seconds) > 0.005  # repeated as recorded all would be alike


def test_long_step_averages_over_slow_waves_and_waiting_for_the_host_stays(
    device: RecordedDevice,
) -> None:
    def scatter(on: RecordedDevice, given: Knobs) -> float:
        pattern = on.behaviour(script=True)(launch(given)).pattern
        return statistics.stdev(itertools.islice(pattern, 400))

    large = dataclasses.replace(device, step_scale=36.0)
    compiled = knobs(micro_batch=32, compile="default", optimizer_kernels="fused")
    assert scatter(large, compiled) < 0.6 * scatter(device, compiled)
    assert scatter(large, knobs(micro_batch=4)) > 0.03


def test_configuration_beyond_the_memory_is_out_of_memory(device: RecordedDevice) -> None:
    answer = device.behaviour(script=False)(launch(knobs(micro_batch=256)))
    assert answer.outcome is Outcome.OOM
