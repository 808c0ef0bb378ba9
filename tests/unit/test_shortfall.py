"""Time that a study without a verdict asks for, and what it names instead."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autotune.analysis.conclusion import unmeasured_leader
from autotune.analysis.confirmation import Confirmation
from autotune.analysis.costs import CostRecords
from autotune.analysis.finalists import Candidate
from autotune.analysis.finals_price import FinalsPrice
from autotune.analysis.outcomes import Failure
from autotune.analysis.shortfall import Shortfall, WallTime, shortfall
from autotune.worker.protocol import STEPS_WITHOUT_DROPOUT
from search_spaces import defaults
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt, StoredBlock

BASELINE = defaults()
RIVAL = {**BASELINE, "num_workers": 2}
RUN = 5.0
LEFT = WallTime(40.0, 15.0)


def trial(
    number: int, knobs: dict[str, object], waited: float = 0.0, run: float = RUN
) -> StoredAttempt:
    result = AttemptResult(AttemptState.COMPLETE, throughput=100.0 + number, wall_seconds=run)
    return StoredAttempt(
        number + 1, number, Purpose.SEARCH, 0, 1, knobs, 0.0, waited + run, result, 1
    )


def asked(*trials: StoredAttempt) -> float:
    attempts = Attempts(trials, BASELINE)
    blocks = [StoredBlock(0, 4, 32, 0, 1.0, [1.0], 0.0, 1.0, 0, True)]
    costs = CostRecords(lambda _: blocks).by(attempts)
    seconds = shortfall(None, FinalsPrice(attempts, costs, BASELINE), LEFT).seconds
    assert seconds is not None
    return seconds


def test_time_asked_for_a_rival_pays_another_trial_before_its_proof() -> None:
    baseline, rival = trial(0, BASELINE), trial(1, RIVAL)
    rounds = 3 * 2 * RUN
    assert asked(baseline, rival) >= rounds + RUN - LEFT.left


def test_time_asked_for_pays_the_wait_for_new_processes() -> None:
    first = trial(0, BASELINE, run=25.0)
    at_once = asked(first, trial(1, RIVAL))
    assert asked(first, trial(1, RIVAL, waited=20.0)) == at_once + 20.0


def test_time_asked_for_without_a_rival_pays_the_wait_for_new_processes() -> None:
    first = trial(0, BASELINE, run=25.0)
    at_once = asked(first, trial(1, BASELINE))
    assert asked(first, trial(1, BASELINE, waited=20.0)) >= at_once + 20.0


def test_time_asked_for_pays_no_sleep_of_the_machine() -> None:
    at_once = asked(trial(0, BASELINE), trial(1, RIVAL))
    assert asked(trial(0, BASELINE), trial(1, RIVAL, waited=28_800.0)) <= at_once + 2 * RUN


def test_time_asked_for_pays_no_turns_of_other_runs() -> None:
    def asked_after(seconds: float) -> float:
        searched = [trial(0, BASELINE), trial(1, RIVAL)]
        several = [trial(one.trial, one.knobs, run=60.0) for one in searched]
        in_turn = [
            replace(one, id=9 + one.trial, purpose=Purpose.CONFIRM, round=1, ended=seconds)
            for one in several
        ]
        return asked(*searched, *in_turn)

    assert asked_after(120.0) == asked_after(60.0)


def test_time_asked_for_pays_no_turns_of_a_pair() -> None:
    def asked_after(seconds: float) -> float:
        first, rival = trial(0, BASELINE, run=25.0), trial(1, RIVAL, run=25.0)
        paired = replace(first, id=8, purpose=Purpose.PAIRED, round=1, ended=seconds)
        return asked(first, paired, replace(rival, id=9, ended=seconds))

    assert asked_after(50.0) == asked_after(25.0)


def finals(observed: dict[str, Any], *others: StoredAttempt) -> float:
    """Price of the finals of bf16, whose runs showed this of the model."""
    half = {**BASELINE, "precision": "bf16"}
    attempts = Attempts([trial(0, BASELINE), trial(1, half), *others], BASELINE)
    blocks = [StoredBlock(0, 4, 32, 0, 1.0, [1.0], 0.0, 1.0, 0, True, observed=observed)]
    return FinalsPrice(attempts, CostRecords(lambda _: blocks).by(attempts), BASELINE).finals(
        [half], 3
    )


def test_finals_of_a_convolutional_model_pay_its_run_under_autocast() -> None:
    launch, step = RUN - 1.0, 0.25  # a block of a second has four steps
    dearer = finals({"convolutions": 1}) - finals({})
    assert dearer == pytest.approx(launch + STEPS_WITHOUT_DROPOUT * step)


def test_run_under_autocast_is_paid_once() -> None:
    done = replace(trial(0, BASELINE), id=9, purpose=Purpose.AUTOCAST)
    assert finals({"convolutions": 1}, done) == finals({}, done)


def test_runs_that_never_came_to_a_step_ask_for_no_time() -> None:
    def in_vain(number: int) -> StoredAttempt:
        cause = "did not finish its first step within 12 s"
        result = AttemptResult(AttemptState.PRUNED, cause, wall_seconds=12.0)
        purpose = Purpose.CALIBRATE if number else Purpose.SEARCH
        return StoredAttempt(number, 0, purpose, 0, 1, BASELINE, 0.0, 12.0, result, 1)

    def found(*trials: StoredAttempt) -> Failure | None:
        attempts = Attempts(trials, BASELINE)
        costs = CostRecords(lambda _: []).by(attempts)
        return shortfall(None, FinalsPrice(attempts, costs, BASELINE), LEFT).hindrance

    assert found(in_vain(0)) is None
    stuck = found(in_vain(0), in_vain(1))
    assert stuck is not None
    assert (stuck.trial, stuck.state) == (0, AttemptState.HANG)
    assert found(in_vain(0), in_vain(1), trial(2, BASELINE)) is None


@pytest.mark.parametrize("fails_before", [False, True])
def test_trial_that_its_check_refuses_is_named_with_the_reason(fails_before: bool) -> None:
    searched = [trial(0, BASELINE), trial(1, RIVAL)]
    reason = "its loss leaves the reference"
    result = AttemptResult(AttemptState.REFUSED, reason, wall_seconds=RUN)
    check = replace(searched[1], id=9, purpose=Purpose.NUMERICS, result=result)
    failure = AttemptResult(AttemptState.CRASH, "died by SIGKILL", wall_seconds=RUN)
    before = [replace(check, id=8, result=failure)] if fails_before else []
    attempts = Attempts([*searched, *before, check], BASELINE)
    blocks = [StoredBlock(0, 4, 32, 0, 1.0, [1.0], 0.0, 1.0, 0, True)]
    costs = CostRecords(lambda _: blocks).by(attempts)
    hindrance = shortfall(None, FinalsPrice(attempts, costs, BASELINE), LEFT).hindrance
    assert hindrance == Failure(1, AttemptState.COMPLETE, reason)


def test_trial_that_looked_faster_and_was_not_measured_again_is_named() -> None:
    def named(*trials: StoredAttempt) -> int | None:
        attempts = Attempts(trials, BASELINE)
        costs = CostRecords(lambda _: []).by(attempts)
        found = unmeasured_leader(FinalsPrice(attempts, costs, BASELINE))
        return found and found.trial

    assert named(trial(0, BASELINE), trial(1, RIVAL)) == 1
    assert named(trial(1, BASELINE), trial(0, RIVAL)) is None
    assert named(trial(0, BASELINE)) is None


def test_rounds_that_would_tell_beyond_those_allowed_are_counted() -> None:
    attempts = Attempts([trial(0, BASELINE), trial(1, {**BASELINE, "micro_batch": 8})], BASELINE)
    blocks = [StoredBlock(0, 4, 32, 0, 1.0, [1.0], 0.0, 1.0, 0, True)]
    costs = CostRecords(lambda _: blocks).by(attempts)

    def lacking(gains: Sequence[float]) -> Shortfall:
        candidates = [Candidate(one.trial, one.knobs, 0) for one in attempts]
        confirmation = Confirmation(candidates, 0, len(gains) + 1)
        for gain in gains:
            confirmation.close_round({0: 100.0, 1: 100.0 * gain})
        return shortfall(confirmation, FinalsPrice(attempts, costs, BASELINE), LEFT)

    beyond, hopeless = lacking([1.02, 1.25, 1.13, 0.99]), lacking([0.6, 1.7, 0.9, 1.4])
    assert beyond.seconds is hopeless.seconds is hopeless.rounds is None
    assert beyond.rounds is not None and 1 < beyond.rounds < 46
