"""Run-to-run noise of a study: when the baseline runs again, and what its runs have shown."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from autotune.measurement.noise import PRIOR_SIGMA, RepeatedRun, RunNoise, run_noise
from autotune.measurement.step_series import estimate_of_run
from storage import Attempts, AttemptState, Purpose, StoredAttempt, StoredBlock

_AGAIN_AFTER = 8
"""Trials of the search between two runs of the baseline: they show drift."""
_FIRST_AFTER = 3
"""Trials of the search before the baseline runs again at all. The first ones lie so far apart that no
noise hides it; whoever waits for an answer, maybe for a build of minutes, has it sooner, and runs that
lie apart in time show a restless machine better."""


class Calibration:
    """Decides from the records alone, so that a study goes on where it stood."""

    def __init__(
        self,
        first_runs: int,
        prior_sigma: float | None,
        blocks: Callable[[int], Sequence[StoredBlock]],
    ) -> None:
        """Plan for a study.

        Args:
            first_runs: of the baseline early in the search, its own trial included; 1: it is never
                run again.
            prior_sigma: what an earlier study found in the same environment, if any did.
            blocks: of an attempt, by its id.
        """
        self._blocks = blocks
        self._first_runs = first_runs
        self._prior = PRIOR_SIGMA if prior_sigma is None else prior_sigma

    def due(
        self, attempts: Attempts, slots: Sequence[int | None], under_way: Sequence[int | None]
    ) -> list[int | None]:
        """Environments in which it is time to run the baseline: once in each, for their rates to be
        comparable, and again in that in which it has run most. A run that is lost is repeated once.

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
        wanted = self._first_runs + since // _AGAIN_AFTER if since >= _FIRST_AFTER else 1
        return [*found, most] if _measured(own) and 0 < runs[most] < wanted else found

    def noise(self, attempts: Attempts) -> RunNoise:
        """What the runs of the baseline have shown so far, in the environment in which it last ran
        again: how far machines lie apart is no noise between runs."""
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
        timed = estimate_of_run(kept, counts="samples") if kept else None
        freedom = timed.df if timed else math.inf
        half_width = result.block_half_width or 0.0
        return RepeatedRun(result.throughput or 0.0, half_width, attempt.started, freedom)


def _repeated(lost: Iterable[StoredAttempt]) -> Counter[int | None]:
    """How often more than once a run was lost in each environment: there it is not tried any more."""
    count = Counter(one.environment for one in lost)
    return Counter({environment: times - 1 for environment, times in count.items()})


def _measured(attempt: StoredAttempt) -> bool:
    result = attempt.result
    return result.state == AttemptState.COMPLETE and result.throughput is not None
