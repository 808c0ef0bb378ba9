"""When a running trial has told enough."""

import dataclasses
import math

import pytest

from autotune.measurement.measure import Measure
from autotune.measurement.policy import MEASUREMENT
from autotune.measurement.step_series import Onset, OnsetBound
from autotune.measurement.stop_rule import Limits, StopRule
from autotune.worker.protocol import BlockReport, Observed, TimeLimit

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
    watch = StopRule(LIMITS)
    assert feed(watch, [0.1] + [0.2] * 20) == 9  # first block, five steady ones, three that count
    assert watch.steady
    assert watch.estimate().rate == pytest.approx(500)


def test_a_run_that_is_to_prove_something_counts_ten_blocks():
    watch = StopRule(dataclasses.replace(LIMITS, fewest=10))
    assert feed(watch, [0.1] + [0.2] * 20) == 16


def without_tokens(index):
    return dataclasses.replace(block(index, 0.2), tokens=0)


def test_a_workload_without_tokens_has_no_rate_of_them():
    watch = StopRule(dataclasses.replace(LIMITS, measure=Measure("tokens")))
    ended = [watch(without_tokens(index)) for index in range(12)]
    assert any(ended)
    assert "tokens_per_sample" in watch.problem


def test_nor_has_it_one_where_it_takes_turns():
    watch = StopRule(dataclasses.replace(LIMITS, measure=Measure("tokens")))
    for index in range(MEASUREMENT.fewest_blocks):
        assert not watch.problem
        watch.take(without_tokens(index))
    assert "tokens_per_sample" in watch.problem


def test_tokens_of_the_warm_up_alone_make_no_rate():
    watch = StopRule(dataclasses.replace(LIMITS, measure=Measure("tokens")))
    assert not watch(block(0, 0.1))
    assert any(watch(without_tokens(index)) for index in range(1, 12))
    assert "tokens_per_sample" in watch.problem


def test_a_block_without_tokens_among_others_counts():
    watch = StopRule(dataclasses.replace(LIMITS, measure=Measure("tokens")))
    assert not watch(without_tokens(0))
    assert feed(watch, [0.1] + [0.2] * 20)
    assert not watch.problem
    in_turn = StopRule(dataclasses.replace(LIMITS, measure=Measure("tokens")))
    for one in (without_tokens(0), block(1, 0.2), block(2, 0.2), block(3, 0.2)):
        in_turn.take(one)
    assert not in_turn.problem


def test_the_first_block_never_counts_as_steady():
    watch = StopRule(LIMITS)
    feed(watch, [9.0] + [0.2] * 10)
    assert all(kept.seconds == 0.2 for kept in watch.kept)


def test_a_command_that_reports_at_fixed_times_warms_up_until_its_rate_is_steady():
    """Every 10 s, with a rate that climbs from 80 % with a time constant of 60 s."""
    limits = dataclasses.replace(LIMITS, warmup=600.0, longest=300.0, of_reports=True)
    watch, rates = StopRule(limits), [500 * (1 - 0.2 * math.exp(-n / 6)) for n in range(60)]
    for index, rate in enumerate(rates):
        if watch(block(index, 10.0, samples=round(10 * rate))):
            break
    assert watch.kept[0].samples >= 0.98 * 5000
    assert watch.estimate().rate == pytest.approx(500, rel=0.02)


def test_a_drifting_trial_counts_after_the_longest_warm_up_and_is_marked():
    watch = StopRule(LIMITS)
    taken = feed(watch, [0.5 * 0.98**number for number in range(100)])
    assert taken is not None
    assert not watch.steady
    assert sum(seen.block.seconds for seen in watch.seen if not seen.kept) >= 3.0
    assert sum(b.seconds for b in watch.kept) > 10.0


def test_a_trial_that_cannot_catch_up_is_lost():
    watch = StopRule(dataclasses.replace(LIMITS, incumbent_low=1000.0))
    feed(watch, [0.2, 0.2, 0.21, 0.2, 0.19, 0.2] * 5)
    assert watch.hopeless


