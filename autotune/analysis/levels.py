"""Rates measured on several nodes, as they would be where the baseline's own trial ran. Pure."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple, Self

from autotune.analysis.contenders import MOST_ERROR, error_of
from storage import AttemptResult, Attempts, Purpose, StoredAttempt

_SPREAD = 0.08
"""By how much nodes of one kind differ, as a standard deviation relative to their speed: 8 % on average
among equal GPUs of five clusters (Sinha et al. 2022, arXiv:2208.11035)."""


class Level(NamedTuple):
    """What rates of a node are multiplied by, and the relative standard error of that."""

    factor: float = 1.0
    error: float = _SPREAD

    def applied(self, result: AttemptResult) -> AttemptResult:
        """What a run on the node comes to, with the doubt that this adds."""
        if result.throughput is None or not self.error:
            return result
        return dataclasses.replace(
            result,
            throughput=self.factor * result.throughput,
            sigma_run=math.hypot(self.error, result.sigma_run or 0.0),
        )


class Levels:
    """How fast nodes are, by what the baseline runs at on each; the environments of attempts tell them
    apart. What little is known of a node counts for little: its level is drawn towards 1."""

    def __init__(self, home: int | None, known: Mapping[int | None, Level]) -> None:
        """Take in the levels.

        Args:
            home: the environment of the baseline's own trial, whose rates stay as they are; None:
                so do all.
            known: levels of others.
        """
        self._home = home
        self._known = known

    @classmethod
    def of(cls, attempts: Attempts) -> Self:
        """By all runs of the baseline for the search."""
        # Most studies have one node, and it is asked for every trial.
        several = len({attempt.environment for attempt in attempts} - {None}) > 1
        own = attempts.baseline() if several else None
        if own is None:
            return cls(None, {})
        runs: dict[int | None, list[StoredAttempt]] = {}
        for run in (
            attempts.of(Purpose.SEARCH, Purpose.CALIBRATE).of_baseline().complete().measured()
        ):
            runs.setdefault(run.environment, []).append(run)
        here = runs.pop(own.environment)
        return cls(own.environment, {there: _level(here, runs[there]) for there in runs})

    @property
    def differ(self) -> bool:
        """Some rate may not stay as it is."""
        return self._home is not None

    def at(self, environment: int | None) -> Level:
        """That of an environment."""
        if self._home is None or environment in (None, self._home):
            return Level(1.0, 0.0)
        return self._known.get(environment, Level())


def levelled(attempts: Attempts) -> Attempts:
    """All of them with such rates."""
    levels = Levels.of(attempts)
    if not levels.differ:
        return attempts

    def changed(attempt: StoredAttempt) -> StoredAttempt:
        result = levels.at(attempt.environment).applied(attempt.result)
        return attempt if result is attempt.result else dataclasses.replace(attempt, result=result)

    return attempts.each(changed)


def _level(here: Sequence[StoredAttempt], there: Sequence[StoredAttempt]) -> Level:
    """By the mean of logarithms of both, which are normal about the level of each node."""
    error = math.hypot(_error_of_mean(here), _error_of_mean(there))
    known = _SPREAD**2 / (_SPREAD**2 + error**2)
    return Level(math.exp(known * (_mean_log(here) - _mean_log(there))), error * math.sqrt(known))


def _mean_log(runs: Sequence[StoredAttempt]) -> float:
    return fmean(math.log(run.result.throughput or math.ulp(0.0)) for run in runs)


def _error_of_mean(runs: Sequence[StoredAttempt]) -> float:
    errors = [error_of(run.result) for run in runs]
    return math.hypot(*(MOST_ERROR if e is None else e for e in errors)) / len(runs)
