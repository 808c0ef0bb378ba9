"""Whether a trajectory follows its reference."""

import dataclasses
import math

import numpy as np
import pytest

from autotune.measurement.numerics import STEPS, Trajectory, agreement


def falling(start=5.0, noise=0.0, seed=0):
    generator = np.random.default_rng(seed)
    losses = (
        start * np.exp(-0.05 * np.arange(STEPS)) * (1 + noise * generator.standard_normal(STEPS))
    )
    norms = 3 * (1 + noise * generator.standard_normal(STEPS))
    return Trajectory(tuple(losses), tuple(norms), 0.0)


REFERENCE = falling()


def test_the_rounding_of_low_precision_passes():
    refused = [
        seed
        for seed in range(1000)
        if agreement(falling(noise=0.005, seed=seed), REFERENCE).problem
    ]
    assert len(refused) <= 5


def test_a_loss_that_leaves_is_refused_with_its_step():
    losses = [loss * (1 if step < 8 else 1.2) for step, loss in enumerate(REFERENCE.losses)]
    found = agreement(dataclasses.replace(REFERENCE, losses=tuple(losses)), REFERENCE)
    assert "leaves the reference" in found.problem
    assert found.loss_distance > 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_refused(bad):
    losses = (*REFERENCE.losses[:-1], bad)
    assert agreement(dataclasses.replace(REFERENCE, losses=losses), REFERENCE).problem


@pytest.mark.parametrize("factor", [0.5, 2.0, 8.0, 65536.0])
def test_gradients_of_a_wrong_scale_are_refused(factor):
    norms = tuple(factor * norm for norm in REFERENCE.norms)
    found = agreement(dataclasses.replace(REFERENCE, norms=norms), REFERENCE)
    assert "norm" in found.problem
    assert found.norm_ratio == pytest.approx(factor)


def test_replicas_that_drift_apart_are_refused():
    found = agreement(dataclasses.replace(REFERENCE, spread=1e-6), REFERENCE)
    assert "not exchanged" in found.problem


def test_steps_that_the_loss_scaler_skipped_have_no_norm_and_do_not_matter():
    norms = (math.nan, math.nan, *REFERENCE.norms[2:])
    assert agreement(dataclasses.replace(REFERENCE, norms=norms), REFERENCE).problem == ""


def test_a_scaler_that_skips_every_step_is_refused():
    norms = (math.nan,) * STEPS
    assert agreement(dataclasses.replace(REFERENCE, norms=norms), REFERENCE).problem