def test_a_trial_that_might_win_is_not_lost():
    watch = StopRule(dataclasses.replace(LIMITS, incumbent_low=495.0))
    feed(watch, [0.2] * 20)
    assert not watch.hopeless


def test_tokens():
    watch = StopRule(dataclasses.replace(LIMITS, measure=Measure("tokens")))
    feed(watch, [0.2] * 20)
    assert watch.estimate().rate == pytest.approx(3500)


STEP = dataclasses.replace(block(0, 1.0), steps=1, samples=10)
RACING = dataclasses.replace(
    LIMITS, incumbent_low=10.0, settling=OnsetBound.of([Onset(first=1.5, steady=1.0)])
)


def steps(watch, seconds, **changes):
    """Blocks of a single step each, until the watch has seen enough; how many it took."""
    for index, value in enumerate(seconds):
        changed = dataclasses.replace(STEP, index=index, seconds=value, **changes)
        if watch(changed):
            return index + 1
    return None


@pytest.mark.parametrize(
    ("times", "settling", "taken"),
    [
        (10.0, RACING.settling, 1),
        (4.0, RACING.settling, 1),
        (4.0, OnsetBound(), 2),
        (1.8, RACING.settling, None),
    ],
)
def test_a_trial_is_judged_from_its_first_step_on(times, settling, taken):
    """The incumbent takes a second for a step of ten samples."""
    watch = StopRule(dataclasses.replace(RACING, settling=settling))
    assert steps(watch, [1.5 * times, times]) == taken
    assert watch.hopeless == (taken is not None)
    watch.close()
    assert len(watch.kept) == 1


def test_a_first_step_in_which_something_is_compiled_tells_nothing():
    watch = StopRule(RACING)
    steps(watch, [60.0], observed={"compilations": 3})
    assert not watch.hopeless


def test_trial_with_a_short_last_batch_is_judged_by_its_full_ones():
    """The incumbent takes a second for a step of 32 samples, and so does the trial."""
    watch = StopRule(dataclasses.replace(RACING, incumbent_low=32.0))
    for index, samples in enumerate([32, 32, 10]):
        assert not watch(dataclasses.replace(STEP, index=index, samples=samples))
    watch.close()
    assert watch.estimate().rate == 32.0


@pytest.mark.parametrize(
    ("samples", "counts"), [([32], 0), ([32, 10], 1), ([32, 32, 10, 32, 10], 3), ([32, 32, 32], 2)]
)
def test_last_full_block_after_the_first_counts_where_a_trial_ended_within_its_warm_up(
    samples: list[int], counts: int
) -> None:
    watch = StopRule(LIMITS)
    for index, number in enumerate(samples):
        watch(dataclasses.replace(STEP, index=index, samples=number, seconds=0.1))
    watch.close()
    assert [kept.index for kept in watch.kept] == [counts]


def test_without_an_earlier_run_only_the_prior_tells_what_a_first_step_is_like():
    watch = StopRule(dataclasses.replace(RACING, settling=OnsetBound()))
    assert steps(watch, [9.0]) is None, "ten seconds may go into what happens once"
    watch = StopRule(dataclasses.replace(RACING, settling=OnsetBound()))
    assert steps(watch, [20.0]) == 1


@pytest.mark.parametrize("step", [2.9, 3.1, 40.0])
def test_the_longest_timing_is_kept_within_a_step(step):
    """Neither warm-up nor a fewest number of blocks add to it where steps are long."""
    limits = Limits(warmup=20.0, longest=3.0, precision=0.02, long_step=0.1)
    watch = StopRule(limits)
    assert steps(watch, [step] * 20) is not None
    assert sum(kept.seconds for kept in watch.kept) <= max(3.3, step)
    assert sum(seen.block.seconds for seen in watch.seen if not seen.kept) <= 3.0 + step


def test_the_whole_time_is_kept_and_something_counts():
    for step in (0.1, 1.0, 2.0):
        watch = StopRule(
            dataclasses.replace(LIMITS, warmup=20.0, longest=30.0, time_limit=TimeLimit(6.0))
        )
        assert steps(watch, [step] * 1000) is not None
        watch.close()
        assert watch.kept
        assert sum(seen.block.seconds for seen in watch.seen) <= 6.0


