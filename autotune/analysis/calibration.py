"""Run-to-run noise of a study: when the baseline runs again, and what its runs have shown."""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.measurement.noise import PRIOR_SIGMA, Noise, Run, run_noise
from storage import Purpose, StoredAttempt

_AGAIN_AFTER = 8
"""Trials of the search between two runs of the baseline: they show drift."""


class Calibration:
    """Decides from the records alone, so that a study goes on where it stood."""

    def __init__(
        self, baseline: Mapping[str, Any], first_runs: int, prior_sigma: float | None
    ) -> None:
        """Plan for a baseline.

        Args:
            baseline: a value for every knob.
            first_runs: of the baseline before the search goes on, its own trial included; 1: it is
                never run again.
            prior_sigma: what an earlier study found in the same environment, if any did.
        """
        self._baseline = baseline
        self._first_runs = first_runs
        self._prior = PRIOR_SIGMA if prior_sigma is None else prior_sigma

    def due(self, attempts: Sequence[StoredAttempt]) -> StoredAttempt | None:
        """The baseline's own attempt, if it is time to run it once more."""
        own = self._own(attempts)
        if own is None or self._first_runs < 2:
            return None
        again = [
            a for a in attempts if a.purpose == Purpose.CALIBRATE and (a.running or a.recorded)
        ]
        searched = sum(a.purpose == Purpose.SEARCH and a.recorded for a in attempts)
        wanted = self._first_runs - 1 + searched // _AGAIN_AFTER
        return own if len(again) < wanted else None

    def noise(self, attempts: Sequence[StoredAttempt]) -> Noise:
        """What the runs of the baseline have shown so far."""
        own = self._own(attempts)
        again = [a for a in attempts if a.purpose == Purpose.CALIBRATE]
        return run_noise([_run(a) for a in [own, *again] if a and _measured(a)], self._prior)

    def _own(self, attempts: Sequence[StoredAttempt]) -> StoredAttempt | None:
        return next(
            (
                a
                for a in attempts
                if a.purpose == Purpose.SEARCH and a.knobs == self._baseline and _measured(a)
            ),
            None,
        )


def _measured(attempt: StoredAttempt) -> bool:
    return attempt.result.state == "COMPLETE" and attempt.result.throughput is not None


def _run(attempt: StoredAttempt) -> Run:
    result = attempt.result
    return Run(result.throughput or 0.0, result.block_half_width or 0.0, attempt.started)
