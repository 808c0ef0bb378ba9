"""Trials that take turns and stay: whoever takes turns next takes them over, each in its place."""

import threading
from typing import Any

import psutil
import pytest

from autotune.worker.protocol import BlockPlan, Outcome, TrialReport, TrialRequest
from tests.contract.launchers.sites import Site, ranks, sites
from tests.contract.launchers.test_ends import ending
from tests.contract.launchers.test_turns import SHORT, Forth, Watched
from tests.support.trials import knobs
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("nothing_stays")]

BESIDE = {"bucket_cap_mb": 1}
"""Acts on what ranks are built with."""


def asked(site: Site, **changes: Any) -> TrialRequest:
    return site.request(**{"interleaved": True, "stays": True, "blocks": SHORT, **changes})


def in_turn(site: Site, turns: Forth, *requests: TrialRequest) -> list[TrialReport]:
    return site.slot.run(requests, turns)


def living(site: Site) -> dict[int, psutil.Process]:
    """Ranks of all trials, by their pids."""
    return {rank.pid: rank for agent in site.agents() for rank in ranks(agent)}


@sites("local", "pair", slow=["ray", "slurm", "cluster"])
def test_each_takes_over_who_had_its_place(site: Site) -> None:
    first = in_turn(site, Forth(2, 3), asked(site), beside := asked(site))
    before = {*living(site)}
    larger = asked(site, knobs=knobs(micro_batch=4))
    second = in_turn(site, Forth(2, 4), larger, again := asked(site))
    assert {*living(site)} == before
    assert [report.resident_of for report in first] == ["", ""]
    assert second[1].resident_of == beside.trial
    assert [report.trial for report in second] == [larger.trial, again.trial]
    for report, size in zip(second, (4, 2), strict=True):
        assert (report.outcome, report.cause, len(report.blocks)) == (None, "", 4)
        assert {block.trial for block in report.blocks} == {report.trial}
        assert all(b.samples == size * b.steps * site.world_size for b in report.blocks)
    assert [block.observed["turn"] for block in second[0].blocks] == [7, 9, 11, 13]


@sites("local", slow=["pair", "ray", "slurm"])
def test_who_cannot_be_taken_over_is_ended_and_the_other_one_waits_on(site: Site) -> None:
    first = in_turn(site, Forth(2, 3), asked(site), beside := asked(site))
    before = {*living(site)}
    other = asked(site, knobs=knobs(**BESIDE))
    second = in_turn(site, Forth(2, 3), other, asked(site))
    assert [report.resident_of for report in second] == ["", beside.trial]
    assert len(living(site).keys() & before) == len(before) // 2
    assert [len(report.blocks) for report in (*first, *second)] == [3] * 4


@sites("local", slow=["pair"])
def test_who_fails_is_launched_anew_beside_the_one_that_waits(site: Site) -> None:
    failing = asked(site, args={"trouble": "raise", "at": 3})
    failed, kept = in_turn(site, Forth(2, 5), failing, beside := asked(site))
    assert (failed.outcome, kept.outcome) == (Outcome.ERROR, None)
    second = in_turn(site, Forth(2, 3), asked(site), asked(site))
    assert [report.resident_of for report in second] == ["", beside.trial]
    assert [(r.outcome, len(r.blocks)) for r in second] == [(None, 3)] * 2


@sites("local", slow=["pair"])
def test_before_a_trial_by_itself_all_of_them_are_ended(site: Site) -> None:
    in_turn(site, Forth(2, 3), asked(site), asked(site))
    before = {*living(site)}
    assert site.slot.warm_knobs == asked(site).knobs
    site.check_next_trial()
    assert not living(site).keys() & before
    assert site.slot.warm_knobs is None


@sites("local", slow=["pair", "ray", "slurm"])
def test_one_that_dies_while_it_waits_is_launched_anew(site: Site) -> None:
    larger = {"knobs": knobs(micro_batch=4)}
    in_turn(site, Forth(2, 3), asked(site, **larger), beside := asked(site))
    assert site.slot.warm_knobs == larger["knobs"]
    min(living(site).values(), key=psutil.Process.create_time).kill()
    wait_for(lambda: site.slot.warm_knobs == knobs(), "only the other one to wait")
    second = in_turn(site, Forth(2, 3), asked(site, **larger), asked(site))
    assert [report.resident_of for report in second] == ["", beside.trial]
    assert [(r.outcome, len(r.blocks)) for r in second] == [(None, 3)] * 2


@sites("local", slow=["pair", "ray", "slurm"])
def test_an_end_from_another_thread_leaves_nobody_waiting(site: Site) -> None:
    in_turn(site, Forth(2, 3), asked(site), asked(site))
    training = threading.Event()
    turns = Watched(2, 10**6, lambda block: training.set() if block.index else None)
    with ending(site, training.is_set):
        in_turn(site, turns, asked(site), asked(site))
    assert site.slot.warm_knobs is None
    assert site.strays() == []
    site.check_next_trial()


@sites("local", slow=["pair"])
def test_who_has_shown_all_its_blocks_has_no_turn_any_more(site: Site) -> None:
    turns = Forth(2, 4)
    few = asked(site, blocks=BlockPlan(0.01, 2, 2))
    reports = in_turn(site, turns, few, asked(site))
    assert (turns.away, [len(report.blocks) for report in reports]) == ([0], [2, 4])
    second = in_turn(site, Forth(2, 3), asked(site), asked(site))
    assert [(r.outcome, len(r.blocks)) for r in second] == [(None, 3)] * 2
