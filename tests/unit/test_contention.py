"""Which blocks are repeated."""

import dataclasses

from autotune.measurement.stop_rule import Limits, StopRule, contended
from autotune.worker.protocol import BlockReport

QUIET = BlockReport(
    "t", 0, 10, 100, 0, 1.0, (1.0, 1.0), 0.0, 0.5, 1, {"foreign_cpu": 0.02, "idle_cpu": 0.05}
)


def seen(**observed):
    return dataclasses.replace(QUIET, observed={**QUIET.observed, **observed})


def test_others_matter_only_where_processors_are_scarce():
    assert not contended(QUIET, [])
    assert contended(seen(foreign_cpu=0.3), [])
    assert not contended(seen(foreign_cpu=0.3, idle_cpu=0.5), [])
    assert not contended(dataclasses.replace(QUIET, observed={}), [])


def test_a_device_that_is_throttled_or_shared_disturbs():
    assert contended(seen(throttled=1.0), [])
    assert contended(seen(foreign_processes=1.0), [])
    assert not contended(seen(throttled=0.0, foreign_processes=0.0), [])


def test_neither_block_nor_time_of_a_suspension_counts():
    rule = StopRule(Limits(warmup=0.0, longest=5.0, precision=1e-9))
    suspended = dataclasses.replace(seen(stood_still=11.0), seconds=11.5)
    ended = [rule(block) for block in (QUIET, suspended, QUIET, suspended)]
    assert ended == [False] * 4
    assert suspended not in rule.kept
    assert rule.estimate().rate == 100.0


def test_a_rank_that_suddenly_lags_is_a_disturbance_and_one_that_always_does_is_none():
    # Step time 0.1 s: own time of the ranks 0.09 and 0.09, then 0.09 and 0.03.
    alike, lagging = seen(exposed_seconds=[0.01, 0.01]), seen(exposed_seconds=[0.01, 0.07])
    assert contended(lagging, [alike] * 3)
    assert not contended(lagging, [alike] * 2)
    assert not contended(lagging, [lagging] * 3)
    assert not contended(alike, [alike] * 3)


def test_a_disturbed_block_is_repeated_three_times_then_kept_and_flagged():
    watch = StopRule(Limits(warmup=0.5, longest=5.9, precision=1e-9))
    blocks = [QUIET, *[seen(foreign_cpu=0.5)] * 6]
    taken = [watch(block) for block in blocks]
    assert taken == [False] * 6 + [True]
    assert [(s.kept, s.contended) for s in watch.seen] == [
        (False, False),
        *[(False, True)] * 3,
        *[(True, True)] * 3,
    ]
    assert watch.contended


def test_a_trial_that_was_disturbed_once_is_not_flagged():
    watch = StopRule(Limits(warmup=0.5, longest=4.0, precision=1e-9))
    for block in [QUIET, QUIET, seen(foreign_cpu=0.5), QUIET, QUIET]:
        watch(block)
    assert len(watch.kept) == 3
    assert not watch.contended
