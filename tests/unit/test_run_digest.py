"""Digest of a run: its high percentile of a step's time."""

import pytest

from autotune.analysis.run_digest import run_digest
from storage import StoredBlock


def block(steps: int, p50: float, longest: float, between: float = 0.0) -> StoredBlock:
    """Return a block whose clock also counts `between` seconds before its first step."""
    seconds = p50 * (steps - 1) + longest + between
    observed = {"step_p50": p50, "step_p95": longest, "step_max": longest}
    return StoredBlock(0, steps, steps, 0, seconds, [seconds], 0.0, 1.0, 0, True, observed=observed)


def test_percentile_of_blocks_of_one_step_is_no_longer_than_the_longest_step() -> None:
    blocks = [block(1, p50=seconds, longest=seconds, between=0.001) for seconds in (0.3, 0.2, 0.1)]
    assert run_digest(blocks).step_p95 == 0.3


def test_percentile_of_short_blocks_is_that_of_all_their_steps() -> None:
    usual = [block(10, p50=0.1, longest=0.2) for _ in range(4)]
    assert run_digest(usual).step_p95 == 0.2, "4 of 40 steps"
    assert run_digest([*usual, block(19, p50=0.05, longest=0.9)]).step_p95 == 0.2
    rare = [block(15, p50=0.1, longest=0.1) for _ in range(9)]
    assert run_digest([*rare, block(15, p50=0.1, longest=0.9)]).step_p95 == 0.1, "1 of 150"


def test_percentile_of_long_blocks_is_their_own() -> None:
    blocks = [block(40, p50=0.1, longest=high) for high in (0.2, 0.3, 0.9)]
    assert run_digest(blocks).step_p95 == 0.3


@pytest.mark.parametrize("observed", [{}, {"clock_mhz": 1400.0}])
def test_blocks_of_older_versions_have_none(observed: dict[str, float]) -> None:
    old = StoredBlock(0, 4, 4, 0, 1.0, [1.0], 0.0, 1.0, 0, True, observed=observed)
    assert run_digest([old]).step_p95 is None
