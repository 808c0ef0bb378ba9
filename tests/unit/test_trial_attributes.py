"""Attributes of trials in Optuna's storage: what is written is what is read."""

import math

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from autotune.search import trial_attributes
from autotune.search.trial_attributes import attributes_of, constraints_of, state_of
from storage import AttemptState


def told(end: str, value: float | None = None, **known: object) -> FrozenTrial:
    return optuna.trial.create_trial(
        state=state_of(end),
        value=value,
        user_attrs=attributes_of(end, **known),
        constraints=constraints_of(end),
    )


def test_what_is_told_is_read() -> None:
    trial = told("ERROR", cause="no", peak_bytes=7, half_width=0.2, standard_error=0.1)
    assert trial_attributes.end_of(trial) == "ERROR"
    assert trial_attributes.cause_of(trial) == "no"
    assert trial_attributes.peak_bytes_of(trial) == 7
    assert trial_attributes.half_width_of(trial) == 0.2
    assert trial_attributes.standard_error_of(trial) == 0.1


def test_what_is_not_told_is_unknown() -> None:
    trial = told("ERROR")
    assert trial.user_attrs == {"end": "ERROR"}
    assert trial_attributes.cause_of(trial) == ""
    assert math.isnan(trial_attributes.peak_bytes_of(trial))
    assert trial_attributes.half_width_of(trial) is None
    assert trial_attributes.standard_error_of(trial) is None


@pytest.mark.parametrize("end", AttemptState)
def test_ends_are_told_apart(end: AttemptState) -> None:
    trial = told(end, 1.0 if end == AttemptState.COMPLETE else None)
    assert trial_attributes.is_out_of_memory(trial) == (end == AttemptState.OOM)
    assert trial_attributes.was_cut_short(trial) == (end == AttemptState.PRUNED)
    assert (trial.state == TrialState.FAIL) == (
        end not in (AttemptState.COMPLETE, AttemptState.PRUNED, AttemptState.OOM)
    )
    assert any(value > 0 for value in trial.constraints.values()) == (end == AttemptState.OOM)
