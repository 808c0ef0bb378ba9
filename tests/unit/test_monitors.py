"""What a trial's report means."""

import dataclasses
import math

import pytest

from autotune.measurement.noise import standard_error
from autotune.measurement.numerics import trajectory
from autotune.measurement.policy import GATE, MEASUREMENT
from autotune.measurement.stop_rule import Limits
from autotune.runs.monitors import FirstStepsMonitor, TimedMonitor, TrajectoryMonitor
from autotune.worker.protocol import (
    STEPS_WITHOUT_DROPOUT,
    BlockReport,
    Outcome,
    TrialReport,
)
from storage import AttemptState

BLOCK = BlockReport("t", 0, 10, 100, 0, 1.0, (1.0,), 0.0, 0.5, 1 << 30)


def judged(blocks, outcome=None, **changes):
    judge = TimedMonitor(Limits(warmup=0.5, longest=100, precision=1e-9))
    for block in blocks:
        judge(block)
    report = TrialReport("t", outcome, "cause", tuple(blocks), 5.0)
    return judge.result(dataclasses.replace(report, **changes))


def numbered(count, **changes):
    return [dataclasses.replace(BLOCK, index=i, **changes) for i in range(count)]


def test_a_good_trial_is_complete():
    found = judged(numbered(5))
    assert (found.state, found.throughput, found.peak_bytes) == ("COMPLETE", 100.0, 1 << 30)


@pytest.mark.parametrize(("contradicted", "again"), [(True, False), (False, True)])
def test_script_that_contradicts_its_configuration_fails_for_good(contradicted, again):
    found = judged([], Outcome.ERROR, contradicted=contradicted)
    assert found.state == "ERROR"
    assert found.may_pass is again


@pytest.mark.parametrize("seconds", [1.5, 300.0])
def test_run_of_blocks_far_apart_is_no_less_exact_than_one_whose_blocks_tell_nothing(seconds):
    blocks = [*numbered(2), dataclasses.replace(BLOCK, index=2, seconds=seconds)]
    found = judged(blocks)
    unknown = standard_error(MEASUREMENT.unknown_width)
    error = standard_error(found.block_half_width, found.block_freedom)
    assert found.block_freedom == 1
    assert error == pytest.approx(unknown) if seconds == 300 else error < unknown


@pytest.mark.sample
@pytest.mark.fault(16)
@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, 1e-300])
def test_impossible_times_are_errors(seconds):
    found = judged([*numbered(4), dataclasses.replace(BLOCK, index=4, seconds=seconds)])
    assert found.state == "ERROR"
    assert found.throughput is None


@pytest.mark.fault(16)
@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_an_error(loss):
    assert judged(numbered(5, loss=loss)).state == "ERROR"


@pytest.mark.fault(16)
def test_no_blocks_is_an_error():
    assert judged([]).state == "ERROR"


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.HANG, Outcome.CRASH, Outcome.ERROR])
def test_a_failure_keeps_its_type_and_cause_and_has_no_figure(outcome):
    found = judged(numbered(5), outcome)
    assert (found.state, found.cause, found.throughput) == (outcome.value, "cause", None)


@pytest.mark.parametrize(("blocks", "state"), [(5, "COMPLETE"), (1, "ERROR")])
def test_script_that_trained_to_its_end_counts_by_enough_blocks(blocks, state):
    found = judged(numbered(blocks), Outcome.ERROR, ended_after=50)
    assert (found.state, found.throughput) == (state, 100.0 if state == "COMPLETE" else None)


def test_error_whose_message_has_the_words_of_an_end_is_an_error():
    cause = "rank 0: RuntimeError: the script ended after 50 measured optimizer steps"
    assert judged(numbered(5), Outcome.ERROR, cause=cause).state == "ERROR"


def test_a_lost_agent_is_nobodys_fault():
    assert judged(numbered(5), Outcome.CRASH, lost_agent=True).state == AttemptState.LOST


def judged_check(blocks, reference=None, outcome=None):
    judge = TrajectoryMonitor(reference, formats=(), earlier=(), rounding=())
    ended = [judge(block) for block in blocks]
    return judge.result(TrialReport("t", outcome, "cause", tuple(blocks), 5.0)), ended


