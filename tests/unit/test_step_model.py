"""What is learnt of the time of a step, on times that are made up of known parts."""

import itertools
import math
import random

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution

from autotune.search.grid import Grid
from autotune.search.observations import Observations
from autotune.search.step_model import StepModel
from autotune.search.step_parts import Parts

SPACE = {
    "micro_batch": [1, 2, 4, 8, 16],
    "accumulation_steps": [1, 2, 4],
    "precision": ["fp32", "bf16"],
    "fast": [False, True],
    "idle_one": [False, True],
    "idle_two": ["a", "b", "c"],
}
NOISE = 0.02
GRID = Grid({name: CategoricalDistribution(values) for name, values in SPACE.items()})
EVERY = [dict(zip(SPACE, values, strict=True)) for values in itertools.product(*SPACE.values())]
ROWS = np.array([GRID.encode(params) for params in EVERY])


def time(p):
    """Seconds per sample."""
    m, a = p["micro_batch"], p["accumulation_steps"]
    compute = 0.6 if p["precision"] == "bf16" else 1.0
    return (compute + 2 / m + 4 / (m * a)) * (0.8 if p["fast"] else 1.0)


def learnt(count, seed=0, running=()):
    draw = random.Random(seed)
    seen = draw.sample(range(len(EVERY)), count)
    times = np.array([time(EVERY[n]) * math.exp(draw.gauss(0, NOISE)) for n in seen])
    unit = times.min()
    rows = ROWS[list(running)]
    own = Observations(ROWS[seen], times / unit, NOISE * times / unit, rows, unit)
    return StepModel(GRID, own), unit, seen


def test_slopes_are_the_derivatives_of_the_value():
    parts = Parts(GRID)
    features = parts.features(ROWS[:40])
    at = parts.mean + np.random.default_rng(0).normal(size=len(parts.mean)) * 0.3
    value, slopes = parts.slopes(features, at)
    np.testing.assert_allclose(value, parts.value(features, at[:, None])[:, 0])
    for number in range(len(at)):
        moved = at.copy()
        moved[number] += 1e-6
        found = (parts.value(features, moved[:, None])[:, 0] - value) / 1e-6
        np.testing.assert_allclose(found, slopes[:, number], atol=1e-4)


def test_fifteen_of_three_hundred_rows_tell_of_all():
    for seed in range(3):
        model, unit, _ = learnt(15, seed)
        truth = np.array([time(params) for params in EVERY])
        errors = np.log(model.expected(ROWS) * unit / truth)
        assert np.median(np.abs(errors)) < 0.04
        assert np.mean(np.abs(errors)) < 0.05


def test_what_does_nothing_is_left_alone():
    model, *_ = learnt(30)
    base = {"micro_batch": 16, "accumulation_steps": 4, "precision": "bf16"}
    idle = [
        GRID.encode({**base, "fast": True, "idle_one": one, "idle_two": two})
        for one in SPACE["idle_one"]
        for two in SPACE["idle_two"]
    ]
    slow = GRID.encode({**base, "fast": False, "idle_one": False, "idle_two": "a"})
    expected = np.log(model.expected(np.array([*idle, slow])))
    assert np.ptp(expected[:-1]) < 0.03
    assert expected[-1] - expected[:-1].mean() == pytest.approx(-math.log(0.8), abs=0.05)


def test_a_noisy_trial_is_expected_to_bring_less_than_a_clean_one():
    model, *_ = learnt(8)
    gain, clean = model.gain(ROWS), model.acquisition(ROWS)
    assert (gain >= 0).all()
    assert gain.max() <= clean.max() / 0.4


def test_what_is_left_is_what_was_not_measured():
    truth = np.array([time(params) for params in EVERY])
    for seed in range(4):
        model, _, seen = learnt(60, seed)
        new = np.array([number for number in range(len(EVERY)) if number not in seen])
        finalists = [seen[number] for number in model.finalists()]
        left = 1 - truth.min() / truth[finalists].min()
        assert model.left(ROWS[new]).mean() == pytest.approx(left, abs=0.025)


def test_residuals_of_a_model_that_holds_are_as_large_as_they_are_said_to_be():
    surprises = [learnt(25, seed)[0].surprise() for seed in range(4)]
    assert 0.4 < np.mean(surprises) < 1.6
    assert len(learnt(10, running=(3, 7))[0].finalists()) == 3


def test_noise_is_the_standard_error_that_trials_carry():
    def told(**attributes):
        return optuna.trial.create_trial(
            params=EVERY[0],
            distributions={n: CategoricalDistribution(v) for n, v in SPACE.items()},
            value=1.0,
            user_attrs=attributes,
        )

    # With two degrees of freedom Student's interval is 4.3 standard errors wide.
    several = [told(standard_error=0.01, half_width=0.043), told(half_width=0.0196), told()]
    seen = Observations.of(several, GRID, rate=True)
    np.testing.assert_allclose(seen.noise, [0.01, 0.01, 0.03])
