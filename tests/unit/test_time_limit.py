"""The time limit of a run."""

import math

from autotune.runs.request_shapes import within
from autotune.worker.protocol import NO_LIMIT, TimeLimit
from tests.support.trials import knobs, of_one_rank

LIMIT = TimeLimit(soft=30.0, hard=37.5)


def test_limit_of_interleaved_runs_divides_the_soft_part_alone() -> None:
    assert LIMIT.shared(2) == TimeLimit(15.0, 37.5)


def test_limit_after_launch_is_never_negative() -> None:
    assert LIMIT.after_launch(4.0) == TimeLimit(26.0, 37.5)
    assert LIMIT.after_launch(40.0) == TimeLimit(0.0, 37.5)


def test_limit_charges_what_compilation_takes_beyond_its_own_time() -> None:
    limit = TimeLimit(soft=30.0, compiling=20.0).after_launch(4.0).shared(2)
    assert limit.charged(25.0, compiled=15.0) == 10.0
    assert limit.charged(40.0, compiled=35.0) == 20.0
    assert LIMIT.charged(25.0, compiled=15.0) == 25.0


def test_no_limit_stays_unlimited() -> None:
    assert NO_LIMIT.shared(3).after_launch(4.0) == NO_LIMIT == TimeLimit(math.inf, math.inf)


def test_request_within_a_limit_has_blocks_that_fit() -> None:
    asked = of_one_rank(knobs())
    hurried = within(asked, LIMIT)
    assert hurried.limit == LIMIT
    assert 0 < hurried.blocks.longest <= LIMIT.soft / 2
    assert within(asked, NO_LIMIT) == asked
