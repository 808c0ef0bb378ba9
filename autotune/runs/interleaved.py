"""Interleaved runs: several trials that are resident on one slot and train in turn, block by block.

A trial of the search can be paired with the baseline so. Where the machine's speed wanders, trials that
follow each other do not compare; a trial's ratio to the baseline beside it cancels what the machine does
meanwhile. The recorded rate is that ratio times the rate of the baseline's own trial.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from autotune.measurement import cycles
from autotune.measurement.measure import Measure
from autotune.measurement.noise import noise_of_pairs, total_half_width
from autotune.measurement.policy import MEASUREMENT
from autotune.measurement.stop_rule import (
    Limits,
    StopRule,
    seconds_of_compilation,
)
from autotune.runs.monitors import TimedMonitor
from autotune.runs.policy import RUNS
from autotune.worker.protocol import BlockReport, TrialReport, TrialRequest
from storage import AttemptResult, AttemptState, Fault, StoredBlock

_TRIAL, _BASELINE = 0, 1


def interleaved(
    asked: TrialRequest, interleaved_block_seconds: float = RUNS.interleaved_block
) -> TrialRequest:
    """Return the trial as a member of an interleaved group, with short blocks.

    Args:
        asked: timed trial.
        interleaved_block_seconds: longest block.
    """
    plan = asked.blocks
    seconds = min(interleaved_block_seconds, plan.seconds)
    most = max(plan.max_blocks, round(plan.max_blocks * plan.seconds / seconds))
    blocks = replace(plan, seconds=seconds, min_steps=1, max_blocks=most)
    return replace(asked, blocks=blocks, interleaved=True)


class InterleavedSchedule:
    """Schedule of interleaved runs, until their ratios are known well enough.

    Each run warms up by itself, then all train in A-B-B-A order. It ends as soon as one has failed or is
    over.
    """

    least_cycles = RUNS.least_cycles
    """Cycles that are run even if they take longer than the time per run."""
    fewest_cycles = RUNS.fewest_cycles
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
        self._whole = sum(each.time_limit.soft for each in limits)
        self._compiling = max(each.time_limit.compiling for each in limits)
        """Seconds that are left for compilation beside the others."""
        self._rules = [StopRule(each) for each in limits]
        self.monitors: list[MemberMonitor] = [
            self._monitor(number, each) for number, each in enumerate(limits)
        ]
        """Monitor of each member."""
        self._away: set[int] = set()
        self._latest: int | None = None
        """Member whose block has just come."""
        self._failed = False
        self.works_while_waiting = False
        """True if threads of a member have gone on while it waited."""
        self._work_in_waits: dict[int, list[float]] = {}
        """Processor time of a member's threads in each wait, in units of the block that followed."""
        self._order: list[int] = []
        self._spent = self._at_cycle = 0.0
        """Seconds of all blocks until now, and until the present cycle began."""
        self._is_over = False

    def next(self) -> int | None:
        """Return the member that trains the next block; None ends all of them."""
        self._latest = None
        if self._is_over or self._away:
            return None
        members = self._members
        cold = [number for number in members if self._rules[number].warming_up]
        if cold:
            return cold[0]
        if not self._order:
            latest, self._at_cycle = self._spent - self._at_cycle, self._spent
            if self._is_done(members, latest):
                return None
            self._order = cycles.abba_order(members)
        return self._order.pop(0)

    def trained(self, member: int, block: BlockReport) -> None:
        """Take in the block of a turn."""
        rule = self._rules[member]
        if rule.passes_over(block):
            self._latest = member
            if not rule.warming_up:
                self._order.insert(0, member)
            return
        self._spent += self._charged(block) + block.observed.get("left_out_seconds", 0.0)
        if rule.warming_up:
            rule(block)
        elif not rule.take(block):
            self._repeat(member, block)
        if rule.problem or rule.hopeless:
            self.drop(member)
        elif self._works_while_waiting(member, block):
            self.works_while_waiting = True
            self.drop(member)
        self._latest = member

    def _works_while_waiting(self, member: int, block: BlockReport) -> bool:
        """Return whether threads of a member go on while it waits for its turn, as those that load do.

        A single wait does not tell: what they did before it may come to its end then.
        """
        if (seconds := block.observed.get("waiting_cpu")) is None:
            return False
        shares = self._work_in_waits.setdefault(member, [])
        shares.append(seconds / block.seconds)
        return len(shares) > 1 and statistics.median_low(shares) > RUNS.work_while_waiting

    def _repeat(self, member: int, block: BlockReport) -> None:
        """Let a member train a block again that does not count, or end all if there is no time."""
        like_it = [*self._rules[member].kept, block][0]
        if self._spent + like_it.seconds > self._whole:
            self._is_over = True
        else:
            self._order.insert(0, member)

    def _charged(self, block: BlockReport) -> float:
        """Return what a block takes of the time, without what there is for compilation."""
        spared = min(seconds_of_compilation(block), self._compiling)
        self._compiling -= spared
        return block.seconds - spared

    def drop(self, member: int) -> None:
        """End all, as a member has failed or, right after a block of its own, has trained its last."""
        self._away.add(member)
        self._failed |= member != self._latest

    @property
    def broken(self) -> bool:
        """True if a member has failed or has no block that counts, so that the others compare with none.

        Asked once all have ended.
        """
        if not self._failed:
            for rule in self._rules:
                rule.close()
        return self._failed or not all(rule.kept for rule in self._rules)

    def spoils(self, member: int, result: AttemptResult) -> bool:
        """Return whether the end of another member leaves the result of this one without a meaning."""
        if self._rules[member].problem or result.state is AttemptState.LOST:
            return False
        return self._failed or (result.throughput is not None and self.broken)

    def stop_rule(self, member: int) -> StopRule:
        """Return the stop rule of a member, with its blocks."""
        return self._rules[member]

    def rate(self, member: int) -> float | None:
        """Return the rate of a member that completed a cycle with the others; None otherwise."""
        if any(rule.uncounted for rule in self._rules):
            return None
        found = cycles.rates(self._taken(self._members))
        return found[member] if found else None

    def _monitor(self, number: int, limits: Limits) -> "MemberMonitor":
        return MemberMonitor(self, number, limits)

    @property
    def _members(self) -> list[int]:
        return list(range(len(self._rules)))

    def _taken(self, members: list[int]) -> list[list[cycles.TurnBlock]]:
        seen = [[s for s in self._rules[n].seen if s.kept] for n in members]
        marked = [[(one.block, one.contended) for one in own] for own in seen]
        return [turn_blocks(own, self._limits.measure) for own in marked]

    def _longest(self, done: int) -> float:
        """Return the seconds that each member may train after this many cycles."""
        return self._limits.longest

    def _is_done(self, members: list[int], latest: float) -> bool:
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
        if any(count is not None and count < MEASUREMENT.steps_for_proof for count in steps):
            return False
        device_timed = None not in steps
        return cycles.half_width(found, correlated=device_timed) <= self._precision(members)

    def _precision(self, members: list[int]) -> float:
        """Return the half-width of a ratio below which more cycles change nothing.

        Processes of a member may lie further apart.
        """
        told = [self._rules[n].process_sigma for n in members]
        limits = (replace(self._limits, sigma_run=sigma) for sigma in told if sigma is not None)
        return max((limit.target_half_width for limit in limits), default=self._limits.precision)


