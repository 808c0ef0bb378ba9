"""How many steps the next block takes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.worker.observers.timing import BlockLength, InterleavedBlockLength
from autotune.worker.protocol import BlockPlan
from autotune.worker.rank.profiling import affordable

THOROUGH = settings(max_examples=300)


def settled(seconds: float, min_steps: int, log_interval: int, step_seconds: float) -> list[int]:
    """Steps of the first eight blocks, if every step takes the same."""
    length = BlockLength(BlockPlan(seconds, min_steps), log_interval)
    taken = []
    for index in range(8):
        taken.append(length.steps)
        length.learn(index, length.steps * step_seconds)
    return taken


plans = st.tuples(
    st.floats(0.01, 100),
    st.integers(1, 100),
    st.integers(1, 10_000),
    st.floats(1e-6, 1000),
)


@THOROUGH
@given(plans)
def test_the_first_block_is_one_step(plan):
    assert settled(*plan)[0] == 1


@THOROUGH
@given(plans)
def test_later_blocks_hold_the_least_number_of_steps(plan):
    assert all(steps >= plan[1] for steps in settled(*plan)[1:])


@THOROUGH
@given(plans)
def test_the_length_settles_after_three_blocks(plan):
    assert len(set(settled(*plan)[3:])) == 1


@THOROUGH
@given(plans)
def test_a_block_lasts_about_as_long_as_asked_for(plan):
    seconds, min_steps, _, step_seconds = plan
    steps = settled(*plan)[-1]
    wanted = max(min_steps, seconds / step_seconds)
    assert wanted * (1 - 1e-9) <= steps <= 2 * (wanted + 1)


@THOROUGH
@given(plans)
def test_a_block_holds_whole_logging_intervals_unless_they_are_far_too_long(plan):
    seconds, min_steps, log_interval, step_seconds = plan
    steps = settled(*plan)[-1]
    if steps % log_interval:
        assert log_interval > max(min_steps, seconds / step_seconds)


@pytest.mark.parametrize(
    ("step_seconds", "log_interval", "steps"),
    [(0.1, 1, 10), (0.1, 10, 10), (0.1, 4, 12), (0.1, 15, 15), (0.1, 25, 10), (5.0, 1, 3)],
)
def test_examples(step_seconds, log_interval, steps):
    assert settled(1.0, 3, log_interval, step_seconds)[-1] == steps


def test_a_slow_first_step_does_not_decide():
    length = BlockLength(BlockPlan(1.0, 2), 1)
    length.learn(0, 30.0)
    assert length.steps == 2
    length.learn(1, 0.02)
    assert length.steps == 100
    length.learn(2, 0.5)
    assert length.steps == 200


@pytest.mark.parametrize("kind", [BlockLength, InterleavedBlockLength])
def test_blocks_that_compile_tell_no_length(kind):
    length = kind(BlockPlan(0.25, 1), 1)
    for index, seconds in enumerate([30.0, 20.0, 8.0]):
        length.learn(index, seconds, compiled=True)
        assert length.steps == 1
    for index in (3, 4, 5):
        length.learn(index, length.steps * 0.05)
    assert length.steps == 5


def test_what_comes_after_the_third_block_changes_nothing():
    length = BlockLength(BlockPlan(1.0, 2), 1)
    for index in range(3):
        length.learn(index, 0.1 * length.steps)
    length.learn(3, 1e-3)
    assert length.steps == 10


@THOROUGH
@given(st.floats(0.1, 20), st.floats(0.001, 60), st.integers(1, 100))
def test_a_block_of_long_steps_is_as_short_as_it_has_to_be(longest, step_seconds, log_interval):
    length = BlockLength(BlockPlan(0.1, 5, longest=longest), log_interval)
    for index in range(8):
        length.learn(index, length.steps * step_seconds)
    assert length.steps * step_seconds <= max(longest * 1.001, step_seconds)


def test_what_a_block_has_to_hold_to_stand_for_the_training_it_holds():
    length = BlockLength(BlockPlan(0.1, 5, longest=1.0), 1, fewest=8)
    length.learn(0, 3.0)
    assert length.steps == 8


@pytest.mark.parametrize(
    ("first", "seconds", "expected"),
    [
        (0.1, math.inf, (5, 8)),
        (0.1, 10.0, (5, 8)),
        (1.0, 20.0, (1, 8)),
        (1.0, 10.0, (1, 2)),
        (3.0, 10.0, None),
    ],
)
def test_a_profile_gives_way_to_long_steps(first, seconds, expected):
    assert affordable(8, first, seconds) == expected


def test_where_trials_take_turns_it_is_that_of_warm_steps_and_stays_after_the_first_rest():
    length = InterleavedBlockLength(BlockPlan(0.1, 1), 1)
    for index, seconds in enumerate([30.0, 0.4, 0.3]):
        length.learn(index, seconds)
        assert length.steps == 1
    length.learn(3, 0.01)
    assert length.steps == 10
    length.learn(4, 0.9)
    assert length.steps == 10, "others disturbed that block"
    length.learn(5, 50.0, rested=True)
    length.learn(6, 50.0)
    assert length.steps == 10


def test_where_trials_take_turns_it_follows_steps_that_become_slower():
    length = InterleavedBlockLength(BlockPlan(1.0, 2), 1)
    for index, seconds in enumerate([30.0, 0.2, 3.0, 3.0, 3.0]):
        length.learn(index, seconds)
    assert length.steps == 4
