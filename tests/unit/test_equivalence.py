"""Two one-sided tests over correlated steps."""

import numpy as np
import pytest

from autotune.measurement.numerics import Equivalence, distance

MARGIN, RUNS, LENGTH, TIMES = 1.0, 3, 12, 2000


def courses(generator, mean, sigma, r=0.0):
    """Differences of a few runs, each step correlated with the one before."""
    found = []
    for _ in range(RUNS):
        noise = generator.standard_normal(LENGTH)
        for step in range(1, LENGTH):
            noise[step] = r * noise[step - 1] + np.sqrt(1 - r * r) * noise[step]
        found.append(mean + sigma * noise)
    return found


def share(answer, mean, sigma, r=0.0):
    generator = np.random.default_rng(0)
    answers = [distance(courses(generator, mean, sigma, r)).within(MARGIN, 1) for _ in range(TIMES)]
    return answers.count(answer) / TIMES


@pytest.mark.parametrize("r", [0.0, 0.5])
def test_what_lies_a_margin_apart_is_seldom_called_equivalent(r):
    assert share(Equivalence.EQUIVALENT, MARGIN, 1.0, r) <= 0.06
    assert share(Equivalence.DIFFERENT, MARGIN, 1.0, r) <= 0.02


@pytest.mark.parametrize("scatter", [0.05, 0.1, 0.2])
def test_the_luck_of_a_seed_is_no_equivalence(scatter):
    """A margin apart on average, with seeds that differ: after each pair is looked again."""
    generator = np.random.default_rng(0)
    passed = 0
    for _ in range(TIMES):
        runs, answer = [], Equivalence.OPEN
        while answer is Equivalence.OPEN and len(runs) < RUNS:
            own = MARGIN + scatter * MARGIN * generator.standard_normal()
            runs.append(list(own + 0.1 * generator.standard_normal(LENGTH)))
            answer = distance(runs).within(MARGIN, RUNS)
        passed += answer is Equivalence.EQUIVALENT
    assert passed / TIMES <= 0.06


def test_what_lies_together_is_found_equivalent():
    assert share(Equivalence.EQUIVALENT, 0.0, 1.0) > 0.98


def test_what_lies_far_apart_is_found_different():
    assert share(Equivalence.DIFFERENT, 3.0, 1.0) > 0.98


def test_equal_courses_have_no_distance():
    found = distance([[0.0] * 8])
    assert (found.mean, found.error) == (0.0, 0.0)
    assert found.within(MARGIN, 3) is Equivalence.EQUIVALENT
