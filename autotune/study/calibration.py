"""Repeated runs of the baseline in the search: when they are due, and what noise they show."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from autotune.measurement.measure import SAMPLES_PER_SECOND, Measure
from autotune.measurement.noise import RepeatedRun, RunNoise, run_noise
from autotune.measurement.policy import MEASUREMENT
from autotune.study.policy import STUDY
from storage import Attempts, AttemptState, Blocks, Purpose, StoredAttempt


class Calibration:
    """Plan of the baseline's repeated runs, made from the records alone, so that a study can go on."""

    def __init__(
        self,
        first_runs: int,
        prior_sigma: float | None,
        blocks: Blocks,
        measure: Measure = SAMPLES_PER_SECOND,
    ) -> None:
        """Plan for a study.

        Args:
            first_runs: runs of the baseline early in the search, its own trial included; 1: it is never
                run again.
            prior_sigma: noise that an earlier study found in this environment; None: none did.
            blocks: returns the blocks of an attempt by its id.
            measure: what the study compares configurations by.
        """
        self._blocks = blocks
        self._measure = measure
        self._first_runs = first_runs
        self._prior = MEASUREMENT.prior_sigma if prior_sigma is None else prior_sigma

    def due(
        self, attempts: Attempts, slots: Sequence[int | None], under_way: Sequence[int | None]
    ) -> list[int | None]:
        """Return the environments in which it is time to run the baseline.

        It runs once in each, for their rates to be comparable, and again in the one in which it has run
        most. A run that is lost is repeated once.

        Args:
            slots: environments of all slots.
            under_way: environments of those on which the baseline runs.
        """
        own = attempts.of(Purpose.SEARCH).of_baseline().last
        if own is None or self._first_runs < 2 or not (own.running or _measured(own)):
            return []
        again = [own, *attempts.of(Purpose.CALIBRATE)]
        runs = Counter([*(one.environment for one in again if one.recorded), *under_way])
        runs.update(_repeated([one for one in again if one.result.state == AttemptState.LOST]))
        found = [environment for environment in dict.fromkeys(slots) if not runs[environment]]
        most = max(slots, key=lambda environment: runs[environment], default=None)
        first = min((one.id for one in again if one.environment == most), default=0)
        since = sum(trial.id > first for trial in attempts.searched())
        wanted = (
            self._first_runs + since // STUDY.baseline_again_after
            if since >= STUDY.baseline_first_after
            else 1
        )
        return [*found, most] if _measured(own) and 0 < runs[most] < wanted else found

    def noise(self, attempts: Attempts) -> RunNoise:
        """Return the noise that the baseline shows in the environment where it last ran again.

        Differences between machines are no noise between runs.
        """
        own = attempts.baseline()
        runs = [a for a in [own, *attempts.of(Purpose.CALIBRATE)] if a and _measured(a)]
        count = Counter(a.environment for a in runs)
        newest_first = [a.environment for a in reversed(runs)]
        again = [environment for environment in newest_first if count[environment] > 1]
        here = (again or newest_first)[:1]
        return run_noise([self._run(a) for a in runs if a.environment in here], self._prior)

    def _run(self, attempt: StoredAttempt) -> RepeatedRun:
        result = attempt.result
        kept = [block for block in self._blocks(attempt.id) if block.kept]
        freedom = result.block_freedom
        if freedom is None:
            freedom = self._measure.estimate(kept).df if kept else math.inf
        half_width = result.block_half_width or 0.0
        return RepeatedRun(result.throughput or 0.0, half_width, attempt.started, freedom)


def _repeated(lost: Iterable[StoredAttempt]) -> Counter[int | None]:
    """Return how often more than once a run was lost in each environment; a second loss is final."""
    count = Counter(one.environment for one in lost)
    return Counter({environment: times - 1 for environment, times in count.items()})


def _measured(attempt: StoredAttempt) -> bool:
    result = attempt.result
    return result.state == AttemptState.COMPLETE and result.throughput is not None
