"""Stop rule of a running trial: when its warm-up is over, and when enough blocks have come.

Disturbance of a block by other processes is judged by what they took, not by the block's speed.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.measurement.estimate import Estimate, steady, theil_sen
from autotune.measurement.measure import SAMPLES_PER_SECOND, Measure, PowerLimit
from autotune.measurement.noise import total_half_width
from autotune.measurement.policy import MEASUREMENT
from autotune.measurement.step_series import OnsetBound, StepSeries, TimedBlock
from autotune.worker.protocol import NO_LIMIT, BlockReport, TimeLimit

_FASTEST_STEP = 1e-7
"""Seconds of the fastest possible optimizer step; a workload that reports a faster one is
broken."""


def contended(block: BlockReport, before: Sequence[BlockReport]) -> bool:
    """Return whether other processes disturbed a block.

    They did in each of these cases:

    - A device was throttled, or had other processes on it.
    - The processors of a node were at least 90 % busy, and other processes took more than 10 % of them.
    - One rank lags behind the others half as much again as it did before.

    Args:
        before: earlier blocks of the same trial that count.
    """
    seen = block.observed
    if seen.get("throttled") or seen.get("foreign_processes"):
        return True
    busy = 1 - seen.get("idle_cpu", 1.0)
    if busy >= MEASUREMENT.busy_share and seen.get("foreign_cpu", 0.0) > MEASUREMENT.foreign_share:
        return True
    usual = [ratio for ratio in map(straggler_ratio, before) if ratio is not None]
    now = straggler_ratio(block)
    if now is None or len(usual) < MEASUREMENT.enough_disturbed:
        return False
    return now > MEASUREMENT.straggling_factor * statistics.median(usual)


def straggler_ratio(block: TimedBlock) -> float | None:
    """Return the slowest rank's own time over that of the median rank; None if not observed.

    A rank's own time of a step is what it does not spend waiting for collectives.
    """
    exposed = block.observed.get("exposed_seconds")
    if not exposed or len(exposed) < 2:
        return None
    step = block.seconds / block.steps
    own = [max(step - waited, 1e-9) for waited in exposed]
    return float(max(own) / statistics.median_low(own))


@dataclass(frozen=True)
class Limits:
    """Limits of a trial's measurement.

    Attributes:
        warmup: seconds after which blocks count even if the trial is not steady.
        longest: seconds after the warm-up after which the trial ends in any case, even with fewer
            than three blocks.
        precision: relative half-width of the 95 % interval at which it ends.
        long_step: seconds of a step above which the warm-up, too, takes at most `longest`.
        time_limit: of the trial; `soft` is that of all blocks, warm-up included.
        settling: bound on later steps from the first ones.
        incumbent_low: lower bound of the best rate so far; 0 switches racing off.
        sigma_run: relative standard deviation between runs.
        fewest: number of blocks that must count before their interval ends the trial, unless steps
            that were timed one by one tell enough before; infinite: no interval ends it.
        power: limit of the power of its devices; None: there is none.
        proves: True if the run is evidence for a verdict: its first step alone never counts.
        warm_blocks: most blocks of the warm-up after the first, those in which something was compiled
            left out.
        of_reports: True if each step is a report of a command, which may come at fixed times whatever
            was done between.
    """

    warmup: float
    longest: float
    precision: float
    measure: Measure = SAMPLES_PER_SECOND
    incumbent_low: float = 0.0
    sigma_run: float = 0.0
    run_df: float = math.inf
    fewest: float = MEASUREMENT.fewest_blocks
    long_step: float = math.inf
    time_limit: TimeLimit = NO_LIMIT
    warm_blocks: float = math.inf
    settling: OnsetBound = field(default_factory=OnsetBound)
    proves: bool = False
    power: PowerLimit | None = None
    of_reports: bool = False

    @property
    def target_half_width(self) -> float:
        """Relative half-width of the blocks' interval below which more blocks change nothing."""
        of_runs = total_half_width(0.0, self.sigma_run)
        return max(self.precision, MEASUREMENT.blocks_beside_runs * of_runs)

    def doubt(self, block_half_width: float) -> float:
        """Return the relative half-width of the 95 % interval of a run, with which it races.

        The interval is Student's, because the noise between runs is known from a few.
        """
        return total_half_width(block_half_width, self.sigma_run, self.run_df)


