"""What the benchmarks take the rows of a recorded table to be worth, on tables whose truth is known."""

import itertools
import random

import numpy as np
import pytest

from autotune.search.space import key
from autotune.standalone.recording import Run
from benchmarks.denoised import pooled

NAMES = ["size", "steps", "format", "idle"]
SPACE = [[1, 2, 4, 8, 16], [1, 2, 4], ["a", "b"], [False, True]]
NOISE = 0.1


def recorded(seed):
    """Logarithms of true rates, and runs: all once, the leading ones again, in other passes."""
    draw = random.Random(seed)
    shifts = {"a": 0.0, "b": draw.uniform(0.05, 0.3)}
    truth = {}
    for size, steps, number_format, idle in itertools.product(*SPACE):
        params = dict(zip(NAMES, (size, steps, number_format, idle), strict=True))
        log = -np.log(1 + 4 / size + 3 / (size * steps)) + shifts[number_format]
        truth[key(params)] = (log + draw.gauss(0, 0.01), params)
    leading = sorted(truth, key=lambda one: truth[one][0])[-12:]
    runs = []
    for number, several in enumerate([list(truth), list(truth)[:12] + leading, leading, leading]):
        speed = draw.gauss(0, 0.1)
        for one in several:
            log, params = truth[one]
            rate = float(np.exp(log + speed + draw.gauss(0, NOISE)))
            runs.append(Run(number, params, rate, 1.0, "COMPLETE"))
    return {one: log for one, (log, _) in truth.items()}, runs


@pytest.fixture(scope="module")
def several():
    return [(truth, runs, pooled(runs, NAMES)) for truth, runs in map(recorded, range(2))]


def test_pooling_is_nearer_to_the_truth_than_runs_are(several):
    for truth, runs, found in several:
        first = np.array(
            [np.log(r.throughput) - truth[key(r.params)] for r in runs if not r.number]
        )
        own = np.array([found.truth[one] - truth[one] for one in truth])
        assert own.std() < 0.6 * first.std()


def test_the_noise_of_a_run_is_found(several):
    assert np.mean([found.noise for *_, found in several]) == pytest.approx(NOISE, rel=0.15)


def test_the_stated_spread_is_that_of_the_errors(several):
    scores = [
        (found.truth[one] - truth[one]) / np.sqrt(found.spread[place, place])
        for truth, _, found in several
        for place, one in enumerate(found.truth)
    ]
    centred = np.array(scores) - np.mean(scores)
    assert 0.7 < centred.std() < 1.3


def test_how_sure_the_best_is(several):
    for *_, found in several:
        assert 0 < found.chance_of_best(0.02) <= found.chance_of_best(0.1) <= 1


def test_a_configuration_that_failed_once_is_worth_nothing(several):
    _, runs, _ = several[0]
    failed = runs[0]
    more = [*runs, Run(5, failed.params, None, 1.0, "OOM")]
    assert key(failed.params) not in pooled(more, NAMES).truth
