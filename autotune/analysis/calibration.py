"""Run-to-run noise of a study: when the baseline runs again, and what its runs have shown."""

import math
from collections.abc import Callable, Sequence

from autotune.measurement.estimate import estimate
from autotune.measurement.noise import PRIOR_SIGMA, Noise, Run, run_noise
from storage import Attempts, AttemptState, Purpose, StoredAttempt, StoredBlock

_AGAIN_AFTER = 8
"""Trials of the search between two runs of the baseline: they show drift."""


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
            first_runs: of the baseline before the search goes on, its own trial included; 1: it is
                never run again.
            prior_sigma: what an earlier study found in the same environment, if any did.
            blocks: of an attempt, by its id.
        """
        self._blocks = blocks
        self._first_runs = first_runs
        self._prior = PRIOR_SIGMA if prior_sigma is None else prior_sigma

    def due(self, attempts: Attempts) -> StoredAttempt | None:
        """The baseline's own attempt, if it is time to run it once more."""
        own = attempts.baseline()
        if own is None or self._first_runs < 2:
            return None
        again = sum(a.running or a.recorded for a in attempts.of(Purpose.CALIBRATE))
        wanted = self._first_runs - 1 + len(attempts.searched()) // _AGAIN_AFTER
        return own if again < wanted else None

    def noise(self, attempts: Attempts) -> Noise:
        """What the runs of the baseline have shown so far, in the environment of the last of them: how
        far machines lie apart is no noise between runs."""
        own = attempts.baseline()
        runs = [a for a in [own, *attempts.of(Purpose.CALIBRATE)] if a and _measured(a)]
        here = [self._run(a) for a in runs if a.environment == runs[-1].environment]
        return run_noise(here, self._prior)

    def _run(self, attempt: StoredAttempt) -> Run:
        result = attempt.result
        kept = [block for block in self._blocks(attempt.id) if block.kept]
        timed = estimate([b.samples for b in kept], [b.seconds for b in kept]) if kept else None
        freedom = timed.freedom if timed else math.inf
        half_width = result.block_half_width or 0.0
        return Run(result.throughput or 0.0, half_width, attempt.started, freedom)


def _measured(attempt: StoredAttempt) -> bool:
    result = attempt.result
    return result.state == AttemptState.COMPLETE and result.throughput is not None
