"""What a winner can do without."""

import math

import numpy as np
import pytest

from autotune.analysis.contributions import (
    NEGLIGIBLE,
    CheckOutcome,
    contributions,
    reduce_winner,
)
from search_spaces import Facts, defaults
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt

FACTS = Facts("cpu", 2, backend="gloo")
BASELINE = defaults()
CHANGES = {
    "bucket_cap_mb": 50,
    "log_interval": 50,
    "gradient_as_bucket_view": True,
    "broadcast_buffers": False,
    "static_graph": True,
}
WINNER = {**BASELINE, **CHANGES}


def measured(gain, sigma, seed, rounds=3, most=10, judge=lambda _: CheckOutcome.PASSED):
    """All that is asked for is run; how it ends, and the rounds of ablation that it took."""
    generator = np.random.default_rng(seed)
    runs: list[StoredAttempt] = []
    while True:
        attempts = Attempts(runs, BASELINE)
        found = reduce_winner(attempts, WINNER, BASELINE, FACTS, judge, rounds=rounds, most=most)
        if found.next is None:
            return found.knobs, attempts
        shared = generator.normal(0.0, 0.05)
        for knobs in found.next.configurations:
            level = gain({name for name in CHANGES if knobs[name] != BASELINE[name]})
            rate = 100 * math.exp(level + shared + generator.normal(0.0, sigma))
            result = AttemptResult(AttemptState.COMPLETE, throughput=rate)
            at = len(runs) + 1
            runs.append(
                StoredAttempt(
                    at, 4, Purpose.ABLATION, found.next.round, 1, knobs, at, at + 1.0, result
                )
            )


def kept(knobs):
    return {name for name in CHANGES if knobs[name] != BASELINE[name]}


def test_without_noise_only_what_brings_something_is_left():
    def gain(there):
        return 0.1 * ("bucket_cap_mb" in there) + 0.03 * ("static_graph" in there)

    knobs, attempts = measured(gain, 0.0, 0)
    assert kept(knobs) == {"bucket_cap_mb", "static_graph"}
    assert len({run.round for run in attempts}) == 3 + 3, "all idle ones went back together"


def test_of_two_that_do_the_same_one_is_left():
    def gain(there):
        return 0.1 * bool({"bucket_cap_mb", "static_graph"} & there)

    knobs, _ = measured(gain, 0.0, 0)
    assert len(kept(knobs)) == 1
    assert kept(knobs) < {"bucket_cap_mb", "static_graph"}


def test_little_that_many_bring_each_is_not_given_away_together():
    idle = set(CHANGES) - {"bucket_cap_mb"}

    def gain(there):
        return 0.1 * ("bucket_cap_mb" in there) + 0.0035 * len(idle & there)

    for seed in range(3):
        knobs, _ = measured(gain, 0.0005, seed)
        assert gain(set(CHANGES)) - gain(kept(knobs)) < NEGLIGIBLE


def test_all_that_brings_something_stays():
    knobs, attempts = measured(lambda there: 0.02 * len(there), 0.0, 0)
    assert knobs == WINNER
    assert len({run.round for run in attempts}) == 3


@pytest.mark.parametrize(("sigma", "idle"), [(0.001, 0.2), (0.003, 1.0), (0.03, 3.0)])
def test_what_noise_hides_stays_and_what_brings_one_per_cent_is_seldom_lost(sigma, idle):
    """A change worth 1 % and one worth 5 %, three idle ones."""

    def gain(there):
        return 0.05 * ("bucket_cap_mb" in there) + 0.01 * ("static_graph" in there)

    lost, left = 0, []
    for seed in range(15):
        knobs, _ = measured(gain, sigma, seed)
        lost += gain(set(CHANGES)) - gain(kept(knobs)) > NEGLIGIBLE
        left.append(len(kept(knobs) - {"bucket_cap_mb", "static_graph"}))
    assert lost <= 2
    assert np.mean(left) <= idle


def test_a_variant_that_fails_is_left_alone():
    runs = []
    for _ in range(40):
        attempts = Attempts(runs, BASELINE)
        found = reduce_winner(
            attempts, WINNER, BASELINE, FACTS, lambda _: CheckOutcome.PASSED, rounds=2, most=3
        )
        if found.next is None:
            break
        for knobs in found.next.configurations:
            failed = not knobs["static_graph"]
            state = AttemptState.CRASH if failed else AttemptState.COMPLETE
            level = 100.0 + knobs["bucket_cap_mb"] / 10
            result = AttemptResult(state, throughput=None if failed else level)
            at = len(runs) + 1
            step = found.next.round
            runs.append(StoredAttempt(at, 4, Purpose.ABLATION, step, 1, knobs, at, at, result))
    assert "static_graph" in kept(found.knobs)
    assert "bucket_cap_mb" in kept(found.knobs)


def test_idle_changes_seldom_show_an_effect():
    """All intervals of one ablation at once: with Student's of each alone a third of them had one."""
    shown = 0
    for seed in range(60):
        _, attempts = measured(lambda there: 0.0, 0.01, seed, most=2)
        gains = contributions(attempts, WINNER, BASELINE, FACTS)
        assert len(gains) == len(CHANGES)
        shown += any(not one.gain.low <= 1 <= one.gain.high for one in gains)
    assert shown <= 7


def test_what_is_refused_of_the_rest_goes_back_by_parts():
    """Without `broadcast_buffers` the rest would be refused; the other idle changes go back."""

    def judge(knobs):
        alone = knobs["broadcast_buffers"] == BASELINE["broadcast_buffers"]
        return CheckOutcome.REFUSED if alone else CheckOutcome.PASSED

    knobs, _ = measured(lambda there: 0.1 * ("bucket_cap_mb" in there), 0.0, 0, judge=judge)
    assert kept(knobs) == {"bucket_cap_mb", "broadcast_buffers"}


def test_what_is_not_checked_yet_is_asked_for_and_does_not_go_back():
    _, attempts = measured(lambda there: 0.1 * ("bucket_cap_mb" in there), 0.0, 0)
    found = reduce_winner(
        attempts, WINNER, BASELINE, FACTS, lambda _: CheckOutcome.OPEN, rounds=3, most=10
    )
    assert (found.knobs, found.next) == (WINNER, None)
    assert found.to_check is not None
    assert kept(found.to_check) == {"bucket_cap_mb"}
