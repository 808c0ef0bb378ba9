"""Measurements so far, as a model of the time of a step uses them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from autotune.search.grid import Grid, Rows, Vector
from autotune.search.policy import SEARCH
from autotune.search.trial_attributes import half_width_of, standard_error_of, value_of

NORMAL_95 = 1.96
"""Half of a 95 % interval, in standard errors that are known."""


@dataclass(frozen=True)
class Observations:
    """Measurements as times per sample, in units of the fastest.

    Attributes:
        noise: standard deviation of each time.
        running: rows that are being measured.
        unit: the fastest time.
    """

    rows: Rows
    times: Vector
    noise: Vector
    running: Rows
    unit: float

    @classmethod
    def of(
        cls,
        trials: Sequence[FrozenTrial],
        grid: Grid,
        *,
        errors: Mapping[int, float] = {},
    ) -> "Observations":
        """Return the observations of a study's trials; of very many, the fastest and the newest.

        Args:
            errors: relative standard errors by number, for trials whose error is better known by
                now.
        """
        timed = [
            (1 / value, t)
            for t in trials
            if grid.covers(t.params) and (value := value_of(t)) is not None
        ]
        if len(timed) > SEARCH.most_observations:
            half = SEARCH.most_observations // 2
            older, newer = timed[:-half], timed[-half:]
            timed = sorted(older, key=lambda one: one[0])[:half] + newer
        running = [t for t in trials if t.state == TrialState.RUNNING and grid.covers(t.params)]
        times = np.array([time for time, _ in timed])
        unit = float(times.min()) if len(times) else 1.0
        noise = [_relative_noise(trial, errors.get(trial.number)) for _, trial in timed]
        return cls(
            rows=grid.rows_of([trial.params for _, trial in timed]),
            times=times / unit,
            noise=np.array(noise) * times / unit,
            running=grid.rows_of([trial.params for trial in running]),
            unit=unit,
        )


def _relative_noise(trial: FrozenTrial, known: float | None) -> float:
    told = standard_error_of(trial) if known is None else known
    half_width = half_width_of(trial)
    if told is not None and told > 0:
        noise = told
    elif half_width is not None:
        noise = half_width / NORMAL_95
    else:
        noise = SEARCH.unknown_noise
    return max(noise, SEARCH.pruned_noise) if trial.state == TrialState.PRUNED else noise
