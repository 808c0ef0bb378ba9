"""Values of trials in Optuna: rates over that of one trial, which stays the same."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.study.dashboard_sync import ObjectiveValues
from search_spaces import defaults
from storage import (
    AttemptResult,
    Attempts,
    AttemptState,
    Database,
    Purpose,
    StoredAttempt,
    TrialLedger,
)

OWN = defaults()
OTHER = {**OWN, "micro_batch": 2}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[TrialLedger]:
    database = Database(f"sqlite:///{tmp_path}/autotune.db")
    yield TrialLedger(database, "first")
    database.engine.dispose()
    database.optuna().engine.dispose()


def run(trial: int, rate: float, ended: float, knobs: dict = OTHER) -> StoredAttempt:
    result = AttemptResult(AttemptState.COMPLETE, throughput=rate)
    return StoredAttempt(trial + 1, trial, Purpose.SEARCH, 0, 1, knobs, 0.0, ended, result, 1)


@pytest.mark.parametrize(
    ("knobs", "name"), [(OWN, "throughput over yours"), (OTHER, "throughput over trial 0")]
)
def test_a_clock_that_is_set_back_leaves_the_unit(
    ledger: TrialLedger, knobs: dict, name: str
) -> None:
    values = ObjectiveValues(ledger, "samples/s")
    first = run(0, 100.0, ended=5000.0, knobs=knobs)
    assert values.of(first.result, Attempts([first], OWN)) == 1.0
    later = run(1, 150.0, ended=1400.0)
    assert values.of(later.result, Attempts([first, later], OWN)) == 1.5
    assert ledger.objective == name


def test_the_trial_that_ended_first_is_the_unit_whatever_its_number(ledger: TrialLedger) -> None:
    values = ObjectiveValues(ledger, "samples/s")
    quick, slow = run(1, 100.0, ended=10.0), run(0, 80.0, ended=20.0, knobs=OWN)
    running = AttemptResult(AttemptState.RUNNING)
    unfinished = dataclasses.replace(slow, ended=None, result=running)
    assert values.of(quick.result, Attempts([unfinished, quick], OWN)) == 1.0
    assert values.of(slow.result, Attempts([slow, quick], OWN)) == 0.8
    assert ledger.objective == "throughput over trial 1"
