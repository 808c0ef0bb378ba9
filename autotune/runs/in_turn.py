"""Runs that are resident on one slot at once and take turns, block by block."""

import dataclasses
from collections.abc import Sequence

from autotune.measurement import turns
from autotune.measurement.units import units
from autotune.measurement.watch import Limits, Watch
from autotune.runs.judging import TimedRun
from autotune.worker.protocol import BlockPlan, BlockReport, TrialReport, TrialRequest
from storage import AttemptResult, AttemptState, StoredBlock

TURN_SECONDS = 0.1
"""Of a block, or a single step where that takes longer. Shorter ones would be nearer to each other, but
the step that each change from one run to another leaves out, where steps are short, would cost more of
the time."""


def taking_turns(asked: TrialRequest) -> TrialRequest:
    """The same trial beside others, in blocks that are short. On the CPU all ranks stay on processors of
    their own meanwhile, as they get into each other's way less."""
    plan = asked.blocks
    seconds = min(TURN_SECONDS, plan.seconds)
    most = max(plan.max_blocks, round(plan.max_blocks * plan.seconds / seconds))
    blocks = BlockPlan(seconds, 1, most, plan.longest)
    knobs = {**asked.knobs, "cpu_affinity": "share"} if asked.device == "cpu" else asked.knobs
    return dataclasses.replace(asked, knobs=knobs, blocks=blocks, takes_turns=True)


class InTurn:
    """Says whose turn it is, until their ratios are known well enough: each warms up by itself, then all
    go forth and back."""

    least_cycles = 1
    """Whatever time they take, as long as there is any for all."""
    fewest_cycles = 5
    """Before an interval over them means anything."""

    def __init__(self, limits: Sequence[Limits]) -> None:
        """Before anything is launched.

        Args:
            limits: of each member, its share of the time included; `longest`, `precision` and what is
                counted are those of the first, `precision` that of their ratios.
        """
        self._limits = limits[0]
        self._whole = sum(each.whole for each in limits)
        self._watches = [Watch(each) for each in limits]
        self.judges: list[MemberRun] = [
            self._judge(number, each) for number, each in enumerate(limits)
        ]
        """Of each member."""
        self._away: set[int] = set()
        self._order: list[int] = []
        self._spent = self._at_cycle = 0.0
        """Seconds of all blocks: until now, and until the cycle began."""

    def next(self) -> int | None:
        """The one that trains the next block. None: enough has been seen of all."""
        members = self._members()
        cold = [number for number in members if self._watches[number].warming_up]
        if cold:
            return cold[0]
        if not self._order:
            latest, self._at_cycle = self._spent - self._at_cycle, self._spent
            if not members or self._enough(members, latest):
                return None
            self._order = turns.forth_and_back(members)
        return self._order.pop(0)

    def trained(self, member: int, block: BlockReport) -> None:
        """Take in the block that has come of a turn."""
        watch = self._watches[member]
        self._spent += block.seconds + block.observed.get("left_out_seconds", 0.0)
        if watch.warming_up:
            watch(block)
        else:
            watch.take(block)
        if watch.problem or watch.lost:
            self.lost(member)

    def lost(self, member: int) -> None:
        """One has failed, or is over: it has no turn any more."""
        self._away.add(member)
        self._order = [number for number in self._order if number != member]

    def watch(self, member: int) -> Watch:
        """What was seen of one of them."""
        return self._watches[member]

    def rate(self, member: int) -> float | None:
        """Of one that has gone forth and back with the others: units per second. None of any other."""
        members = self._members()
        if any(self._watches[number].uncounted for number in members):
            return None
        found = turns.rates(self._taken(members))
        return found[members.index(member)] if found and member in members else None

    def _judge(self, number: int, limits: Limits) -> "MemberRun":
        return MemberRun(self, number, limits)

    def _members(self) -> list[int]:
        return [number for number in range(len(self._watches)) if number not in self._away]

    def _taken(self, members: list[int]) -> list[list[turns.Taken]]:
        return [taken(self._watches[n].kept, counts=self._limits.counts) for n in members]

    def _longest(self, cycles: int) -> float:
        """Seconds that each may train after so many cycles."""
        return self._limits.longest

    def _enough(self, members: list[int], latest: float) -> bool:
        """Whether another cycle is not needed, or there is no time for one like the latest."""
        found = turns.cycles(self._taken(members))
        if len(found) < self.least_cycles:
            return self._spent + (latest if len(found) else 0.0) > self._whole
        if self._spent + latest > self._whole:
            return True
        timed = max(sum(b.seconds for b in self._watches[n].kept) for n in members)
        if timed * (1 + 1 / len(found)) > self._longest(len(found)):
            return True
        known = len(found) >= self.fewest_cycles
        return known and turns.half_width(found) <= self._limits.precision


def taken(blocks: Sequence[BlockReport | StoredBlock], *, counts: str) -> list[turns.Taken]:
    """Return the blocks that were trained in a turn, as they compare.

    Args:
        blocks: those that count.
        counts: samples, tokens or steps.
    """
    return [
        turns.Taken(b.observed["turn"], units(b, counts), b.seconds)
        for b in blocks
        if "turn" in b.observed
    ]


class MemberRun(TimedRun):
    """One of them, as it is judged."""

    def __init__(self, group: InTurn, number: int, limits: Limits) -> None:
        super().__init__(limits, group.watch(number))
        self._group = group
        self._number = number

    def result(self, report: TrialReport) -> AttemptResult:
        """As of a run by itself, but with the rate that its ratios to the others say. What fails may
        have failed because of them: it is to be run again, alone."""
        result = super().result(report)
        if report.outcome is not None and not report.lost_agent:
            cause = f"{result.cause} (others were resident; it is measured again alone)"
            return dataclasses.replace(result, state=AttemptState.LOST, cause=cause)
        rate = self._group.rate(self._number)
        if result.state != AttemptState.COMPLETE or rate is None:
            return result
        return dataclasses.replace(result, throughput=rate)