def flat(count, **changes):
    return numbered(count, steps=1, **changes)


def falling(count):
    return [dataclasses.replace(b, loss=5.0 - 0.05 * b.index) for b in flat(count)]


@pytest.mark.parametrize("count", [0, GATE.fewest_steps - 1, GATE.fewest_steps + 20])
def test_a_reference_that_its_time_has_ended_is_none(count):
    found, ended = judged_check(flat(count))
    assert not any(ended)
    assert (found.state, found.cause) == (
        "PRUNED",
        f"ended after {count} of {GATE.most_steps} steps",
    )


ENDED = "rank 0: the script ended after 50 measured optimizer steps, before enough was seen"
GRADIENT = {"gradient": [["a", 4, 1.0, 1.0, 0.5]]}


def judged_at_its_end(blocks, reference=None):
    judge = TrajectoryMonitor(reference, formats=(), earlier=(), rounding=())
    for block in blocks:
        judge(block)
    return judge.result(TrialReport("t", Outcome.ERROR, ENDED, tuple(blocks), 5.0, ended_after=50))


@pytest.mark.parametrize(
    ("steps", "observed", "state"),
    [
        (GATE.fewest_steps + 5, GRADIENT, "COMPLETE"),
        (GATE.start_steps, GRADIENT, "COMPLETE"),
        (GATE.start_steps - 1, GRADIENT, "ERROR"),
        (GATE.fewest_steps - 1, {}, "ERROR"),
    ],
)
def test_reference_of_a_script_that_came_to_its_end_is_judged_by_its_steps(steps, observed, state):
    first = [dataclasses.replace(block, observed=observed) for block in flat(STEPS_WITHOUT_DROPOUT)]
    found = judged_at_its_end([*first, *flat(steps)[STEPS_WITHOUT_DROPOUT:]])
    assert (found.state, ENDED in found.cause) == (state, state == "ERROR")


def test_reference_of_a_script_that_came_to_its_end_needs_a_fall_of_its_loss_without_gradients():
    assert judged_at_its_end(falling(GATE.fewest_steps + 5)).state == "COMPLETE"
    hardly = judged_at_its_end(flat(GATE.fewest_steps + 5))
    assert hardly.state == "REFUSED"
    assert "the loss of the reference fell by 0.0% in 37 steps" in hardly.cause


@pytest.mark.parametrize(("steps", "state"), [(37, "COMPLETE"), (36, "ERROR")])
def test_check_of_a_script_that_came_to_its_end_has_the_steps_of_its_reference(steps, state):
    reference = trajectory(falling(GATE.fewest_steps + 5))
    assert judged_at_its_end(falling(steps), reference).state == state


def test_a_reference_may_end_once_its_loss_has_fallen():
    found, ended = judged_check(falling(GATE.fewest_steps))
    assert ended[-1]
    assert found.state == "COMPLETE"


def test_a_reference_whose_loss_is_no_number_is_refused_however_short():
    assert judged_check(flat(3, loss=math.nan))[0].state == "REFUSED"


@pytest.mark.parametrize(
    ("outcome", "state"), [(None, "PRUNED"), (Outcome.ERROR, "ERROR"), (Outcome.OOM, "OOM")]
)
def test_a_check_that_its_time_has_ended_refuses_nothing(outcome, state):
    reference = trajectory(falling(GATE.fewest_steps))
    assert judged_check(falling(20), reference, outcome)[0].state == state


def test_a_check_that_its_first_steps_have_refuted_is_refused_however_short():
    reference = trajectory(falling(GATE.fewest_steps))
    apart = flat(STEPS_WITHOUT_DROPOUT, observed={"replica_spread": 1.0})
    found, ended = judged_check(apart, reference)
    assert ended[-1]
    assert found.state == "REFUSED"


def test_a_run_of_the_first_steps_that_its_time_has_ended_shows_nothing():
    report = TrialReport("t", None, "", (), 5.0)
    assert FirstStepsMonitor().result(report).state == "PRUNED"
