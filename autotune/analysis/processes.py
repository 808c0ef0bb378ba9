"""Spread between processes of each configuration, by the runs of a study. Pure.

It is known only where steps are timed one by one, which is on CUDA devices.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from autotune.measurement.contrasts import Arm, Variance
from autotune.measurement.noise import standard_error
from autotune.measurement.policy import MEASUREMENT
from autotune.measurement.step_series import StepSeries
from storage import Attempts, Purpose, StoredAttempt, StoredBlock

Blocks = Callable[[int], Sequence[StoredBlock]]
"""Attempt id -> its blocks."""

_TIMED = (Purpose.SEARCH, Purpose.CONFIRM, Purpose.REPEAT)
UNSTEADY = MEASUREMENT.unsteady


@dataclass(frozen=True)
class Processes:
    """Spread between the processes of configurations.

    Attributes:
        baseline_runs: rates of the baseline in processes of its own, outside the rounds.
        sigma: trial -> standard deviation of the log rate between processes, by its steps.
        within: trial -> variance of the log rate that the steps of a run leave.
    """

    baseline_runs: tuple[float, ...] = ()
    sigma: dict[int, float] = field(default_factory=dict)
    within: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, attempts: Attempts, blocks: Blocks, trials: Iterable[int]) -> Self | None:
        """Return the spread that the records of these trials show.

        None: the steps of the baseline were not timed one by one.
        """
        own = attempts.baseline()
        if own is None or own.result.throughput is None or not _told([own], blocks):
            return None
        wanted = {own.trial, *trials}
        runs = attempts.of(*_TIMED).measured()
        told = {trial: _told(runs.of_trial(trial), blocks) for trial in wanted}
        # A single slow step makes a short run look like one that waits: half of the runs must.
        sigma = {trial: statistics.median_low(each) for trial, each in told.items() if each}
        again = attempts.of(Purpose.CALIBRATE, Purpose.REPEAT).complete().measured()
        alike = [
            one.result.throughput
            for one in (own, *again)
            if one.result.throughput is not None
            and one.environment == own.environment
            and one.result.resident_of is None
        ]
        return cls(tuple(alike), sigma, {trial: _within(attempts, trial) for trial in wanted})

    def unsteady(self, trial: int) -> bool:
        """Return whether the processes of a trial's configuration lie far apart."""
        return self.sigma.get(trial, MEASUREMENT.computing_processes) > UNSTEADY

    def arm(self, trial: int, rates: Sequence[float]) -> Arm:
        """Return the runs of a trial's configuration, with what its steps let expect of them."""
        sigma = self.sigma.get(trial, MEASUREMENT.computing_processes)
        return Arm(
            rates, Variance(sigma**2 + self.within.get(trial, 0.0), MEASUREMENT.processes_df)
        )


def _within(attempts: Attempts, trial: int) -> float:
    """Return the mean variance of the log rate that the steps of a trial's runs leave.

    Each run counts for its degrees of freedom.
    """
    runs = attempts.of(*_TIMED).of_trial(trial).complete()
    known = [
        (
            one.result.block_freedom,
            standard_error(one.result.block_half_width, one.result.block_freedom),
        )
        for one in runs
        if one.result.block_half_width is not None and one.result.block_freedom is not None
    ]
    whole = math.fsum(df for df, _ in known)
    return math.fsum(df * error**2 for df, error in known) / whole if whole else 0.0


def _told(runs: Iterable[StoredAttempt], blocks: Blocks) -> list[float]:
    """Return what the steps of each run tell of the spread between processes."""
    several = (StepSeries.of([block for block in blocks(run.id) if block.kept]) for run in runs)
    return [series.process_sigma() for series in several if series is not None]
