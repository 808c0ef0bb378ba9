"""When a running trial has told enough."""

import dataclasses

import pytest

from autotune.measurement.watch import Limits, Watch
from autotune.trial.protocol import BlockReport

LIMITS = Limits(warmup=3.0, longest=10.0, precision=0.02)


def block(index, seconds, samples=100):
    return BlockReport(
        trial="t",
        index=index,
        steps=10,
        samples=samples,
        tokens=samples * 7,
        seconds=seconds,
        rank_seconds=(seconds,),
        wait_seconds=0.0,
        loss=1.0,
        peak_bytes=1,
    )


def feed(watch, seconds):
    """Blocks until the watch has seen enough; returns how many it took."""
    for index, value in enumerate(seconds):
        if watch(block(index, value)):
            return index + 1
    return None


def test_a_steady_trial_ends_soon_after_its_warm_up():
    watch = Watch(LIMITS)
    assert feed(watch, [0.1] + [0.2] * 20) == 9  # first block, five steady ones, three that count
    assert watch.steady
    assert watch.estimate().rate == pytest.approx(500)


def test_the_first_block_never_counts_as_steady():
    watch = Watch(LIMITS)
    feed(watch, [9.0] + [0.2] * 10)
    assert all(kept.seconds == 0.2 for kept in watch.kept)


def test_a_restless_trial_counts_after_the_longest_warm_up_and_is_marked():
    watch = Watch(LIMITS)
    taken = feed(watch, [0.5, 1.0, 0.6] * 20)
    assert taken is not None
    assert not watch.steady
    assert sum(seen.block.seconds for seen in watch.seen if not seen.kept) >= 3.0
    assert sum(b.seconds for b in watch.kept) > 10.0


def test_a_trial_that_cannot_catch_up_is_lost():
    watch = Watch(dataclasses.replace(LIMITS, incumbent_low=1000.0))
    feed(watch, [0.2, 0.2, 0.21, 0.2, 0.19, 0.2] * 5)
    assert watch.lost


def test_a_trial_that_might_win_is_not_lost():
    watch = Watch(dataclasses.replace(LIMITS, incumbent_low=495.0))
    feed(watch, [0.2] * 20)
    assert not watch.lost


def test_tokens():
    watch = Watch(dataclasses.replace(LIMITS, tokens=True))
    feed(watch, [0.2] * 20)
    assert watch.estimate().rate == pytest.approx(3500)
