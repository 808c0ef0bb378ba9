"""Rates measured on several nodes, as they would be where the baseline's own trial ran. Pure."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple, Self

from autotune.analysis.contenders import MOST_ERROR, error_of
from autotune.analysis.early import with_known_noise
from storage import AttemptResult, Attempts, Purpose, StoredAttempt

_SPREAD = 0.08
"""Standard deviation of the logarithm of how much faster one node is than another, before anything is
known: as much as equal GPUs of five clusters vary on average (Sinha et al. 2022, arXiv:2208.11035)."""
_ODD = 3.0
"""Nodes that differ by more of its standard deviations than this are not of one kind."""
_DOUBTS = 2.0
"""Standard errors of a level that a trial is given before it is stopped early."""


class Level(NamedTuple):
    """What rates of a node are multiplied by, and the relative standard error of that."""

    factor: float = 1.0
    error: float = _SPREAD

    def applied(self, result: AttemptResult) -> AttemptResult:
        """What a run on the node comes to."""
        if result.throughput is None or self.factor == 1.0:
            return result
        return dataclasses.replace(result, throughput=self.factor * result.throughput)

    def doubted(self, error: float | None) -> float | None:
        """A run's own relative standard error, if it is known, with that of the level."""
        return None if error is None else math.hypot(error, self.error)

    def least(self, rate: float) -> float:
        """What a rate comes to on the node, at the least."""
        return rate / (self.factor * math.exp(_DOUBTS * self.error))


AT_HOME = Level(1.0, 0.0)
"""Where the baseline's own trial ran."""


class Levels:
    """How fast nodes are, by what the baseline runs at on each; the environments of attempts tell them
    apart. What little is known of a node counts for little: its level is drawn towards 1."""

    def __init__(
        self, *, differ: bool, home: int | None = None, known: Mapping[int | None, Level] = {}
    ) -> None:
        """Take in the levels.

        Args:
            differ: there are several environments; else all rates stay as they are.
            home: that of the baseline's own trial, whose rates stay as well; None: not known.
            known: levels of others.
        """
        self._differ = differ
        self._home = home
        self._known = known

    @classmethod
    def of(cls, attempts: Attempts) -> Self:
        """By all runs of the baseline for the search."""
        # Most studies have one node, and it is asked for every trial.
        if len({attempt.environment for attempt in attempts} - {None}) < 2:
            return cls(differ=False)
        if (own := attempts.baseline()) is None:
            return cls(differ=True)
        runs: dict[int | None, list[StoredAttempt]] = {}
        for run in (
            attempts.of(Purpose.SEARCH, Purpose.CALIBRATE).of_baseline().complete().measured()
        ):
            runs.setdefault(run.environment, []).append(run)
        here = runs.pop(own.environment)
        known = {there: _level(here, runs[there]) for there in runs}
        return cls(differ=True, home=own.environment, known=known)

    def at(self, environment: int | None) -> Level:
        """That of an environment."""
        if not self._differ or environment in (None, self._home):
            return AT_HOME
        return self._known.get(environment, Level())

    def applied(self, attempts: Attempts) -> Attempts:
        """All of them with such rates; their noise between runs is what is known by now, with the doubt
        of the levels in it."""
        known = with_known_noise(attempts)
        return known.each(self._applied) if self._differ else known

    def _applied(self, attempt: StoredAttempt) -> StoredAttempt:
        level = self.at(attempt.environment)
        if not level.error:
            return attempt
        doubt = level.doubted(attempt.result.sigma_run or 0.0)
        result = dataclasses.replace(level.applied(attempt.result), sigma_run=doubt)
        return dataclasses.replace(attempt, result=result)


def levelled(attempts: Attempts) -> Attempts:
    """All of them, by the levels that they show."""
    return Levels.of(attempts).applied(attempts)


def _level(here: Sequence[StoredAttempt], there: Sequence[StoredAttempt]) -> Level:
    """By the mean of logarithms of both, which are normal about the level of each node."""
    error = math.hypot(_error_of_mean(here), _error_of_mean(there))
    faster = _mean_log(here) - _mean_log(there)
    if abs(faster) > _ODD * math.hypot(_SPREAD, error):
        return Level(math.exp(faster), error)
    known = _SPREAD**2 / (_SPREAD**2 + error**2)
    return Level(math.exp(known * faster), error * math.sqrt(known))


def _mean_log(runs: Sequence[StoredAttempt]) -> float:
    return fmean(math.log(run.result.throughput or math.ulp(0.0)) for run in runs)


def _error_of_mean(runs: Sequence[StoredAttempt]) -> float:
    errors = [error_of(run.result) for run in runs]
    most = (MOST_ERROR if error is None else min(error, MOST_ERROR) for error in errors)
    return math.hypot(*most) / len(runs)
