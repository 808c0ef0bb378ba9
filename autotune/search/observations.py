"""Measurements so far, as a model of the time of a step uses them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from autotune.search.grid import Grid, Rows, Vector
from autotune.search.policy import SEARCH

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


def value_of(trial: FrozenTrial) -> float | None:
    """Return the objective of a trial, for a pruned one the last reported; None if it has none."""
    value = None
    if trial.state == TrialState.COMPLETE:
        value = trial.value
    elif trial.state == TrialState.PRUNED and trial.intermediate_values:
        value = trial.intermediate_values[max(trial.intermediate_values)]
    return value if value is not None and math.isfinite(value) and value > 0 else None


def _relative_noise(trial: FrozenTrial, known: float | None) -> float:
    told, half_width = (trial.user_attrs.get(name) for name in ("standard_error", "half_width"))
    told = told if known is None else known
    if isinstance(told, int | float) and told > 0:
        noise = float(told)
    elif isinstance(half_width, int | float) and half_width > 0:
        noise = half_width / NORMAL_95
    else:
        noise = SEARCH.unknown_noise
    return max(noise, SEARCH.pruned_noise) if trial.state == TrialState.PRUNED else noise
