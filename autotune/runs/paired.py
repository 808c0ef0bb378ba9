"""Trial of the search, interleaved with the baseline block by block.

Where the machine's speed wanders, trials that follow each other do not compare. A trial's ratio to
the baseline beside it cancels what the machine does meanwhile. The recorded rate is that ratio
times the rate of the baseline's own trial.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from autotune.measurement import cycles
from autotune.measurement.noise import noise_of_pairs, total_half_width
from autotune.measurement.policy import MEASUREMENT
from autotune.measurement.stop_rule import FEWEST_BLOCKS, HOPELESS, Limits
from autotune.runs.interleaved import InterleavedSchedule, MemberMonitor
from autotune.worker.protocol import BlockReport, TrialReport
from storage import AttemptResult, AttemptState

_TRIAL, _BASELINE = 0, 1


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
        return dataclasses.replace(
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

    It ends as soon as either has failed, or the trial cannot catch up with the best any more.
    """

    least_cycles = MEASUREMENT.least_cycles_of_pair
    fewest_cycles = FEWEST_BLOCKS

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
        self._race = dataclasses.replace(trial, sigma_run=noise_of_pairs(trial.sigma_run))
        self.baseline_rate = baseline_rate
        # During its warm-up the machine may be far slower than when the best was measured.
        hopeless = trial.incumbent_low / MEASUREMENT.machine_slower
        racing = dataclasses.replace(trial, incumbent_low=hopeless)
        super().__init__([racing, baseline], at_once=at_once)

    @property
    def sigma(self) -> float:
        """Relative standard deviation between such pairs."""
        return self._race.sigma_run

    @property
    def without_baseline(self) -> bool:
        """True if the baseline has failed, or its processes are gone."""
        return _BASELINE in self._away

    def next(self) -> int | None:
        return None if self._away else super().next()

    def trained(self, member: int, block: BlockReport) -> None:
        super().trained(member, block)
        if not self._away and self._cannot_catch_up():
            self.stop_rule(_TRIAL).hopeless = True
            self.lost(_TRIAL)

    def ratio(self) -> PairedRatio | None:
        """Return the trial's ratio to the baseline; None as long as there are too few cycles."""
        return ratio_to_baseline(*self._taken([_TRIAL, _BASELINE]))

    def rate(self, member: int) -> float | None:
        """Return the trial's rate by its ratio to the baseline; None for the baseline."""
        known = self.ratio()
        return known.ratio * self.baseline_rate if known and member == _TRIAL else None

    def _longest(self, cycles: int) -> float:
        """Return the seconds that each may train: together as long as a trial by itself.

        Pairs of processes differ by more than their cycles do, and another trial tells more than a
        longer one.
        """
        whole = super()._longest(cycles)
        return whole if cycles < MEASUREMENT.few_cycles else whole / 2

    def _monitor(self, number: int, limits: Limits) -> MemberMonitor:
        kind = _PairedTrialMonitor if number == _TRIAL else _PairedBaselineMonitor
        return kind(self, number, limits)

    def _cannot_catch_up(self) -> bool:
        known = self.ratio()
        if known is None or not self._race.incumbent_low:
            return False
        most = known.ratio * self.baseline_rate * (1 + self._race.doubt(known.half_width))
        return most < HOPELESS * self._race.incumbent_low


class _PairedTrialMonitor(MemberMonitor):
    """Monitor of the trial: its result follows from its ratio to the baseline, once that is known."""

    def __init__(self, group: PairedSchedule, number: int, limits: Limits) -> None:
        super().__init__(group, number, limits)
        self._pair = group

    def result(self, report: TrialReport) -> AttemptResult:
        result, known = super().result(report), self._pair.ratio()
        timed = result.state in (AttemptState.COMPLETE, AttemptState.PRUNED)
        if known is None and timed and self._pair.without_baseline:
            cause = "the baseline beside it failed (it is measured again alone)"
            return dataclasses.replace(result, state=AttemptState.LOST, cause=cause)
        if known is None or not timed:
            return result
        rate = self._rule.estimate().rate  # of its own blocks
        own = dataclasses.replace(result, sigma_run=self._pair.sigma, throughput=rate)
        return known.applied(own, self._pair.baseline_rate)


class _PairedBaselineMonitor(MemberMonitor):
    """Monitor of the baseline beside the trial."""

    def result(self, report: TrialReport) -> AttemptResult:
        result = super().result(report)
        if result.state is AttemptState.LOST and report.outcome is not None:
            cause = f"beside a trial: {report.cause}"
            return dataclasses.replace(result, cause=cause)
        if report.blocks or result.state is not AttemptState.ERROR:
            return result
        cause = "its trial was over before it had a turn"
        return dataclasses.replace(result, state=AttemptState.PRUNED, cause=cause)
