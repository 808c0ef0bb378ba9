"""Which of the configurations that were measured are the fastest."""

import itertools

import numpy as np
import pytest

from autotune.search.ranking import expectation

SIZES, BUCKETS, LOGGING = (1, 2, 4, 8, 16), (5, 25, 100), (1, 10, 50)
EVERY = [
    {"micro_batch": s, "bucket_cap_mb": b, "log_interval": n}
    for s, b, n in itertools.product(SIZES, BUCKETS, LOGGING)
]


def truth(knobs):
    """Larger batches pay, buckets of 25 MiB a little, logging nothing."""
    bucket = 0.02 * abs(np.log2(knobs["bucket_cap_mb"] / 25))
    return 100 * np.exp(0.1 * np.log2(knobs["micro_batch"]) - bucket)


def renamed(knobs):
    return {f"x_{name}": value for name, value in knobs.items()}


@pytest.mark.parametrize("named", [dict, renamed], ids=["known", "unknown"])
def test_all_together_tell_more_than_one_run(named):
    """What comes first is nearer to the best than what was seen fastest, over many draws of noise."""
    left_by_luck, left = [], []
    best = max(map(truth, EVERY))
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(0, 0.08, len(EVERY))
        rates = [truth(knobs) * np.exp(n) for knobs, n in zip(EVERY, noise, strict=True)]
        first = expectation(rates, [0.08] * len(rates), list(map(named, EVERY))).order()[0]
        left.append(1 - truth(EVERY[first]) / best)
        left_by_luck.append(1 - truth(EVERY[int(np.argmax(rates))]) / best)
    assert np.mean(left) < 0.7 * np.mean(left_by_luck)


def test_what_is_seen_without_noise_is_left_alone():
    rates = [truth(knobs) + n / 100 for n, knobs in enumerate(EVERY)]
    order = expectation(rates, [1e-4] * len(rates), EVERY).order()
    assert order == sorted(range(len(rates)), key=lambda place: -rates[place])


def test_nothing_that_varies():
    assert expectation([1.0, 3.0, 2.0], [0.1] * 3, [{"a": 1}] * 3).order() == [1, 2, 0]
    assert expectation([2.0], [0.1], [{"a": 1}]).order() == [0]
    assert expectation([], [], []).order() == []


def test_one_and_true_are_two_values():
    knobs = [{"compile": True, "n": 1}, {"compile": 1, "n": 1}, {"compile": "no", "n": 1}]
    assert expectation([1.0, 2.0, 3.0], [0.001] * 3, knobs).order() == [2, 1, 0]


def test_only_the_ratios_of_rates_count():
    """Tokens or samples per second; a rate as small as that of a trial that came to nothing is no
    error."""
    rates = [truth(knobs) * (1 + n % 7 / 50) for n, knobs in enumerate(EVERY)]
    order = expectation(rates, [0.05] * len(rates), EVERY).order()
    assert order == expectation([1000 * rate for rate in rates], [0.05] * len(rates), EVERY).order()
    tiny = [*rates[:-1], 1e-300]
    assert expectation(tiny, [0.05] * len(tiny), EVERY).order()[-1] == len(tiny) - 1


def test_expected_ratio_has_an_interval_that_mostly_holds_the_truth():
    held = []
    for seed in range(4):
        draw = np.random.default_rng(seed)
        several = [EVERY[place] for place in draw.permutation(len(EVERY))[:20]]
        rates = [truth(knobs) * np.exp(draw.normal(0, 0.04)) for knobs in several]
        found = expectation(rates, [0.04] * len(rates), several)
        for place in range(1, len(several)):
            off = np.log(found.rates[place] / found.rates[0])
            off -= np.log(truth(several[place]) / truth(several[0]))
            held.append(abs(off) < found.half_width(place, 0))
    assert np.mean(held) > 0.85
    assert found.half_width(0, 0) == 0.0
