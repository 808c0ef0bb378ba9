"""Slots that are away: those that are missing now, since the last time that they were lost."""

import pytest

from autotune.study.slot_pool import last_away

FIRST, SECOND = (1, "far lost"), (2, "far lost")


@pytest.mark.parametrize(
    ("since", "missing", "away"),
    [
        ({FIRST: 10.0}, 1, {"far lost": 10.0}),
        ({FIRST: 10.0}, 0, {}),
        ({FIRST: 10.0, SECOND: 60.0}, 1, {"far lost": 60.0}),
        ({FIRST: 10.0, (2, "a lost"): 60.0, (2, "b lost"): 61.0}, 1, {"a lost": 60.0, "b lost": 61.0}),
        ({(0, "a lost"): 9.0, (1, "b lost"): 8.0}, 2, {"a lost": 9.0, "b lost": 8.0}),
    ],
)  # fmt: skip
def test_away_are_the_slots_that_are_missing_and_were_lost_last(since, missing, away):
    assert last_away(since, missing) == away
