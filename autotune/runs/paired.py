"""A trial of the search that takes turns with the baseline, block by block.

Where the machine's speed wanders, trials that follow each other do not compare: what the machine does
meanwhile falls out of a trial's ratio to the baseline beside it, and what is recorded as its rate is
that ratio at the pace of the baseline's own trial.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autotune.measurement import cycles
from autotune.measurement.estimate import half_width_of
from autotune.measurement.noise import PRIOR_SIGMA, total_half_width
from autotune.measurement.stop_rule import FEWEST_BLOCKS, HOPELESS, Limits
from autotune.runs.interleaved import InterleavedSchedule, MemberMonitor
from autotune.worker.protocol import BlockReport, TrialReport
from storage import AttemptResult, AttemptState

_TRIAL, _BASELINE = 0, 1
_PAIRING_GAIN = 2.0
"""How many times closer together pairs in turn lie than runs, beyond what their cycles show: two to six
times on two shared cores, by the seconds."""
_FEW_CYCLES = 4
"""Or nothing is known of how far the two differ."""
_SLOWER = 2.0
"""How many times slower than when the best was seen the machine may be, for all that is known."""


class PairedRatio(NamedTuple):
    """How a trial compares with the baseline beside it.

    Attributes:
        ratio: how many times as fast it is.
        half_width: relative, of the 95 % interval that the cycles give.
        df: degrees of it, of Student's t in that interval.
    """

    ratio: float
    half_width: float
    df: float

    def applied(self, result: AttemptResult, baseline_rate: float) -> AttemptResult:
        """What a trial with this noise between runs comes to, where the baseline runs at this rate."""
        return dataclasses.replace(
            result,
            throughput=self.ratio * baseline_rate,
            half_width=total_half_width(self.half_width, result.sigma_run or 0.0),
            block_half_width=self.half_width,
            block_freedom=self.df,
        )


def ratio_to_baseline(
    trial: Sequence[cycles.TurnBlock], baseline: Sequence[cycles.TurnBlock]
) -> PairedRatio | None:
    """Return the pace of a trial by the blocks of both that count; None if there are fewer than two
    cycles.
    """
    found = cycles.complete_cycles([trial, baseline])
    if len(found) < 2:
        return None
    differences = found[:, 0] - found[:, 1]
    half_width = half_width_of(float(np.std(differences, ddof=1)), len(found))
    return PairedRatio(math.exp(cycles.hodges_lehmann(differences)), half_width, len(found) - 1.0)


class PairedSchedule(InterleavedSchedule):
    """Says whose turn it is: the trial, or the baseline beside it. Over as soon as either is gone, or
    the trial cannot catch up with the best any more."""

    least_cycles = 2
    fewest_cycles = FEWEST_BLOCKS

    def __init__(self, trial: Limits, baseline: Limits, baseline_rate: float) -> None:
        """Before anything is launched.

        Args:
            trial: limits of the trial, in which it races.
            baseline: those of the baseline.
            baseline_rate: of the baseline's own trial, units per second.
        """
        known = trial.sigma_run
        sigma = max(known / _PAIRING_GAIN, min(known, PRIOR_SIGMA))
        self._race = dataclasses.replace(trial, sigma_run=sigma)
        self.baseline_rate = baseline_rate
        # While it warms up by itself, the machine may be far slower than when the best was seen.
        hopeless = trial.incumbent_low / _SLOWER
        super().__init__([dataclasses.replace(trial, incumbent_low=hopeless), baseline])

    @property
    def sigma(self) -> float:
        """Relative standard deviation between such pairs."""
        return self._race.sigma_run

    @property
    def without_baseline(self) -> bool:
        """The baseline has failed, or its processes are gone."""
        return _BASELINE in self._away

    def next(self) -> int | None:
        return None if self._away else super().next()

    def trained(self, member: int, block: BlockReport) -> None:
        super().trained(member, block)
        if not self._away and self._cannot_catch_up():
            self.watch(_TRIAL).lost = True
            self.lost(_TRIAL)

    def ratio(self) -> PairedRatio | None:
        """Of the trial to the baseline; None as long as there are too few cycles."""
        return ratio_to_baseline(*self._taken([_TRIAL, _BASELINE]))

    def rate(self, member: int) -> float | None:
        """Of the trial, at the pace of the baseline's own; of the baseline, as it was here."""
        known = self.ratio()
        return known.ratio * self.baseline_rate if known and member == _TRIAL else None

    def _longest(self, cycles: int) -> float:
        """Both share the time of a trial by itself: pairs of processes differ by more than their cycles
        do, and another trial tells more than a longer one."""
        whole = super()._longest(cycles)
        return whole if cycles < _FEW_CYCLES else whole / 2

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
    """The trial, as it is judged: by its ratio to the baseline, as far as that is known."""

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
        own = dataclasses.replace(result, sigma_run=self._pair.sigma)
        return known.applied(own, self._pair.baseline_rate)


class _PairedBaselineMonitor(MemberMonitor):
    """The baseline beside it, as it is judged."""

    def result(self, report: TrialReport) -> AttemptResult:
        result = super().result(report)
        if result.state is AttemptState.LOST and report.outcome is not None:
            cause = f"beside a trial: {report.cause}"
            return dataclasses.replace(result, cause=cause)
        if report.blocks or result.state is not AttemptState.ERROR:
            return result
        cause = "its trial was over before it had a turn"
        return dataclasses.replace(result, state=AttemptState.PRUNED, cause=cause)
