"""What a trial's report means."""

import dataclasses
import math

import pytest

from autotune.measurement.stop_rule import Limits
from autotune.runs.monitors import TimedMonitor
from autotune.worker.protocol import SCRIPT_ENDED, BlockReport, Outcome, TrialReport
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
    cause = f"rank 0: {SCRIPT_ENDED} 50 measured optimizer steps, before enough was seen"
    found = judged(numbered(blocks), Outcome.ERROR, cause=cause)
    assert (found.state, found.throughput) == (state, 100.0 if state == "COMPLETE" else None)


def test_a_lost_agent_is_nobodys_fault():
    assert judged(numbered(5), Outcome.CRASH, lost_agent=True).state == AttemptState.LOST
