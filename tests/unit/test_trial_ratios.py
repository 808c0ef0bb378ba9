"""Speed-up of each trial over the baseline, by all that is known by now."""

import dataclasses
import itertools
import math
from typing import Any

import pytest

from autotune.analysis.trial_ratios import leading_trial, trial_ratios
from search_spaces import defaults
from storage import (
    AttemptResult,
    Attempts,
    AttemptState,
    Purpose,
    StoredAttempt,
    StoredNoise,
)

BASELINE = defaults()
QUIET, RESTLESS = StoredNoise(0.01, 4, None), StoredNoise(0.12, 4, None)


def run(
    trial: int, rate: float, purpose: Purpose = Purpose.SEARCH, round_: int = 0, **result: Any
) -> StoredAttempt:
    """Return a run of the baseline (trial 0) or of another configuration."""
    known = {"block_half_width": 0.01, "block_freedom": 20.0, "sigma_run": 0.005, **result}
    knobs = BASELINE if trial == 0 else {**BASELINE, "micro_batch": 2 * trial}
    ended = AttemptResult(AttemptState.COMPLETE, throughput=rate, **known)
    return StoredAttempt(0, trial, purpose, round_, 1, knobs, 0.0, 1.0, ended, 1)


def several(*runs: StoredAttempt) -> Attempts:
    numbers = itertools.count(1)
    return Attempts([dataclasses.replace(one, id=next(numbers)) for one in runs], BASELINE)


def test_trial_that_ran_alone_is_compared_with_the_mean_of_all_runs_of_the_baseline() -> None:
    found = trial_ratios(
        several(run(0, 100.0), run(1, 150.0), run(0, 144.0, Purpose.CALIBRATE)), QUIET
    )
    assert found[1].ratio.value == pytest.approx(150.0 / 120.0)
    assert (found[1].interleaved, found[1].reference) == (False, "0-search-1")
    assert found[1].reference_rate == pytest.approx(120.0)


def test_trial_in_turn_has_the_ratio_of_its_pair_whatever_the_baseline_ran_at_before() -> None:
    pair = run(0, 300.0, Purpose.PAIRED, 1), run(1, 115.0, ratio=1.15, raw_throughput=345.0)
    found = trial_ratios(several(run(0, 100.0), *pair), QUIET)[1]
    assert found.ratio.value == 1.15
    assert (found.interleaved, found.reference, found.reference_rate) == (
        True,
        "0-paired1-1",
        300.0,
    )


def test_interval_widens_with_what_is_known_of_the_noise_since() -> None:
    attempts = several(run(0, 100.0), run(1, 110.0))
    assumed, known = (trial_ratios(attempts, noise)[1].ratio for noise in (QUIET, RESTLESS))
    assert assumed.low > 1, "by the noise that was assumed it is faster"
    assert known.low < 1 < known.high, "by what is known since it is not distinguishable"


def test_trial_whose_blocks_were_recorded_as_far_apart_has_a_ratio_without_bounds() -> None:
    apart = run(1, 110.0, block_half_width=952.0, block_freedom=1.0)
    found = trial_ratios(several(run(0, 100.0), apart), QUIET)[1].ratio
    assert found.value == pytest.approx(1.1)
    assert (found.low, found.high) == (0.0, math.inf)


def test_baseline_is_exactly_one_and_nothing_is_compared_without_it() -> None:
    found = trial_ratios(several(run(0, 100.0)), None)[0].ratio
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)
    assert trial_ratios(several(run(1, 100.0)), None) == {}


def test_trial_that_is_surely_slower_or_was_ended_early_does_not_lead() -> None:
    wide = {"block_half_width": 0.3}
    early = dataclasses.replace(
        run(3, 300.0), result=AttemptResult(AttemptState.PRUNED, throughput=300.0)
    )
    attempts = several(run(0, 100.0), run(1, 50.0), run(2, 130.0, **wide), early)
    found = trial_ratios(attempts, QUIET)
    assert found[1].ratio.high < 1, "told apart from 1"
    assert found[2].ratio.low < 1 < found[2].ratio.high
    assert leading_trial(attempts, found) == 2


@pytest.mark.parametrize("others", [(), (50.0,)], ids=["baseline-alone", "slower"])
def test_nothing_leads_where_nothing_may_be_faster(others: tuple[float, ...]) -> None:
    attempts = several(run(0, 100.0), *(run(n, rate) for n, rate in enumerate(others, 1)))
    assert leading_trial(attempts, trial_ratios(attempts, QUIET)) is None