def turn_blocks(
    blocks: Iterable[tuple[BlockReport | StoredBlock, bool]], measure: Measure
) -> list[cycles.TurnBlock]:
    """Return the interleaved ones of some blocks that count, in comparable form.

    Args:
        blocks: blocks, each with whether other processes disturbed it.
        measure: what is measured.
    """
    return [
        cycles.TurnBlock(
            b.observed["turn"],
            measure.work(b),
            measure.cost(b),
            not measure.of_energy and bool(b.observed.get("step_moments")),
            contended,
        )
        for b, contended in blocks
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

        A failure may be caused by the other members: the run is to be repeated alone. So are the
        others then, as runs in turn have other blocks than one alone.
        """
        result = super().result(report)
        if report.outcome is not None and not report.lost_agent:
            cause = f"{result.cause} (it ran interleaved; it is measured again alone)"
            fault = result.fault if result.state is AttemptState.LOST else Fault.INTERLEAVED
            return replace(result, state=AttemptState.LOST, cause=cause, fault=fault)
        if self._group.spoils(self._number, result):
            cause = "a run that took turns with it failed or had no time"
            if self._group.works_while_waiting:
                cause = "threads load or compute while their run waits for its turn"
            return AttemptResult(
                AttemptState.LOST,
                f"{cause} (it is measured again alone)",
                result.log_tail,
                peak_bytes=result.peak_bytes,
                wall_seconds=result.wall_seconds,
                fault=Fault.INTERLEAVED,
            )
        rate = self._group.rate(self._number)
        if result.state != AttemptState.COMPLETE or rate is None:
            return result
        return replace(result, throughput=rate)


class PairedRatio(NamedTuple):
    """Ratio of a trial to the baseline beside it.

    Attributes:
        ratio: speed of the trial, in units of the baseline's.
        half_width: relative half-width of the 95 % interval from the cycles.
        df: degrees of freedom of Student's t in that interval.
    """

    ratio: float
    half_width: float
    df: float

    def applied(self, result: AttemptResult, baseline_rate: float) -> AttemptResult:
        """Return a trial's result with this ratio, where the baseline runs at this rate.

        Args:
            result: of the trial, with the throughput that its own blocks give.
            baseline_rate: rate of the baseline's own trial, units per second.
        """
        return replace(
            result,
            throughput=self.ratio * baseline_rate,
            raw_throughput=result.throughput,
            ratio=self.ratio,
            half_width=total_half_width(self.half_width, result.sigma_run or 0.0),
            block_half_width=self.half_width,
            block_freedom=self.df,
        )


def ratio_to_baseline(
    trial: Sequence[cycles.TurnBlock], baseline: Sequence[cycles.TurnBlock]
) -> PairedRatio | None:
    """Return a trial's ratio to the baseline, by the blocks of both that count.

    None if there are fewer than two cycles.
    """
    found = cycles.complete_cycles([trial, baseline])
    rates = cycles.rates([trial, baseline])
    if len(found) < 2 or rates is None:
        return None
    half_width = cycles.half_width(found)
    return PairedRatio(rates[0] / rates[1], half_width, len(found) - 1.0)


class PairedSchedule(InterleavedSchedule):
    """Schedule of a trial and the baseline beside it.

    It also ends as soon as the trial cannot catch up with the best any more.
    """

    least_cycles = RUNS.least_cycles_of_pair
    fewest_cycles = MEASUREMENT.fewest_blocks

    def __init__(
        self, trial: Limits, baseline: Limits, baseline_rate: float, *, at_once: bool = False
    ) -> None:
        """Prepare the schedule before anything is launched.

        Args:
            trial: limits of the trial, with the rate that it races against.
            baseline: limits of the baseline.
            baseline_rate: rate of the baseline's own trial, units per second.
            at_once: True if both build at the same time.
        """
        self._race = replace(trial, sigma_run=noise_of_pairs(trial.sigma_run))
        self.baseline_rate = baseline_rate
        # During its warm-up the machine may be far slower than when the best was measured.
        hopeless = trial.incumbent_low / RUNS.machine_slower
        racing = replace(trial, incumbent_low=hopeless)
        super().__init__([racing, baseline], at_once=at_once)

    @property
    def sigma(self) -> float:
        """Relative standard deviation between such pairs."""
        return self._race.sigma_run

    @property
    def without_baseline(self) -> bool:
        """True if the baseline has failed, or its processes are gone."""
        return _BASELINE in self._away

    def spoils(self, member: int, result: AttemptResult) -> bool:
        """Return False: the monitors of a pair judge what the end of either is for the other."""
        return False

    def _works_while_waiting(self, member: int, block: BlockReport) -> bool:
        """Return False: what a pair promises too much, the rounds find out."""
        return False

    def trained(self, member: int, block: BlockReport) -> None:
        super().trained(member, block)
        if not self._away and self._cannot_catch_up():
            self.stop_rule(_TRIAL).hopeless = True
            self.drop(_TRIAL)

    def ratio(self) -> PairedRatio | None:
        """Return the trial's ratio to the baseline; None as long as there are too few cycles."""
        return ratio_to_baseline(*self._taken([_TRIAL, _BASELINE]))

    def rate(self, member: int) -> float | None:
        """Return the trial's rate by its ratio to the baseline; None for the baseline."""
        known = self.ratio()
        return known.ratio * self.baseline_rate if known and member == _TRIAL else None

    def _longest(self, done: int) -> float:
        """Return the seconds that each may train: together as long as a trial by itself.

        Pairs of processes differ by more than their cycles do, and another trial tells more than a
        longer one.
        """
        whole = super()._longest(done)
        return whole if done < RUNS.few_cycles else whole / 2

    def _monitor(self, number: int, limits: Limits) -> MemberMonitor:
        kind = _PairedTrialMonitor if number == _TRIAL else _PairedBaselineMonitor
        return kind(self, number, limits)

    def _cannot_catch_up(self) -> bool:
        known = self.ratio()
        if known is None or not self._race.incumbent_low:
            return False
        most = known.ratio * self.baseline_rate * (1 + self._race.doubt(known.half_width))
        return most < MEASUREMENT.hopeless_trial * self._race.incumbent_low


class _PairedTrialMonitor(MemberMonitor):
    """Monitor of the trial: its result follows from its ratio to the baseline, once that is known."""

    def __init__(self, group: PairedSchedule, number: int, limits: Limits) -> None:
        super().__init__(group, number, limits)
        self._pair = group

    def result(self, report: TrialReport) -> AttemptResult:
        result, known = super().result(report), self._pair.ratio()
        timed = result.state.ended_well
        if known is None and timed and self._pair.without_baseline:
            cause = "the baseline beside it failed (it is measured again alone)"
            return replace(result, state=AttemptState.LOST, cause=cause, fault=Fault.INTERLEAVED)
        if known is None or not timed:
            return result
        rate = self._rule.estimate().rate  # of its own blocks
        own = replace(result, sigma_run=self._pair.sigma, throughput=rate)
        return known.applied(own, self._pair.baseline_rate)


class _PairedBaselineMonitor(MemberMonitor):
    """Monitor of the baseline beside the trial."""

    def result(self, report: TrialReport) -> AttemptResult:
        result = super().result(report)
        if result.state is AttemptState.LOST and report.outcome is not None:
            cause = f"beside a trial: {report.cause}"
            return replace(result, cause=cause)
        if report.blocks or result.state is not AttemptState.ERROR:
            return result
        cause = "its trial was over before it had a turn"
        return replace(result, state=AttemptState.PRUNED, cause=cause)
