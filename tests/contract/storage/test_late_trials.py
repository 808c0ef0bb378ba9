"""A daemon that lost its lease writes nothing into Optuna's tables either, not even half-way."""

import itertools
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState
from sqlalchemy import inspect, text

from autotune.errors import StaleLease
from autotune.study.dashboard_sync import tell_result
from storage import AttemptResult, Lease, Repository, TrialLedger
from tests.contract.storage.making import CLUSTER, taken_over

KNOBS: dict[str, BaseDistribution] = {
    "micro_batch": CategoricalDistribution([1, 2, 4]),
    "precision": CategoricalDistribution(["fp32", "bf16"]),
}
DONE = AttemptResult("COMPLETE", throughput=1.0)
NUMBERS = itertools.count()

WRITES: dict[str, Callable[[TrialLedger], Any]] = {
    "enqueue": lambda ledger: ledger.enqueue({"micro_batch": 1, "precision": "fp32"}, "late"),
    "ask": lambda ledger: ledger.ask(KNOBS),
    "complete_params": lambda ledger: ledger.complete_params(ledger.trials()[1], KNOBS),
    "tell": lambda ledger: tell_result(ledger, 0, DONE, "late"),
    "note": lambda ledger: ledger.note("late"),
    "set_attributes": lambda ledger: ledger.set_attributes({"verdict": "late"}),
    "name_objective": lambda ledger: ledger.name_objective("late"),
}


class Waking(optuna.samplers.RandomSampler):
    """A sampler in which a daemon sleeps while another one takes over."""

    def __init__(self, take_over: Callable[[], object]) -> None:
        super().__init__(0)
        self._take_over = take_over

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        if name == "precision":
            self._take_over()
        return super().sample_independent(study, trial, name, distribution)


@pytest.fixture
def name() -> str:
    return f"late-{next(NUMBERS)}"


def optunas(repository: Repository) -> dict[str, list[str]]:
    """Everything in Optuna's tables."""
    with repository.database.engine.connect() as connection:
        names = [n for n in inspect(connection).get_table_names() if not n.startswith("autotune_")]
        found = {n: connection.execute(text(f'select * from "{n}"')).all() for n in names}
    assert found["studies"]
    return {n: sorted(map(repr, rows)) for n, rows in found.items()}


def two_trials(repository: Repository, name: str, lease: Lease) -> TrialLedger:
    """One that was asked for, and half of another."""
    ledger = TrialLedger(repository.database, name, optuna.samplers.RandomSampler(0), lease)
    ledger.ask(KNOBS)
    ledger.ask({"micro_batch": KNOBS["micro_batch"]})
    return ledger


@pytest.mark.long
@pytest.mark.fault(3)
@pytest.mark.parametrize("write", WRITES)
def test_a_daemon_that_lost_its_lease_writes_nothing(
    repository: Repository, lease: Lease, name: str, write: str
) -> None:
    ledger = two_trials(repository, name, lease)
    taken_over(repository)
    before = optunas(repository)
    with pytest.raises(StaleLease, match=CLUSTER):
        WRITES[write](ledger)
    assert optunas(repository) == before


@pytest.mark.long
@pytest.mark.parametrize("write", WRITES)
def test_the_holder_of_the_lease_writes(
    repository: Repository, lease: Lease, name: str, write: str
) -> None:
    ledger = two_trials(repository, name, lease)
    before = optunas(repository)
    WRITES[write](ledger)
    assert optunas(repository) != before


def test_a_study_is_not_made_too_late(repository: Repository, lease: Lease, name: str) -> None:
    two_trials(repository, name, lease)
    taken_over(repository)
    before = optunas(repository)
    with pytest.raises(StaleLease, match=CLUSTER):
        TrialLedger(repository.database, f"{name}-other", None, lease)
    assert optunas(repository) == before


@pytest.mark.fault(3)
def test_one_that_wakes_while_it_asks_leaves_half_a_trial_and_no_more(
    repository: Repository, lease: Lease, name: str
) -> None:
    successors: list[Lease] = []
    sampler = Waking(lambda: successors.append(taken_over(repository)))
    late = TrialLedger(repository.database, name, sampler, lease)
    with pytest.raises(StaleLease):
        late.ask(KNOBS)
    [lease_now] = successors
    ledger = TrialLedger(repository.database, name, optuna.samplers.RandomSampler(0), lease_now)
    [half] = ledger.trials()
    assert half.state is TrialState.RUNNING
    assert set(half.params) == {"micro_batch"}
    assert set(ledger.complete_params(half, KNOBS).params) == set(KNOBS)
    tell_result(ledger, 0, DONE, "")
    assert ledger.trials()[0].state is TrialState.COMPLETE


def test_whoever_only_reads_needs_no_lease(repository: Repository, lease: Lease, name: str) -> None:
    ledger = two_trials(repository, name, lease)
    successor = taken_over(repository)
    assert len(ledger.trials()) == 2
    assert len(TrialLedger(repository.database, name).trials()) == 2
    TrialLedger(repository.database, name, None, successor).note("mine")
