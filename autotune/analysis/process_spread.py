"""Spread between processes of each configuration, and of the steps within them. Pure.

It is known only where steps are timed one by one, which is on CUDA devices.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from autotune.analysis.policy import ANALYSIS
from autotune.measurement.contrasts import NO_VARIANCE, Arm, Variance
from autotune.measurement.policy import MEASUREMENT
from autotune.measurement.step_series import StepSeries, process_sigma, variance_of_mean_step
from storage import Attempts, Blocks, Purpose, StoredAttempt

_TIMED = (Purpose.SEARCH, Purpose.CONFIRM, Purpose.REPEAT)


@dataclass(frozen=True)
class ProcessSpread:
    """Spread between the processes of configurations, and the scatter of the steps of their runs.

    Attributes:
        earlier: rates of the baseline in the search, under conditions that need not be those of the
            rounds: they tell how far its processes lie apart, and nothing of its mean.
        sigma: trial -> standard deviation of the log rate between processes, by its steps.
        within: trial -> mean variance of the log rate that the steps of a run leave.
        repeats: rates of the baseline in further processes, between rounds that count.
    """

    earlier: tuple[float, ...] = ()
    sigma: dict[int, float] = field(default_factory=dict)
    within: dict[int, Variance] = field(default_factory=dict)
    repeats: tuple[float, ...] = ()

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
        counting = _counting(attempts)
        return cls(
            _rates(_earlier(attempts, own)),
            {trial: process_sigma(list(each.values())) for trial, each in told.items()},
            {trial: _within(each, counting) for trial, each in told.items()},
            _rates(one for one in counting if one.purpose is Purpose.REPEAT),
        )

    def unsteady(self, trial: int) -> bool:
        """Return whether the processes of a trial's configuration lie far apart."""
        return self.sigma.get(trial, MEASUREMENT.computing_processes) > ANALYSIS.unsteady_spread

    def arm(self, trial: int, rates: Sequence[float], baseline: int | None) -> Arm:
        """Return the runs of a trial's configuration, with what its steps let expect of them.

        Args:
            rates: rates of its runs in the rounds.
            baseline: trial of the baseline, whose runs outside the rounds tell something as well.
        """
        repeats, earlier = (self.repeats, self.earlier) if trial == baseline else ((), ())
        sigma = self.sigma.get(trial, MEASUREMENT.computing_processes)
        between = Variance(sigma**2, ANALYSIS.processes_df)
        return Arm([*rates, *repeats], between, self.within.get(trial, NO_VARIANCE), earlier)


Told = Mapping[int, StepSeries]
"""Attempt id -> steps of a run."""


def _told(runs: Iterable[StoredAttempt], blocks: Blocks) -> Told:
    """Return the steps of each run whose steps were timed one by one."""
    several = {
        run.id: StepSeries.of([block for block in blocks(run.id) if block.kept]) for run in runs
    }
    return {number: series for number, series in several.items() if series is not None}


def _earlier(attempts: Attempts, own: StoredAttempt) -> list[StoredAttempt]:
    """Return the baseline's own trial and its further runs in the search, of the same environment.

    Disturbed and unsteady runs are left out where there are others.
    """
    alike = [
        one
        for one in (own, *attempts.of(Purpose.CALIBRATE).complete().measured())
        if one.environment == own.environment and one.result.resident_of is None
    ]
    calm = [one for one in alike if one.result.steady and not one.result.contended]
    return calm or alike


def _counting(attempts: Attempts) -> list[StoredAttempt]:
    """Return the runs of rounds and between them since the search, where the last round ran.

    Other runs were made under other conditions, so that their means do not compare.
    """
    search, last = attempts.of(Purpose.SEARCH).last, attempts.of(Purpose.CONFIRM).recorded().last
    if search is None or last is None:
        return []
    runs = attempts.of(Purpose.CONFIRM, Purpose.REPEAT).recorded().measured()
    return [one for one in runs if one.id > search.id and one.environment == last.environment]


def repeats_made(attempts: Attempts) -> int:
    """Return how often the baseline has run again between rounds that count, whatever came of it."""
    search, last = attempts.of(Purpose.SEARCH).last, attempts.of(Purpose.CONFIRM).recorded().last
    if search is None or last is None:
        return 0
    since = [one for one in attempts.of(Purpose.REPEAT) if one.id > search.id]
    return sum(one.id > last.id or one.environment in (None, last.environment) for one in since)


def _rates(runs: Iterable[StoredAttempt]) -> tuple[float, ...]:
    rates = (one.result.throughput for one in runs)
    return tuple(rate for rate in rates if rate is not None)


def _within(told: Told, counting: Iterable[StoredAttempt]) -> Variance:
    """Return the mean variance of the log rate that the steps of a run leave.

    Args:
        told: steps of every run of the trial.
        counting: runs, of any trial, whose rates count for the result.
    """
    counts = [told[run.id].count for run in counting if run.id in told]
    every = list(told.values())
    return variance_of_mean_step(every, counts or [series.count for series in every])