def test_warm_up_of_few_blocks_is_over_however_they_drift():
    unsteady = [0.1] + [0.3 * 0.95**number for number in range(40)]
    without, limited = StopRule(LIMITS), StopRule(dataclasses.replace(LIMITS, warm_blocks=5))
    for rule in (without, limited):
        for index, seconds in enumerate(unsteady[:7]):
            rule(block(index, seconds))
    assert without.kept == []
    assert [kept.index for kept in limited.kept] == [6]


def test_compilation_takes_nothing_from_the_time_that_counts():
    rule = StopRule(dataclasses.replace(LIMITS, time_limit=TimeLimit(18.0)))
    compiling = dataclasses.replace(block(0, 15.0), observed={"compilations": 1})
    rule(compiling)
    for index in range(1, 10):
        rule(block(index, 0.25 + 0.05 * (index % 2)))
    assert len(rule.kept) >= 4


@pytest.mark.parametrize(("compiles", "longest"), [(False, 1.0), (True, 5.0)])
def test_only_compilation_has_the_time_that_there_is_for_it(compiles: bool, longest: float) -> None:
    limit = TimeLimit(soft=5.0, compiling=60.0)
    rule = StopRule(dataclasses.replace(LIMITS, precision=1e-9, longest=100.0, time_limit=limit))
    observed = Observed(compilations=1) if compiles else Observed()
    blocks = [dataclasses.replace(block(0, 4.0), observed=observed)]
    blocks += [block(index, 0.4 + 0.1 * (index % 2)) for index in range(1, 50)]
    ended = [rule(each) for each in blocks].index(True)
    later = sum(each.seconds for each in blocks[1 : ended + 1])
    assert longest - 0.5 <= later <= longest


def test_disturbance_of_a_block_that_counts_for_want_of_others_is_told() -> None:
    rule = StopRule(LIMITS)
    busy = Observed(idle_cpu=0.0, foreign_cpu=0.2)
    rule(block(0, 1.0))
    rule(dataclasses.replace(block(1, 1.0), observed=busy))
    rule.close()
    assert rule.contended


@pytest.mark.parametrize(("proves", "kept"), [(True, 0), (False, 1)])
def test_first_step_of_a_run_that_was_cut_proves_nothing(proves: bool, kept: int) -> None:
    watch = StopRule(dataclasses.replace(LIMITS, time_limit=TimeLimit(0.0), proves=proves))
    watch(block(0, 0.5))
    watch.close()
    assert len(watch.kept) == kept


def test_run_with_timed_steps_ends_once_their_series_is_exact() -> None:
    moments = Observed(step_moments=[10.0, 0.02, 1e-8, 0.0])
    watch = StopRule(dataclasses.replace(LIMITS, fewest=10))
    ends = [watch(dataclasses.replace(block(index, 0.2), observed=moments)) for index in range(10)]
    assert ends.index(True) == 8  # the first, five steady ones, three of 30 steps in all
    assert watch.estimate().half_width < 0.01


def test_run_that_no_interval_ends_goes_on_though_its_steps_tell_enough() -> None:
    moments = Observed(step_moments=[10.0, 0.02, 1e-8, 0.0])
    watch = StopRule(dataclasses.replace(LIMITS, fewest=math.inf))
    for index in range(100):
        if watch(dataclasses.replace(block(index, 0.2), observed=moments)):
            break
    assert sum(each.seconds for each in watch.kept) == pytest.approx(LIMITS.longest, rel=0.1)


def on_reserve(index: int, ready: float, seconds: float) -> BlockReport:
    return dataclasses.replace(
        block(index, seconds), observed=Observed(ready_batches=[16.0, ready])
    )


