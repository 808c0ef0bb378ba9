"""Runs that take turns: what their blocks say of each other, whose turn it is, and when it is enough."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.measurement import cycles
from autotune.measurement.cycles import TurnBlock
from autotune.measurement.stop_rule import Limits
from autotune.runs.interleaved import InterleavedSchedule, PairedSchedule, interleaved
from autotune.runs.monitors import TimedMonitor
from autotune.worker.protocol import (
    BlockPlan,
    BlockReport,
    Observed,
    Outcome,
    TimeLimit,
    TrialReport,
)
from benchmarks.recorded_device import read_device
from launchers.replay import Answer, Behaviour, Launch, ReplayLauncher, SpeedVariation
from launchers.replay.behaviours import noisy, running_at
from storage import AttemptResult, AttemptState, Fault
from tests.support.trials import knobs, trial

TABLE = Path(__file__).parents[2] / "benchmarks/tables/h200-gpt2-124m.jsonl"
LIMITS = Limits(warmup=0.5, longest=4.0, precision=0.01)
EQUAL = running_at(lambda _: 100.0)
BLOCK = BlockReport("t", 0, 10, 100, 0, 0.1, (0.1,), 0.0, 1.0, 1)


def blocks(
    rates: Sequence[float], count: int, pace: Callable[[int], float]
) -> list[list[TurnBlock]]:
    """Of members that go forth and back on a machine of this pace, turn by turn."""
    found: list[list[TurnBlock]] = [[] for _ in rates]
    order = cycles.abba_order(range(len(rates))) * count
    for turn, member in enumerate(order, start=1):
        found[member].append(TurnBlock(turn, 10.0, 10.0 / (rates[member] * pace(turn))))
    return found


def test_they_go_forth_and_back() -> None:
    assert cycles.abba_order([0, 2, 3]) == [0, 2, 3, 3, 2, 0]


def test_a_machine_that_slows_down_favours_nobody() -> None:
    slowing = blocks([100.0, 103.0, 90.0], 6, lambda turn: math.exp(-0.02 * turn))
    found = cycles.rates(slowing)
    assert found is not None
    # Means of times see the curvature of its pace: the square of its loss in a cycle.
    assert found[1] / found[0] == pytest.approx(1.03, rel=1e-3)
    assert found[2] / found[0] == pytest.approx(0.9, rel=2e-3)


def test_nor_do_a_few_blocks_that_something_has_disturbed() -> None:
    slow = (5, 12)
    pace = blocks([100.0, 103.0], 10, lambda turn: 0.3 if turn in slow else 1.0)
    marked = [[b._replace(contended=b.turn in slow) for b in own] for own in pace]
    found = cycles.rates(marked)
    assert found is not None
    assert found[1] / found[0] == pytest.approx(1.03)


def with_slow_block() -> list[list[TurnBlock]]:
    """Return equal members, of which one had a block of three times the usual time."""
    steady, uneven = blocks([100.0, 100.0], 10, lambda _: 1.0)
    slow = uneven[3]._replace(cost=3 * uneven[3].cost)
    return [steady, [*uneven[:3], slow, *uneven[4:]]]


@pytest.mark.parametrize("timed", [{"device_timed": True, "contended": True}, {}])
def test_slow_steps_of_its_own_count_in_the_ratio_as_in_a_long_run(timed: dict[str, bool]) -> None:
    found = cycles.rates([[b._replace(**timed) for b in own] for own in with_slow_block()])
    assert found is not None
    assert found[0] / found[1] == pytest.approx(1.1)


def test_where_most_cycles_are_disturbed_the_ratio_is_a_typical_one() -> None:
    disturbed = [[b._replace(contended=b.turn <= 24) for b in own] for own in with_slow_block()]
    found = cycles.rates(disturbed)
    assert found is not None
    assert found[0] / found[1] < 1.02


def test_steps_that_wait_for_the_loader_count_for_what_they_take() -> None:
    """Seven quick steps and one of nine times their time are as fast as steps of twice their time."""
    one, other = blocks([100.0, 50.0], 30, lambda _: 1.0)
    waits = [b._replace(cost=b.cost * (1 if n % 8 else 9)) for n, b in enumerate(one)]
    found = cycles.rates([waits, other])
    assert found is not None
    assert found[0] / found[1] == pytest.approx(1.0, abs=0.07)


def test_correlated_cycles_have_a_wider_interval() -> None:
    wave = np.array([[0.0, 0.1 * (n % 20 < 5)] for n in range(20)])
    assert cycles.half_width(wave, correlated=True) > 1.5 * cycles.half_width(wave)


def test_the_level_is_that_of_all_blocks() -> None:
    found = cycles.rates(blocks([100.0, 100.0], 4, lambda _: 1.0))
    assert found == pytest.approx([100.0, 100.0])


def test_of_one_that_is_gone_nothing_counts_and_the_others_compare() -> None:
    first, _, third = blocks([100.0, 50.0, 110.0], 4, lambda _: 1.0)
    found = cycles.rates([first, third])
    assert found is not None
    assert found[1] / found[0] == pytest.approx(1.1)


def test_who_never_went_forth_and_back_compares_with_nobody() -> None:
    assert cycles.rates([[TurnBlock(1, 1.0, 1.0)], [TurnBlock(2, 1.0, 1.0)]]) is None
    assert cycles.rates([]) is None


def test_a_cycle_that_was_cut_off_does_not_count() -> None:
    first, second = blocks([100.0, 103.0], 3, lambda _: 1.0)
    assert len(cycles.complete_cycles([first[:-1], second])) == 2


def test_the_typical_value_is_that_of_hodges_and_lehmann() -> None:
    assert cycles.hodges_lehmann(np.array([1.0, 2.0, 9.0])) == 3.5
    draw = np.random.default_rng(0)
    errors = [cycles.hodges_lehmann(draw.normal(size=20)) for _ in range(300)]
    assert np.std(errors) == pytest.approx(20**-0.5, rel=0.15)


def test_the_widest_interval_covers_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        logs = draw.normal(size=(12, 2))
        difference = float((logs[:, 0] - logs[:, 1]).mean())
        covered += abs(difference) <= cycles.half_width(logs)
    assert 0.92 <= covered / 400 <= 0.98


# Whose turn it is


def play(
    behaviour: Behaviour, members: int, limits: Limits = LIMITS, **machine: Any
) -> tuple[list[AttemptResult], list[TrialReport]]:
    """What is judged, and reported, of trials t-0, t-1 and so on that take turns."""
    share = dataclasses.replace(limits, time_limit=limits.time_limit.shared(members))
    group = InterleavedSchedule([share] * members)
    requests = [
        interleaved(trial(Path("/w"), trial=f"t-{number}", blocks=BlockPlan(1.0, 5)))
        for number in range(members)
    ]
    reports = ReplayLauncher(behaviour, **machine).slots[0].run(requests, group)
    return [judge.result(r) for judge, r in zip(group.monitors, reports, strict=True)], reports


def number(launch: Launch) -> int:
    return int(launch.request.trial[-1])


def order(reports: Sequence[TrialReport]) -> list[int]:
    """Who trained, turn by turn."""
    turned = [(b.observed["turn"], n) for n, report in enumerate(reports) for b in report.blocks]
    return [member for _, member in sorted(turned)]


def test_each_warms_up_by_itself_then_all_go_forth_and_back() -> None:
    _, reports = play(EQUAL, 3, LIMITS)
    trained = order(reports)
    warm = sum(len(report.blocks) for report in reports) % 6
    cold = [trained.index(member) for member in range(3)]
    assert cold == sorted(cold)
    first_cycle = trained.index(2) + trained[trained.index(2) :].index(0)
    assert trained[first_cycle:] == [0, 1, 2, 2, 1, 0] * ((len(trained) - first_cycle) // 6)
    assert warm == first_cycle % 6


def test_the_step_after_each_change_is_left_out_and_no_other() -> None:
    _, reports = play(EQUAL, 2)
    trained = order(reports)
    left_out = {
        b.observed["turn"]: b.observed["left_out_seconds"] for r in reports for b in r.blocks
    }
    for turn in range(2, len(trained) + 1):
        now, before = trained[turn - 1], trained[turn - 2]
        returns = now != before and now in trained[: turn - 1]
        assert bool(left_out[turn]) == returns, turn


def test_of_long_steps_none_is_left_out_and_a_turn_has_one() -> None:
    """Of 0.2 s each: nobody sees in one that another has had the caches."""
    _, reports = play(running_at(lambda _: 10.0), 2)
    later = [b for r in reports for b in r.blocks[1:]]
    assert len(later) > 4
    assert {(b.steps, b.observed["left_out_seconds"]) for b in later} == {(1, 0.0)}


def test_it_is_over_as_soon_as_their_ratios_are_known() -> None:
    quiet, _ = play(noisy(EQUAL, block=0.001), 2)
    loud, _ = play(noisy(EQUAL, block=0.2), 2)
    assert [r.state for r in (*quiet, *loud)] == [AttemptState.COMPLETE] * 4
    assert quiet[0].wall_seconds < loud[0].wall_seconds / 2
    assert loud[0].wall_seconds == pytest.approx(LIMITS.warmup + LIMITS.longest, rel=0.35)


def test_all_of_them_have_a_time_together() -> None:
    limits = dataclasses.replace(LIMITS, precision=1e-9, longest=100.0, time_limit=TimeLimit(12.0))
    judged, reports = play(noisy(EQUAL, block=0.1), 3, limits)
    assert sum(r.wall_seconds for r in reports) == pytest.approx(12.0, rel=0.2)
    assert {r.state for r in judged} == {AttemptState.COMPLETE}


@pytest.mark.parametrize(("longest", "each"), [(4.0, 2.0), (1.2, 0.8), (0.6, 0.6)])
def test_a_trial_and_who_sets_its_pace_share_the_time_of_a_trial(
    longest: float, each: float
) -> None:
    """With four cycles at the least, as far as there is time for so many."""
    limits = dataclasses.replace(LIMITS, warmup=0.0, precision=1e-9, longest=longest)
    group = PairedSchedule(limits, limits, baseline_rate=100.0)
    requests = [
        interleaved(trial(Path("/w"), trial=f"t-{number}", blocks=BlockPlan(1.0, 5)))
        for number in range(2)
    ]
    behaviour = noisy(running_at(lambda _: 1000.0), block=0.05)
    ReplayLauncher(behaviour).slots[0].run(requests, group)
    for member in range(2):
        kept = group.stop_rule(member).kept
        assert each - 0.25 <= sum(block.seconds for block in kept) <= each + 0.15


def test_who_fails_beside_others_is_to_be_run_again_and_so_are_they() -> None:
    """A run in turn does not compare with one alone."""

    def failing(launch: Launch) -> Answer:
        bad = number(launch) == 1
        return Answer(100.0, outcome=Outcome.OOM if bad else None, cause="no memory", after=9 * bad)

    judged, reports = play(failing, 3)
    assert [r.state for r in judged] == ["LOST"] * 3
    assert [r.throughput for r in judged] == [None] * 3
    assert "no memory" in judged[1].cause
    assert "again alone" in judged[1].cause
    assert {r.fault for r in judged} == {Fault.INTERLEAVED}
    assert len(reports[1].blocks) == 9
    assert len(reports[0].blocks) < 12, "the others end with it"


def test_members_that_had_no_turn_before_one_failed_have_not_failed() -> None:
    def failing(launch: Launch) -> Answer:
        return Answer(100.0, outcome=None if number(launch) else Outcome.CRASH, cause="killed")

    judged, _ = play(failing, 3)
    assert [r.state for r in judged] == [AttemptState.LOST] * 3


def test_script_that_ends_before_others_makes_all_of_them_run_again() -> None:
    def short(launch: Launch) -> Answer:
        if number(launch):
            return Answer(100.0)
        return Answer(100.0, outcome=Outcome.ERROR, cause="it ended", after=12)

    assert {r.state for r in play(short, 2)[0]} == {AttemptState.LOST}


def test_member_that_has_trained_its_last_block_ends_all_and_they_compare() -> None:
    group = InterleavedSchedule([dataclasses.replace(LIMITS, warmup=0.0, precision=1e-9)] * 2)
    for turn in range(1, 100):
        member = group.next()
        if member is None:
            break
        observed = Observed(turn=turn)
        group.trained(member, dataclasses.replace(BLOCK, index=turn, observed=observed))
        if turn == 20:
            group.drop(member)
    assert turn == 21
    assert not group.broken
    assert group.rate(0) == pytest.approx(1000.0)


def test_members_of_which_one_had_no_time_for_a_block_are_run_again() -> None:
    group = InterleavedSchedule([dataclasses.replace(LIMITS, time_limit=TimeLimit(8.0))] * 2)
    for index in range(8):
        group.trained(0, dataclasses.replace(BLOCK, index=index))
    cut = [TrialReport(f"t-{n}", None, "", (), 8.0) for n in range(2)]
    judged = [one.result(report) for one, report in zip(group.monitors, cut, strict=True)]
    assert [r.state for r in judged] == [AttemptState.LOST, AttemptState.PRUNED]


@pytest.mark.parametrize(("shares", "lost"), [([0.5, 0.5], True), ([0.9, 0.0], False)])
def test_members_whose_threads_work_while_they_wait_are_run_again(
    shares: list[float], lost: bool
) -> None:
    group = InterleavedSchedule([dataclasses.replace(LIMITS, warmup=0.0, precision=1e-9)] * 2)
    for turn, share in enumerate((s for s in shares for _ in range(2)), 1):
        observed = Observed(turn=turn, waiting_cpu=share * BLOCK.seconds if turn % 2 else 0.0)
        group.trained((turn + 1) % 2, dataclasses.replace(BLOCK, index=turn, observed=observed))
    assert (group.next() is None) == lost
    reports = [TrialReport(f"t-{n}", None, "", (), 8.0) for n in range(2)]
    judged = [one.result(report) for one, report in zip(group.monitors, reports, strict=True)]
    assert {(one.state is AttemptState.LOST, one.fault is Fault.INTERLEAVED) for one in judged} == {
        (lost, lost)
    }


def test_block_in_which_a_node_was_suspended_is_trained_again_and_does_not_count() -> None:
    group = InterleavedSchedule([dataclasses.replace(LIMITS, warmup=0.0, precision=1e-9)] * 2)
    for turn in range(1, 100):
        member = group.next()
        if member is None:
            break
        observed, seconds = Observed(turn=turn), BLOCK.seconds
        if turn == 10:
            observed, seconds = Observed(turn=turn, stood_still=9.0), 9.1
            suspended = member
        elif turn == 11:
            assert member == suspended
        block = dataclasses.replace(BLOCK, index=turn, observed=observed, seconds=seconds)
        group.trained(member, block)
    assert [group.rate(member) for member in range(2)] == pytest.approx([1000.0] * 2)


def test_an_agent_that_dies_is_nobodys_fault() -> None:
    def deadly(launch: Launch) -> Answer:
        outcome = Outcome.CRASH if number(launch) else None
        return Answer(100.0, outcome=outcome, after=3, lost_agent=True)

    judged, reports = play(deadly, 3)
    assert all(report.lost_agent for report in reports)
    assert {r.state for r in judged} == {AttemptState.LOST}
    assert judged[1].fault is Fault.TRIAL


def test_equals_in_turn_lie_far_closer_together_than_one_after_another() -> None:
    """On a machine whose speed wanders by 8 %, and forgets it within 10 s."""
    limits = dataclasses.replace(LIMITS, precision=1e-9, longest=2.0)
    variation = SpeedVariation(0.08, 10.0)
    behaviour = noisy(EQUAL, block=0.01)
    in_turn, apart = [], []
    for seed in range(12):
        first, second = (
            r.throughput for r in play(behaviour, 2, limits, variation=variation, seed=seed)[0]
        )
        in_turn.append(math.log(first / second))
        slot = ReplayLauncher(behaviour, variation=variation, seed=seed).slots[0]
        rates = []
        for name in ("t-0", "t-1"):
            judge = TimedMonitor(limits)
            blocks_of = trial(Path("/w"), trial=name, blocks=BlockPlan(0.1, 2, 1000))
            rates.append(judge.result(slot.run_solo(blocks_of, judge)).throughput)
        apart.append(math.log(rates[0] / rates[1]))
    assert np.std(apart) > 2.5 * np.std(in_turn)
    assert np.std(in_turn) < 0.01


def test_short_blocks_need_more_of_them() -> None:
    asked = trial(Path("/w"), blocks=BlockPlan(1.0, 5, 100, 9.0))
    hasty = trial(Path("/w"), blocks=BlockPlan(0.02, 1, 100))
    plans = [interleaved(one).blocks for one in (asked, hasty)]
    assert plans == [BlockPlan(0.1, 1, 1000, 9.0), hasty.blocks]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_knobs_in_turn_are_those_of_the_job(device: str) -> None:
    asked = trial(Path("/w"), device=device)
    assert interleaved(asked).knobs == asked.knobs


@pytest.mark.parametrize(("at_once", "launches"), [(False, 2), (True, 1)])
def test_launch_at_once_takes_no_longer_than_one_launch(at_once: bool, launches: int) -> None:
    limits = dataclasses.replace(LIMITS, longest=1.0)
    schedule = InterleavedSchedule([limits] * 2, at_once=at_once)
    slot = ReplayLauncher(lambda _: Answer(rate=100.0, startup=50.0)).slots[0]
    requests = [interleaved(trial(Path("/w"), blocks=BlockPlan(0.1, 1, 1000))) for _ in range(2)]
    slot.run(requests, schedule)
    assert slot.time // 50.0 == launches


@pytest.mark.long
def test_ratio_of_recorded_configurations_is_that_of_long_runs() -> None:
    device = read_device(TABLE)
    base = {**knobs(), "precision": "bf16", "log_interval": 10}
    compiled = {"compile": "default", "optimizer_kernels": "fused"}
    both = [
        {**base, "micro_batch": 32, "accumulation_steps": 1, **compiled},
        {**base, "micro_batch": 16, "accumulation_steps": 2},
    ]
    truth = math.log(device.rate(both[0]) / device.rate(both[1]))
    errors = []
    for seed in range(100):
        environment = device.environment
        launcher = ReplayLauncher(
            device.behaviour(script=True), workers=1, environment=environment, seed=seed
        )
        asked = [  # by the names it draws, the same every time
            interleaved(trial(Path("/w"), trial=f"member-{number}", knobs=one, world_size=1))
            for number, one in enumerate(both)
        ]
        endless = BlockPlan(0.1, 1, 10_000)
        schedule = InterleavedSchedule([dataclasses.replace(LIMITS, longest=30.0)] * 2)
        launcher.slots[0].run([dataclasses.replace(a, blocks=endless) for a in asked], schedule)
        found = [schedule.rate(member) or 1.0 for member in (0, 1)]
        errors.append(math.log(found[0] / found[1]) - truth)
    assert abs(float(np.mean(errors))) < 0.003


def turns(
    schedule: InterleavedSchedule, compiles: Callable[[int], bool], seconds: float
) -> list[int]:
    """Return which member trains turn by turn; the second one compiles in some after its warm-up."""
    order: list[int] = []
    while (member := schedule.next()) is not None and len(order) < 60:
        rule = schedule.stop_rule(member)
        late = member == 1 and not rule.warming_up and compiles(len(rule.seen))
        observed = Observed(turn=len(order) + 1, compilations=int(late))
        index = order.count(member)
        took = seconds if late else 0.1 + 0.02 * (index % 2)
        schedule.trained(
            member, dataclasses.replace(BLOCK, index=index, seconds=took, observed=observed)
        )
        order.append(member)
    return order


def test_turn_in_which_something_was_compiled_is_repeated() -> None:
    schedule = InterleavedSchedule([LIMITS] * 2)
    order = turns(schedule, lambda seen: seen == 8, seconds=2.0)
    assert [1, 1, 1] in [order[start : start + 3] for start in range(len(order))]
    assert schedule.rate(0) == pytest.approx(schedule.rate(1), rel=0.05)


def test_turn_is_repeated_only_while_there_is_time() -> None:
    limits = dataclasses.replace(LIMITS, time_limit=TimeLimit(5.0))
    schedule = InterleavedSchedule([limits] * 2)
    turns(schedule, lambda seen: seen > 8, seconds=3.0)
    spent = sum(s.block.seconds for n in (0, 1) for s in schedule.stop_rule(n).seen)
    assert spent <= 10.0 + 3.0
