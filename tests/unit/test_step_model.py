"""What is learnt of the time of a step, on times that are made up of known parts."""

import itertools
import math
import random
import statistics

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution

from autotune.search.grid import Grid
from autotune.search.observations import Observations
from autotune.search.performance_model import PerformanceModelSampler
from autotune.search.step_model import StepModel
from autotune.search.step_parts import Parts, Profile

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
        first = model.finalists(3)
        finalists = [seen[number] for number in first]
        left = 1 - truth.min() / truth[finalists].min()
        assert model.left(ROWS[new], first).mean() == pytest.approx(left, abs=0.025)


def test_residuals_of_a_model_that_holds_are_as_large_as_they_are_said_to_be():
    surprises = [learnt(25, seed)[0].surprise() for seed in range(4)]
    assert 0.4 < np.mean(surprises) < 1.6
    assert len(learnt(10, running=(3, 7))[0].finalists(3)) == 3


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
    seen = Observations.of(several, GRID)
    np.testing.assert_allclose(seen.noise, [0.01, 0.01, 0.03])


# A profile


LOADED = {
    "micro_batch": [4, 8, 16, 32],
    "precision": ["fp32", "bf16"],
    "bucket_cap_mb": [1, 5, 25, 100],
    "gradient_as_bucket_view": [False, True],
    "optimizer_kernels": ["default", "foreach", "fused"],
    "num_workers": [0, 1, 2, 4],
    "pin_memory": [False, True],
    "log_interval": [1, 10, 50],
}
DISTRIBUTIONS = {name: CategoricalDistribution(values) for name, values in LOADED.items()}
LOADED_GRID = Grid(DISTRIBUTIONS)
BASELINE = {
    "micro_batch": 8,
    "precision": "fp32",
    "bucket_cap_mb": 25,
    "gradient_as_bucket_view": False,
    "optimizer_kernels": "default",
    "num_workers": 0,
    "pin_memory": False,
    "log_interval": 10,
}
SHARES = {"loader": 0.6, "compute": 0.2, "communication": 0.1, "launching": 0.04, "optimizer": 0.06}


def test_bases_are_what_was_measured():
    parts = Parts(LOADED_GRID)
    before = parts.scale.copy()
    parts.measure(Profile(BASELINE, {"compute": 0.4, "loader": 0.5, "copies": 0.1}), 2.0)
    # Effects are those against what was profiled, whatever they are.
    any_effects = parts.mean + (parts.knob >= 0) * np.random.default_rng(0).normal(
        size=len(parts.mean)
    )
    row = parts.features(LOADED_GRID.encode(BASELINE)[None, :])
    value, slopes = parts.slopes(row, any_effects)
    assert value == pytest.approx(parts.value(row, parts.mean[:, None])[:, 0])
    np.testing.assert_allclose(slopes[0, parts.knob >= 0], 0.0, atol=1e-12)
    assert np.exp(parts.mean.max()) == pytest.approx(0.6 * 2.0, rel=0.15)
    assert (parts.scale != before).sum() == 4  # compute, launching and pressure are not told apart
    assert (parts.scale <= before).all()


def shown(profile):
    """What the model of a study makes of another loader, which has seen two configurations alike."""
    rows = np.array([LOADED_GRID.encode({**BASELINE, "log_interval": n}) for n in (10, 50)])
    nothing = np.zeros((0, len(LOADED)), dtype=np.int64)
    own = Observations(rows, np.ones(2), np.full(2, NOISE), nothing, 1.0)
    model = StepModel(LOADED_GRID, own, profile)
    return float(model.promise(LOADED_GRID.encode({**BASELINE, "num_workers": 4})[None, :])[0])


def test_a_profile_of_what_was_not_measured_says_nothing():
    none = shown(None)
    assert shown(Profile(BASELINE, SHARES)) != none
    assert shown(Profile({**BASELINE, "precision": "bf16"}, SHARES)) == none
    assert shown(Profile({"micro_batch": 8}, SHARES)) == none


def trials_until_close(seed, profile):
    """To within 2 % of the best of a machine whose baseline is of SHARES, 60 % of it the loader's."""
    draw = random.Random(seed)
    workers = {
        0: 1.0,
        1: draw.uniform(0.6, 1),
        2: draw.uniform(0.35, 0.8),
        4: draw.uniform(0.25, 0.8),
    }
    bucket = {n: draw.uniform(0.75, 1.25) for n in LOADED["bucket_cap_mb"]} | {25: 1.0}
    half, view, fused = (draw.uniform(0.6, 1.1) for _ in range(3))

    def time(p):
        m = p["micro_batch"] / 8
        sent = SHARES["communication"] * bucket[p["bucket_cap_mb"]]
        sent *= view if p["gradient_as_bucket_view"] else 1.0
        update = SHARES["optimizer"] * (fused if p["optimizer_kernels"] == "fused" else 1.0)
        compute = SHARES["compute"] * (half if p["precision"] == "bf16" else 1.0)
        loading = SHARES["loader"] * workers[p["num_workers"]]
        return loading + compute + (sent + update + SHARES["launching"]) / m

    best = min(time(dict(zip(LOADED, v, strict=True))) for v in itertools.product(*LOADED.values()))
    sampler = PerformanceModelSampler(seed, DISTRIBUTIONS)
    sampler.see(profile)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial(BASELINE)
    study.enqueue_trial({name: draw.choice(values) for name, values in LOADED.items()})
    for number in range(1, 31):
        trial = study.ask(DISTRIBUTIONS)
        took = time(trial.params)
        study.tell(trial, 1 / (took * math.exp(draw.gauss(0, NOISE))))
        if took <= best / 0.98:
            return number
    return 31


@pytest.mark.long
def test_who_knows_that_the_loader_takes_most_is_done_sooner():
    needed = [
        statistics.geometric_mean(trials_until_close(seed, profile) for seed in range(48))
        for profile in (Profile(BASELINE, SHARES), None)
    ]
    assert needed[0] < 0.85 * needed[1]
