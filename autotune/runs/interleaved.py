"""Interleaved runs: several trials that are resident on one slot and train in turn, block by block."""

from collections.abc import Sequence
from dataclasses import replace

from autotune.measurement import cycles
from autotune.measurement.policy import MEASUREMENT
from autotune.measurement.step_series import units
from autotune.measurement.stop_rule import STEPS_FOR_PROOF, Limits, StopRule
from autotune.runs.monitors import TimedMonitor
from autotune.worker.protocol import BlockPlan, BlockReport, TrialReport, TrialRequest
from storage import AttemptResult, AttemptState, StoredBlock


def interleaved(asked: TrialRequest) -> TrialRequest:
    """Return the trial as a member of an interleaved group, with short blocks.

    On the CPU all ranks stay on processors of their own, where they disturb each other less.
    """
    plan = asked.blocks
    seconds = min(MEASUREMENT.interleaved_block, plan.seconds)
    most = max(plan.max_blocks, round(plan.max_blocks * plan.seconds / seconds))
    blocks = BlockPlan(seconds, 1, most, plan.longest)
    knobs = {**asked.knobs, "cpu_affinity": "share"} if asked.device == "cpu" else asked.knobs
    return replace(asked, knobs=knobs, blocks=blocks, takes_turns=True)


class InterleavedSchedule:
    """Schedule of interleaved runs, until their ratios are known well enough.

    Each run warms up by itself, then all train in A-B-B-A order.
    """

    least_cycles = MEASUREMENT.least_cycles
    """Cycles that are run even if they take longer than the time per run."""
    fewest_cycles = MEASUREMENT.fewest_cycles
    """Fewest cycles of which an interval is meaningful."""

    def __init__(self, limits: Sequence[Limits], *, at_once: bool = False) -> None:
        """Prepare the schedule before anything is launched.

        Args:
            limits: limits of each member, its share of the time included. `longest`, `precision`
                (of the ratios) and the unit are those of the first.
            at_once: True if the members build at the same time.
        """
        self.at_once = at_once
        self._limits = limits[0]
        self._whole = sum(each.limit.soft for each in limits)
        self._rules = [StopRule(each) for each in limits]
        self.monitors: list[MemberMonitor] = [
            self._monitor(number, each) for number, each in enumerate(limits)
        ]
        """Monitor of each member."""
        self._away: set[int] = set()
        self._order: list[int] = []
        self._spent = self._at_cycle = 0.0
        """Seconds of all blocks until now, and until the present cycle began."""

    def next(self) -> int | None:
        """Return the member that trains the next block; None ends all of them."""
        members = self._members()
        cold = [number for number in members if self._rules[number].warming_up]
        if cold:
            return cold[0]
        if not self._order:
            latest, self._at_cycle = self._spent - self._at_cycle, self._spent
            if not members or self._enough(members, latest):
                return None
            self._order = cycles.abba_order(members)
        return self._order.pop(0)

    def trained(self, member: int, block: BlockReport) -> None:
        """Take in the block of a turn."""
        rule = self._rules[member]
        self._spent += block.seconds + block.observed.get("left_out_seconds", 0.0)
        if rule.warming_up:
            rule(block)
        else:
            rule.take(block)
        if rule.problem or rule.hopeless:
            self.lost(member)

    def lost(self, member: int) -> None:
        """Drop a member that has failed or is over."""
        self._away.add(member)
        self._order = [number for number in self._order if number != member]

    def stop_rule(self, member: int) -> StopRule:
        """Return the stop rule of a member, with its blocks."""
        return self._rules[member]

    def rate(self, member: int) -> float | None:
        """Return the rate of a member that completed a cycle with the others; None otherwise."""
        members = self._members()
        if any(self._rules[number].uncounted for number in members):
            return None
        found = cycles.rates(self._taken(members))
        return found[members.index(member)] if found and member in members else None

    def _monitor(self, number: int, limits: Limits) -> "MemberMonitor":
        return MemberMonitor(self, number, limits)

    def _members(self) -> list[int]:
        return [number for number in range(len(self._rules)) if number not in self._away]

    def _taken(self, members: list[int]) -> list[list[cycles.TurnBlock]]:
        return [turn_blocks(self._rules[n].kept, counts=self._limits.counts) for n in members]

    def _longest(self, cycles: int) -> float:
        """Return the seconds that each member may train after this many cycles."""
        return self._limits.longest

    def _enough(self, members: list[int], latest: float) -> bool:
        """Return whether another cycle is not needed, or would take too long.

        Another cycle is expected to take as long as the latest.
        """
        found = cycles.complete_cycles(self._taken(members))
        if len(found) < self.least_cycles:
            return self._spent + (latest if len(found) else 0.0) > self._whole
        if self._spent + latest > self._whole:
            return True
        if any(self._rules[n].lacks_steps() for n in members):
            return False
        timed = max(sum(b.seconds for b in self._rules[n].kept) for n in members)
        if timed * (1 + 1 / len(found)) > self._longest(len(found)):
            return True
        return len(found) >= self.fewest_cycles and self._exact(members, found)

    def _exact(self, members: list[int], found: cycles.Cycles) -> bool:
        """Return whether the ratios are known as exactly as is wanted.

        Where steps are timed by the device there have to be enough of them to show the slow ones, too.
        """
        steps = [self._rules[n].steps for n in members]
        if any(count is not None and count < STEPS_FOR_PROOF for count in steps):
            return False
        stepwise = None not in steps
        return cycles.half_width(found, correlated=stepwise) <= self._precision(members)

    def _precision(self, members: list[int]) -> float:
        """Return the half-width of a ratio below which more cycles change nothing.

        Processes of a member may lie further apart.
        """
        told = [self._rules[n].process_sigma for n in members]
        limits = (replace(self._limits, sigma_run=sigma) for sigma in told if sigma is not None)
        return max((limit.enough for limit in limits), default=self._limits.precision)


def turn_blocks(
    blocks: Sequence[BlockReport | StoredBlock], *, counts: str
) -> list[cycles.TurnBlock]:
    """Return the interleaved ones of some blocks, in comparable form.

    Args:
        blocks: blocks that count.
        counts: samples, tokens or steps.
    """
    return [
        cycles.TurnBlock(
            b.observed["turn"], units(b, counts), b.seconds, bool(b.observed.get("step_moments"))
        )
        for b in blocks
        if "turn" in b.observed
    ]


class MemberMonitor(TimedMonitor):
    """Monitor of a member of an interleaved group."""

    def __init__(self, group: InterleavedSchedule, number: int, limits: Limits) -> None:
        super().__init__(limits, group.stop_rule(number))
        self._group = group
        self._number = number

    def result(self, report: TrialReport) -> AttemptResult:
        """Return the result of the run, with the rate that its ratios to the others give.

        A failure may be caused by the other members: the run is to be repeated alone.
        """
        result = super().result(report)
        if report.outcome is not None and not report.lost_agent:
            cause = f"{result.cause} (it ran interleaved; it is measured again alone)"
            return replace(result, state=AttemptState.LOST, cause=cause)
        rate = self._group.rate(self._number)
        if result.state != AttemptState.COMPLETE or rate is None:
            return result
        return replace(result, throughput=rate)
