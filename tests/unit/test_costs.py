"""What runs cost, by those that are recorded."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.analysis.compilation import Compilation
from autotune.analysis.costs import CostRecords, Costs, RunTimes
from autotune.analysis.policy import ANALYSIS
from autotune.measurement.policy import GATE
from autotune.measurement.step_series import Onset
from search_spaces import defaults
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt, StoredBlock

BASELINE = defaults()
BATCHES = {**BASELINE, "micro_batch": 16}
BUCKETS = {**BASELINE, "bucket_cap_mb": 1}
LAUNCH, SWITCH, TRAINED = 30.0, 0.1, 8.0


def times(startup: float, trained: float = TRAINED, *, taken_over: bool = False) -> RunTimes:
    return RunTimes(BASELINE, startup, Onset(0.5, 0.2), False, 8.0, trained, taken_over)


def test_before_anything_is_known_all_trials_cost_the_same() -> None:
    costs = Costs([])
    assert costs.expected(BATCHES, None) == costs.expected(BUCKETS, BASELINE) > 0


def test_a_trial_costs_its_launch_and_what_trials_take() -> None:
    costs = Costs([times(LAUNCH)])
    assert costs.expected(BATCHES, None) == LAUNCH + TRAINED


def test_a_launch_is_spared_where_a_resident_can_take_it_over() -> None:
    costs = Costs([times(LAUNCH)])
    assert costs.expected(BATCHES, BASELINE) == TRAINED
    assert costs.expected(BUCKETS, BASELINE) == LAUNCH + TRAINED


def test_a_switch_costs_what_switches_have_cost() -> None:
    costs = Costs([times(LAUNCH), *[times(SWITCH, 2.0, taken_over=True)] * 3])
    assert costs.startup == LAUNCH
    assert costs.expected(BATCHES, BASELINE) == pytest.approx(SWITCH + 2.0)
    assert costs.expected(BATCHES, None) == LAUNCH + TRAINED


def test_change_of_the_graph_in_warm_workers_costs_its_compilation_and_no_launch() -> None:
    compiled = {**BASELINE, "compile": "default"}
    costs = Costs([times(LAUNCH), times(SWITCH, taken_over=True)], compilation=Compilation("cuda"))
    cold = ANALYSIS.compile_default
    assert costs.expected(compiled, BASELINE) == pytest.approx(SWITCH + TRAINED + cold)
    again = {**compiled, "log_interval": 1}
    assert costs.expected(again, compiled) == pytest.approx(SWITCH + TRAINED)
    other = {**compiled, "micro_batch": 4}
    assert costs.expected(other, compiled) == pytest.approx(SWITCH + TRAINED + cold)


def test_compilation_before_the_first_step_is_no_launch_of_what_does_not_compile() -> None:
    compiled = {**BASELINE, "compile": "default"}
    evaluating = RunTimes(compiled, LAUNCH + 40.0, Onset(20.2, 0.2), True, 8.0, TRAINED)
    costs = Costs([times(LAUNCH), evaluating])
    assert costs.startup == costs.slow_startup == LAUNCH
    assert evaluating.compiled_in(LAUNCH) == pytest.approx(60.0)
    assert Costs([evaluating]).startup == LAUNCH + 40.0


def test_long_steps_take_as_long_as_they_take() -> None:
    costs = Costs([times(LAUNCH)])
    long = {**BASELINE, "micro_batch": 800}
    assert costs.expected(long, None) == pytest.approx(LAUNCH + 3 * 20.0)


def test_steps_of_a_script_whose_batch_is_not_seen_take_as_long_as_the_slowest_known_one() -> None:
    unseen = [
        replace(times(LAUNCH), samples=0.0),
        RunTimes(BUCKETS, LAUNCH, Onset(0.5, 0.3), False, 0.0, TRAINED),
    ]
    costs = Costs(unseen)
    other = {**BASELINE, "pin_memory": not BASELINE["pin_memory"]}
    assert costs.step(other) == 0.3
    assert costs.expected(other, None) == LAUNCH + TRAINED
    assert costs.check(Purpose.REFERENCE, other, other) > costs.shortest(other) > LAUNCH


def test_first_steps_in_processes_that_are_there_tell_nothing_of_others() -> None:
    slow = RunTimes(BASELINE, LAUNCH, Onset(4.0, 0.2), False, 8.0, TRAINED)
    costs = Costs([slow, *[times(SWITCH, taken_over=True)] * 9])
    assert costs.settling == Costs([slow]).settling


def run(number: int, purpose: Purpose, rate: float | None, seconds: float) -> StoredAttempt:
    """Of the baseline; without a rate it was ended before its first step was over."""
    state = AttemptState.PRUNED if rate is None else AttemptState.COMPLETE
    result = AttemptResult(state, throughput=rate, wall_seconds=seconds)
    return StoredAttempt(number, 0, purpose, 0, 1, BASELINE, 0.0, seconds, result)


def shortest(*runs: StoredAttempt) -> float:
    return CostRecords(lambda _: []).by(Attempts(runs, BASELINE)).shortest(BASELINE)


def test_a_run_of_the_finals_in_vain_takes_twice_as_long_the_next_time() -> None:
    assert shortest(run(1, Purpose.CONFIRM, None, 30.0)) == 60.0


def test_and_once_one_has_completed_as_long_as_that() -> None:
    in_vain, well = run(1, Purpose.CONFIRM, None, 30.0), run(2, Purpose.CONFIRM, 100.0, 12.0)
    assert shortest(in_vain, well) < 30.0


def test_a_check_in_vain_takes_twice_as_long_the_next_time() -> None:
    def price(*runs: StoredAttempt) -> float:
        costs = CostRecords(lambda _: []).by(Attempts(runs, BASELINE))
        return costs.check(Purpose.REFERENCE, BASELINE, BASELINE)

    in_vain, well = run(1, Purpose.REFERENCE, None, 30.0), run(2, Purpose.REFERENCE, 100.0, 12.0)
    assert price(in_vain) == 60.0
    assert price(in_vain, well) < 30.0
    assert price(run(1, Purpose.CONFIRM, None, 30.0)) < 30.0
    assert shortest(in_vain) < 30.0


def test_a_check_takes_as_many_steps_as_its_reference() -> None:
    step = block(0.5)
    half, other = {**BASELINE, "precision": "bf16"}, {**BASELINE, "micro_batch": 1}
    searched = run(1, Purpose.SEARCH, 100.0, 10.0)

    def steps(safe: dict[str, Any], *references: tuple[StoredAttempt, int]) -> float:
        blocks = {searched.id: [replace(step, kept=True, steps=1)]}
        blocks |= {one.id: [step] * count for one, count in references}
        attempts = Attempts([searched, *(one for one, _ in references)], BASELINE)
        costs = CostRecords(lambda id_: blocks[id_]).by(attempts)
        price = costs.check(Purpose.NUMERICS, half, safe) - costs.slow_startup
        return price / costs.step(half)

    own = run(2, Purpose.REFERENCE, 100.0, 50.0)
    longer = replace(run(3, Purpose.REFERENCE, 100.0, 50.0), knobs=other)
    assert steps(BASELINE) == pytest.approx(GATE.fewest_steps)
    assert steps(BASELINE, (own, 88)) == pytest.approx(88)
    assert steps(BASELINE, (own, 40), (longer, 96)) == pytest.approx(40)
    assert steps({**BASELINE, "micro_batch": 2}, (own, 40), (longer, 96)) == pytest.approx(96)


def test_a_trial_in_vain_makes_no_other_one_dear() -> None:
    """Smaller configurations may still be tried where the baseline took much of the time."""
    assert shortest(run(1, Purpose.SEARCH, None, 40.0)) < 40.0


def looked_at(*blocks: StoredBlock, seconds: float = 30.0) -> Costs:
    look = StoredAttempt(
        1,
        0,
        Purpose.PROFILE,
        0,
        1,
        BASELINE,
        0.0,
        seconds,
        AttemptResult(AttemptState.COMPLETE, wall_seconds=seconds),
    )
    return CostRecords(lambda _: blocks).by(Attempts([look], BASELINE))


def block(seconds: float, **observed: Any) -> StoredBlock:
    return StoredBlock(0, 8, 64, 0, seconds, [seconds], 0.0, 1.0, 0, False, False, observed)


def test_the_look_before_the_search_tells_what_a_launch_takes() -> None:
    """The baseline's own trial takes over its processes, and nothing else was launched."""
    assert looked_at(block(2.0, look_seconds=5.0)).startup == 25.0
    assert looked_at(block(2.0)).startup == 28.0


def test_a_look_that_has_shown_nothing_tells_nothing() -> None:
    assert looked_at().startup == 0.0


def test_launches_that_were_timed_tell_more() -> None:
    assert Costs([times(LAUNCH)], looked=99.0).startup == LAUNCH
    assert Costs([times(SWITCH, taken_over=True)], looked=LAUNCH).startup == LAUNCH


@pytest.mark.parametrize(("launch", "steps"), [(0.2, 0.6), (2.0, 2.5), (30.0, 3.0)])
def test_shortest_run_on_the_cpu_trains_until_its_steps_are_warm(
    launch: float, steps: float
) -> None:
    quick = RunTimes(BASELINE, launch, Onset(0.01, 0.01), False, 8.0, TRAINED)
    assert Costs([quick]).shortest(BASELINE) == pytest.approx(launch + steps)
