"""Spread between processes of each configuration, and of the steps within them. Pure.

It is known only where steps are timed one by one, which is on CUDA devices.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from autotune.measurement.contrasts import NO_VARIANCE, Arm, Variance
from autotune.measurement.policy import MEASUREMENT
from autotune.measurement.step_series import StepSeries, process_sigma, variance_of_mean_step
from storage import Attempts, Purpose, StoredAttempt, StoredBlock

Blocks = Callable[[int], Sequence[StoredBlock]]
"""Attempt id -> its blocks."""

_TIMED = (Purpose.SEARCH, Purpose.CONFIRM, Purpose.REPEAT)
UNSTEADY = MEASUREMENT.unsteady


@dataclass(frozen=True)
class Processes:
    """Spread between the processes of configurations, and the scatter of the steps of their runs.

    Attributes:
        baseline_runs: rates of the baseline in processes of its own, outside the rounds.
        sigma: trial -> standard deviation of the log rate between processes, by its steps.
        within: trial -> mean variance of the log rate that the steps of a run leave.
    """

    baseline_runs: tuple[float, ...] = ()
    sigma: dict[int, float] = field(default_factory=dict)
    within: dict[int, Variance] = field(default_factory=dict)

    @classmethod
    def of(cls, attempts: Attempts, blocks: Blocks, trials: Iterable[int]) -> Self | None:
        """Return the spread that the records of these trials show.

        None: the steps of the baseline were not timed one by one.
        """
        own = attempts.baseline()
        if own is None or own.result.throughput is None or not _told([own], blocks):
            return None
        runs = attempts.of(*_TIMED).measured()
        told = {trial: _told(runs.of_trial(trial), blocks) for trial in {own.trial, *trials}}
        told = {trial: each for trial, each in told.items() if each}
        again = attempts.of(Purpose.CALIBRATE, Purpose.REPEAT).complete().measured()
        alike = [
            one
            for one in (own, *again)
            if one.environment == own.environment and one.result.resident_of is None
        ]
        rates = (one.result.throughput for one in alike)
        return cls(
            tuple(rate for rate in rates if rate is not None),
            {trial: process_sigma(list(each.values())) for trial, each in told.items()},
            {
                trial: _within(each, _counting(each, runs, alike, trial))
                for trial, each in told.items()
            },
        )

    def unsteady(self, trial: int) -> bool:
        """Return whether the processes of a trial's configuration lie far apart."""
        return self.sigma.get(trial, MEASUREMENT.computing_processes) > UNSTEADY

    def arm(self, trial: int, rates: Sequence[float], baseline: int | None) -> Arm:
        """Return the runs of a trial's configuration, with what its steps let expect of them.

        Args:
            trial: number of the trial.
            rates: rates of its runs in the rounds.
            baseline: trial of the baseline, whose runs outside the rounds count as well.
        """
        alone = self.baseline_runs if trial == baseline else ()
        sigma = self.sigma.get(trial, MEASUREMENT.computing_processes)
        between = Variance(sigma**2, MEASUREMENT.processes_df)
        return Arm([*rates, *alone], between, self.within.get(trial, NO_VARIANCE))


Told = Mapping[int, StepSeries]
"""Attempt id -> steps of a run."""


def _told(runs: Iterable[StoredAttempt], blocks: Blocks) -> Told:
    """Return the steps of each run whose steps were timed one by one."""
    several = {
        run.id: StepSeries.of([block for block in blocks(run.id) if block.kept]) for run in runs
    }
    return {number: series for number, series in several.items() if series is not None}


def _counting(
    told: Told, runs: Attempts, alike: Iterable[StoredAttempt], trial: int
) -> list[StepSeries]:
    """Return the steps of those runs of a trial whose rates count for the result."""
    rounds = runs.of(Purpose.CONFIRM).of_trial(trial)
    several = [told[run.id] for run in (*rounds, *alike) if run.id in told]
    return several or list(told.values())


def _within(told: Told, counting: Sequence[StepSeries]) -> Variance:
    """Return the mean variance of the log rate that the steps of a run leave."""
    return variance_of_mean_step(list(told.values()), [series.count for series in counting])