@dataclass(frozen=True)
class ObservedBlock:
    """A block and its use in the measurement.

    Attributes:
        kept: True if it counts; otherwise it belongs to the warm-up or was repeated.
        contended: True if other processes disturbed it.
    """

    block: BlockReport
    kept: bool
    contended: bool = False


class StopRule:
    """Rule that is called with each block; True means that the trial may end."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.seen: list[ObservedBlock] = []
        self.steady = False
        self.hopeless = False
        """True if the trial cannot catch up with the incumbent any more."""
        self.problem = ""
        """Description of an impossible block; empty if none came."""
        self._repeats = 0
        self._eaten = 0
        """Number of the first blocks, the last of which lived on batches that a loader had prepared."""

    @property
    def kept(self) -> list[BlockReport]:
        """Blocks that count."""
        return [seen.block for seen in self.seen if seen.kept]

    @property
    def contended(self) -> bool:
        """True if disturbed blocks count."""
        return any(seen.kept and seen.contended for seen in self.seen)

    def __call__(self, block: BlockReport) -> bool:
        if self.passes_over(block):
            return False
        self.problem = self.problem or unusable(block)
        if self.problem:
            return True
        if self.warming_up:
            self.seen.append(ObservedBlock(block, kept=False))
            if self._eats_reserve():
                self._eaten = len(self.seen)
            self.steady = self._steady()
            self.hopeless = self._cannot_catch_up()
            # The first step alone says too little, unless it rules out all that might follow.
            return self.hopeless or (len(self.seen) > 1 and self._no_time(block))
        disturbed = contended(block, self.kept)
        spared = self._is_spared(block)
        last = self._no_time(block) or (not spared and self._long_enough(block))
        repeat = disturbed and self._repeats < MEASUREMENT.most_repeats and not last
        self._repeats += repeat
        self.seen.append(ObservedBlock(block, kept=not (repeat or spared), contended=disturbed))
        if len(self.kept) < MEASUREMENT.fewest_blocks:
            self.hopeless = self._cannot_catch_up()
            return self.hopeless or last
        self.problem = self.uncounted
        if self.problem:
            return True
        now, limits = self.estimate(), replace(self._limits, sigma_run=self.sigma_run)
        total = limits.doubt(now.half_width)
        self.hopeless = now.rate * (1 + total) < MEASUREMENT.hopeless_trial * limits.incumbent_low
        exact = now.half_width <= limits.target_half_width and self._several
        return self.hopeless or exact or last

    @property
    def _several(self) -> bool:
        """True if enough has come for an interval: blocks, or steps that were timed one by one."""
        if self.lacks_steps() or math.isinf(self._limits.fewest):
            return False
        return (
            len(self.kept) >= self._limits.fewest
            or (self.steps or 0.0) >= MEASUREMENT.steps_for_proof
        )

    def lacks_steps(self, *latest: BlockReport) -> bool:
        """Return whether too few steps have been timed one by one for a run that is to prove something.

        Such a run may miss a wave of slow steps, and take its interval for narrow.

        Args:
            latest: blocks that count beside those kept so far.
        """
        if self._limits.measure.of_energy:
            return False
        told = [block.observed.get("step_moments") for block in (*self.kept, *latest)]
        few = math.fsum(each[0] for each in told if each) < MEASUREMENT.steps_for_proof
        return self._limits.proves and few and all(told)

    @property
    def steps(self) -> float | None:
        """Number of steps that count; None where they were not timed one by one."""
        series = self._series
        return None if series is None else series.count

    def passes_over(self, block: BlockReport) -> bool:
        """Return whether nothing of a block counts, its time neither, as a node was suspended in it.

        The first block is not timed, and tells what others do not.
        """
        return bool(self.seen) and "stood_still" in block.observed

    def take(self, block: BlockReport) -> bool:
        """Take in a block after the warm-up, whose end an outer schedule decides.

        Returns:
            True if it counts: it does even if other processes disturbed it.
        """
        self.problem = self.problem or unusable(block)
        if self.problem:
            return False
        kept = not self._is_spared(block)
        self.seen.append(ObservedBlock(block, kept, contended=contended(block, self.kept)))
        if len(self.kept) >= MEASUREMENT.fewest_blocks:
            self.problem = self.uncounted
        return kept

    def _is_spared(self, block: BlockReport) -> bool:
        """Return whether a block compiled and does not count, as those of a long job do not compile."""
        return _among(self._spared(block), block)

    def _spared(self, *latest: BlockReport) -> list[BlockReport]:
        """Return the first blocks that compiled; with changing shapes compilation may never end."""
        blocks = [*(seen.block for seen in self.seen), *latest]
        return [b for b in blocks if seconds_of_compilation(b)][: MEASUREMENT.most_compiling]

    def close(self) -> None:
        """End the measurement.

        If no block of the trial counts, as it ended within its warm-up, its last full one does. Its
        first does if there is no other, and one that compiled if there is none without; neither does
        if the run is to prove something.
        """
        if self.kept or not self.seen:
            return
        whole = range(len(self.seen))
        later = [place for place in whole if self.seen[place].block.index > 0]
        warm = [place for place in later if not self._is_spared(self.seen[place].block)]
        found = warm if self._limits.proves else warm or later or list(whole)
        if found:
            last = self._last_full(found)
            disturbed = contended(self.seen[last].block, ())
            self.seen[last] = replace(self.seen[last], kept=True, contended=disturbed)

    def _last_full(self, places: Sequence[int]) -> int:
        """Return the last of some places whose block does as much in a step as most.

        The last batch of an epoch may be short, and takes as long as a full one where a step waits.
        """
        usual = statistics.median_high(self._work_of_step(self.seen[place]) for place in places)
        return max(place for place in places if self._work_of_step(self.seen[place]) >= usual)

    def _cannot_catch_up(self) -> bool:
        """Return whether even the fastest steps that may follow this beginning are too slow."""
        if not self._limits.incumbent_low:
            return False
        measure = self._limits.measure
        if measure.of_energy:
            return False  # the bound is one on times
        fastest = self._limits.settling.fastest_step([seen.block for seen in self.seen])
        if not fastest:
            return False
        ceiling = max(map(self._work_of_step, self.seen)) / fastest
        doubt = self._limits.doubt(0.0)
        return ceiling * (1 + doubt) < MEASUREMENT.hopeless_trial * self._limits.incumbent_low

    def _work_of_step(self, seen: ObservedBlock) -> float:
        return self._limits.measure.work(seen.block) / seen.block.steps

    def _no_time(self, block: BlockReport) -> bool:
        """Return whether another block like the latest would exceed the time of the trial."""
        limit = self._limits.time_limit
        blocks = [*(s.block for s in self.seen if s.block is not block), block]
        taken = limit.charged(
            sum(each.taken_seconds for each in blocks), sum(map(seconds_of_compilation, blocks))
        )
        following = limit.charged(block.taken_seconds, seconds_of_compilation(block))
        return taken + following > limit.soft

    def _long_enough(self, block: BlockReport) -> bool:
        """Return whether another block would exceed the time after the warm-up."""
        if self.lacks_steps(block):
            return False
        timed = [s.block.seconds for s in self.seen if s.kept or s.contended]
        return sum(timed) + 2 * block.seconds > MEASUREMENT.overrun_of_block * self._limits.longest

    def estimate(self) -> Estimate:
        """Return the estimate of the blocks that count; at least one must have come."""
        return self._limits.measure.estimate(self.kept)

    @property
    def sigma_run(self) -> float:
        """Relative standard deviation between runs of this configuration.

        It is told by its own steps where they were timed one by one, else by the limits.
        """
        own = self.process_sigma
        return self._limits.sigma_run if own is None else own

    @property
    def process_sigma(self) -> float | None:
        """Relative standard deviation between processes by its own steps; None if they do not tell."""
        series = self._series
        return None if series is None else series.process_sigma()

    @property
    def _series(self) -> StepSeries | None:
        return self._limits.measure.series(self.kept)

    @property
    def uncounted(self) -> str:
        """Reason why the blocks that count have no rate; empty if they have one."""
        power = self._limits.power
        return self._limits.measure.lacks(self.kept) or (power.lacks(self.kept) if power else "")

    @property
    def excess_power(self) -> str:
        """Excess of the blocks that count over the power limit, in words; empty if they keep it."""
        power = self._limits.power
        return power.excess(self.kept) if power else ""

    def _eats_reserve(self) -> bool:
        """Return whether steps live on batches that a loader's workers had prepared before them.

        While something is compiled they fill their queue. Until it is empty, steps seem faster than the
        loader is, and it falls from block to block. After the first block it may be fuller than ever
        after, as all workers were at rest.
        """
        latest = [seen.block.observed.get("ready_batches") for seen in self.seen[1:]]
        latest = latest[-MEASUREMENT.drift_blocks :]
        ready = np.array([statistics.fmean(each) for each in latest if each])
        if not MEASUREMENT.steady_blocks <= len(ready) == len(latest):
            return False
        fall = -theil_sen(ready) * (len(ready) - 1)
        return bool(ready[-1] >= 1 and fall >= MEASUREMENT.eaten_batches)

    @property
    def warming_up(self) -> bool:
        """True if the next block will not count yet."""
        if self._limits.proves and not self.seen:
            return True
        if self.steady or any(seen.kept or seen.contended for seen in self.seen):
            return False
        spared = self._spared()
        charged = [s.block for s in self.seen if not _among(spared, s.block)]
        alone = [s.block for s in self.seen[self._eaten :] if not _among(spared, s.block)]
        if sum(block.index > 0 for block in alone) >= self._limits.warm_blocks:
            return False
        longest = self._limits.warmup
        if any(b.seconds > self._limits.long_step * b.steps for b in charged):
            longest = min(longest, self._limits.longest)
        limit, compiled = self._limits.time_limit, sum(block.seconds for block in spared)
        longest = min(
            longest, MEASUREMENT.warm_up_share * (limit.soft - limit.charged(compiled, compiled))
        )
        return sum(block.seconds for block in charged) < longest

    def _steady(self) -> bool:
        # The first block is a single step, with everything that happens once.
        blocks = [seen.block for seen in self.seen[max(1, self._eaten) :]]
        last = blocks[-MEASUREMENT.steady_blocks :]
        settling = any(
            b.observed.get("compilations", 0) or b.observed.get("alloc_retries", 0) for b in last
        )
        warm = [b for b in blocks if not seconds_of_compilation(b)]
        done = self._limits.measure.work if self._limits.of_reports else _steps_of
        return not settling and steady([b.seconds / max(done(b), 1) for b in warm])


def _steps_of(block: BlockReport) -> int:
    return block.steps


def _among(blocks: Sequence[BlockReport], block: BlockReport) -> bool:
    """Return whether a block itself, not an equal one, is among others."""
    return any(each is block for each in blocks)


def seconds_of_compilation(block: BlockReport) -> float:
    """Return the seconds of a block in which something was compiled; 0 for any other."""
    return block.seconds if block.observed.get("compilations") else 0.0


def unusable(block: BlockReport) -> str:
    """Return why a block is impossible, by its loss or time; empty if it is possible."""
    if not math.isfinite(block.loss):
        return f"the loss is {block.loss} in block {block.index}"
    if not math.isfinite(block.seconds) or block.seconds < _FASTEST_STEP * block.steps:
        return f"block {block.index} reports {block.seconds} s for {block.steps} steps"
    return ""
