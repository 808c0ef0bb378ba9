"""Attempts, asked in the study's own words."""

import dataclasses
import random
from collections.abc import Callable

import pytest

from search_spaces import defaults
from storage import AttemptResult, Attempts, AttemptState, Fault, Purpose, StoredAttempt

LOST, ABANDONED = AttemptState.LOST, AttemptState.ABANDONED
COMPLETE, RUNNING = AttemptState.COMPLETE, AttemptState.RUNNING


def attempt(
    state: AttemptState, started: float, ended: float | None, **knobs: object
) -> StoredAttempt:
    configuration = {**defaults(), **knobs}
    return StoredAttempt(
        int(started * 10), 1, Purpose.ABLATION, 1, 1, configuration, started, ended,
        AttemptResult(state),
    )  # fmt: skip


def orphan(started: float, ended: float) -> StoredAttempt:
    given_up = attempt(ABANDONED, started, ended)
    return dataclasses.replace(given_up, result=AttemptResult(ABANDONED, fault=Fault.DAEMON))


def with_node(started: float, ended: float) -> StoredAttempt:
    lost = attempt(LOST, started, ended)
    return dataclasses.replace(lost, result=AttemptResult(LOST, fault=Fault.NODE))


def in_turns(started: float, ended: float) -> StoredAttempt:
    lost = attempt(LOST, started, ended)
    return dataclasses.replace(lost, result=AttemptResult(LOST, fault=Fault.INTERLEAVED))


def other(started: float, ended: float) -> StoredAttempt:
    return dataclasses.replace(attempt(COMPLETE, started, ended), trial=2)


NOW = attempt(RUNNING, 100.0, None)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([], 0),
        ([attempt(LOST, 0, 1), attempt(LOST, 2, 3)], 2),
        ([attempt(LOST, 0, 1), attempt(ABANDONED, 2, 3), attempt(LOST, 4, 5)], 2),
        ([attempt(LOST, 0, 1), attempt(COMPLETE, 2, 3), attempt(LOST, 4, 5)], 1),
        ([attempt(LOST, 0, 1, micro_batch=64), attempt(LOST, 2, 3)], 1),
        ([attempt(LOST, 0, 9), attempt(LOST, 1, 9), attempt(LOST, 2, 9)], 1),
        ([attempt(LOST, 99, 101)], 0),
        ([attempt(LOST, 0, 1), orphan(2, 3), orphan(4, 5)], 3),
        ([orphan(0, 9), orphan(1, 9), orphan(2, 9)], 1),
        ([with_node(0, 1), with_node(2, 3)], 0),
        ([with_node(0, 1), other(2, 3), with_node(4, 5)], 1),
        ([with_node(0, 1), other(2, 3), with_node(4, 5), other(6, 7)], 2),
        ([with_node(0, 5), other(1, 6), with_node(6, 9)], 1),
        ([in_turns(0, 1), attempt(LOST, 2, 3)], 1),
    ],
    ids=[
        "none", "in a row", "given up", "since a result", "another variant", "side by side",
        "beside it", "with their daemon", "with their daemon, side by side",
        "with their node", "which works for another", "and again", "and at the same time",
        "beside another that shared its devices",
    ],
)  # fmt: skip
def test_launches_in_vain_are_those_of_the_same_run_in_a_row(
    before: list[StoredAttempt], expected: int
) -> None:
    assert len(Attempts([*before, NOW], defaults()).lost_in_vain(NOW)) == expected


QUERIES: list[Callable[[Attempts], Attempts]] = [
    lambda several: several.of(Purpose.SEARCH),
    lambda several: several.of(Purpose.SEARCH, Purpose.CONFIRM).complete(),
    lambda several: several.searched(),
    lambda several: several.searched().measured().of_baseline(),
    lambda several: several.recorded().ended_in(LOST, COMPLETE),
    lambda several: several.conclusive(),
    lambda several: several.to_repeat(),
]


@pytest.mark.parametrize("seed", range(10))
def test_queries_that_go_on_from_earlier_answers_find_what_new_ones_find(seed: int) -> None:
    """A study begins and ends attempts, and asks now this and now that."""
    draw, baseline = random.Random(seed), defaults()
    known: list[StoredAttempt] = []
    several = Attempts(known, baseline)
    for number in range(1, 60):
        running = [place for place, one in enumerate(known) if one.running]
        if running and draw.random() < 0.5:
            place = draw.choice(running)
            rate = draw.choice([None, 1.0])
            result = AttemptResult(draw.choice([COMPLETE, LOST]), throughput=rate)
            known[place] = dataclasses.replace(known[place], result=result, ended=float(number))
        else:
            begun = attempt(RUNNING, number, None, micro_batch=draw.choice([8, 16]))
            purpose = draw.choice([Purpose.SEARCH, Purpose.CONFIRM])
            known.append(dataclasses.replace(begun, purpose=purpose))
        several, anew = several.followed_by(known), Attempts(known, baseline)
        for query in draw.sample(QUERIES, 3):
            assert list(query(several)) == list(query(anew))
    assert len(known) > 20