def test_steps_on_batches_that_a_loader_prepared_in_a_pause_do_not_count() -> None:
    """A loader of 0.6 s a block fills its queue in the first step; a block trains for 0.45 s."""
    rule = StopRule(dataclasses.replace(LIMITS, warmup=20.0, warm_blocks=5))
    queue = [16.0 - 2.5 * block for block in range(7)]
    assert queue[-1] == 1.0
    for index, ready in enumerate(queue):
        rule(on_reserve(index, ready, 0.45 if index else 15.0))
    assert rule.warming_up
    for index in range(len(queue), 30):
        if rule(on_reserve(index, index % 2, 0.6)):
            break
    assert rule.kept
    assert all(each.seconds == 0.6 for each in rule.kept)


@pytest.mark.parametrize(
    "ready",
    [
        [4, 4, 3, 4, 3, 4, 4, 3, 4],
        [16, 10, 10, 11, 10, 9, 10, 10, 10],
        [0, 1, 0, 2, 1, 0, 1, 2, 1],
        [6, 0, 0, 0, 0, 0, 0, 0, 0],
    ],
)
def test_queue_of_a_loader_that_is_as_full_as_before_lengthens_no_warm_up(
    ready: list[float],
) -> None:
    rule = StopRule(LIMITS)
    ended = [rule(on_reserve(index, value, 0.2)) for index, value in enumerate(ready)]
    assert ended.index(True) == 8


def test_warm_up_on_a_loaders_reserve_ends_with_its_time() -> None:
    rule = StopRule(dataclasses.replace(LIMITS, warmup=3.0))
    for index in range(60):
        if not rule.warming_up:
            break
        rule(on_reserve(index, 1000.0 - 3 * index, 0.2))
    assert sum(each.block.seconds for each in rule.seen[1:]) <= 3.0 + 0.2


@pytest.mark.parametrize(("proves", "steps"), [(True, 20), (False, 2)])
def test_run_of_long_steps_goes_on_until_it_has_enough_of_them_to_prove_something(
    proves: bool, steps: int
) -> None:
    two = Observed(step_moments=[2.0, 3.0, 0.01, 0.0])
    watch = StopRule(dataclasses.replace(LIMITS, fewest=10, warm_blocks=1, proves=proves))
    for index in range(100):
        if watch(dataclasses.replace(block(index, 6.0), steps=2, observed=two)):
            break
    assert sum(2 for _ in watch.kept) == steps


def compiling(index: int, seconds: float = 0.2) -> BlockReport:
    return dataclasses.replace(block(index, seconds), observed=Observed(compilations=1))


@pytest.mark.parametrize(("proves", "counts"), [(True, []), (False, [1])])
def test_block_that_compiled_counts_alone_only_where_nothing_is_to_be_proven(
    proves: bool, counts: list[int]
) -> None:
    rule = StopRule(dataclasses.replace(LIMITS, proves=proves))
    for each in (block(0, 0.1), compiling(1, 2.0)):
        rule(each)
    rule.close()
    assert [kept.index for kept in rule.kept] == counts


def test_run_that_ended_after_it_compiled_counts_by_the_block_before() -> None:
    rule = StopRule(dataclasses.replace(LIMITS, proves=True))
    for each in (block(0, 0.1), block(1, 0.2), compiling(2, 2.0)):
        rule(each)
    rule.close()
    assert [kept.index for kept in rule.kept] == [1]


def test_compilation_after_the_warm_up_counts_once_it_goes_on() -> None:
    rule = StopRule(dataclasses.replace(LIMITS, precision=1e-9))
    for index in range(7):
        rule(block(index, 0.2))
    most = MEASUREMENT.most_compiling
    for index in range(7, 8 + most):
        rule(compiling(index))
    assert [kept.index for kept in rule.kept] == [6, 7 + most]


def test_long_compilation_after_the_warm_up_does_not_end_the_run() -> None:
    rule = StopRule(dataclasses.replace(LIMITS, proves=True, fewest=10))
    for index in range(6):
        assert not rule(block(index, 0.2))
    assert not rule(compiling(6, 0.9 * LIMITS.longest))
    ended = [rule(block(index, 0.2)) for index in range(7, 17)]
    assert ended.index(True) == 9
    assert len(rule.kept) == 10
