"""Rates of trials at the speed of the node on which the baseline's own trial ran. Pure.

Trials on other nodes ran at other speeds, which runs of the baseline there tell.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from autotune.analysis.noise_backfill import error_of, with_known_noise
from autotune.analysis.policy import ANALYSIS, PROOF
from storage import AttemptResult, Attempts, Purpose, StoredAttempt


class NodeSpeed(NamedTuple):
    """Factor of the rates of a node, and its relative standard error."""

    factor: float = 1.0
    error: float = ANALYSIS.nodes_apart

    def applied(self, result: AttemptResult) -> AttemptResult:
        """Return the result of a run on the node at the speed of the home node."""
        if result.throughput is None or self.factor == 1.0:
            return result
        return dataclasses.replace(result, throughput=self.factor * result.throughput)

    def doubted(self, error: float | None) -> float | None:
        """Return a run's relative standard error with that of the node; None if its own is unknown."""
        return None if error is None else math.hypot(error, self.error)

    def least(self, rate: float) -> float:
        """Return the least rate on the node that a rate of the home node amounts to."""
        return rate / (self.factor * math.exp(ANALYSIS.doubt_of_node * self.error))


AT_HOME = NodeSpeed(1.0, 0.0)
"""Speed of the node on which the baseline's own trial ran."""


class NodeSpeeds:
    """Speeds of nodes, by the rates of the baseline on each.

    The environments of attempts tell nodes apart. Few runs count little: a factor is drawn towards 1.
    """

    def __init__(
        self, *, differ: bool, home: int | None = None, known: Mapping[int | None, NodeSpeed] = {}
    ) -> None:
        """Take in the speeds.

        Args:
            differ: True if there are several environments; else all rates stay as they are.
            home: environment of the baseline's own trial, whose rates stay as well; None: unknown.
            known: speeds of other environments.
        """
        self._differ = differ
        self._home = home
        self._known = known

    @classmethod
    def of(cls, attempts: Attempts) -> Self:
        """Return the speeds that all runs of the baseline for the search show."""
        # Most studies have one node, and this is called for every trial.
        if len({attempt.environment for attempt in attempts} - {None}) < 2:
            return cls(differ=False)
        if (own := attempts.baseline()) is None:
            return cls(differ=True)
        runs: dict[int | None, list[StoredAttempt]] = {}
        for run in attempts.baseline_runs().measured():
            runs.setdefault(run.environment, []).append(run)
        here = runs.pop(own.environment)
        known = {there: _speed(here, runs[there]) for there in runs}
        return cls(differ=True, home=own.environment, known=known)

    def at(self, environment: int | None) -> NodeSpeed:
        """Return the speed of an environment."""
        if not self._differ or environment in (None, self._home):
            return AT_HOME
        return self._known.get(environment, NodeSpeed())

    def applied(self, attempts: Attempts) -> Attempts:
        """Return the attempts with the rates of the home node.

        Their noise is what is known by now, with the error of the speeds in it.
        """
        known = with_known_noise(attempts)
        return known.each(self._applied) if self._differ else known

    def _applied(self, attempt: StoredAttempt) -> StoredAttempt:
        speed = self.at(attempt.environment)
        if not speed.error:
            return attempt
        doubt = speed.doubted(attempt.result.sigma_run or 0.0)
        result = dataclasses.replace(speed.applied(attempt.result), sigma_run=doubt)
        return dataclasses.replace(attempt, result=result)


def at_home_speed(attempts: Attempts) -> Attempts:
    """Return the attempts with the rates of the home node, by the speeds that they show."""
    return attempts.derived(_at_home_speed)


def _at_home_speed(attempts: Attempts) -> Attempts:
    return NodeSpeeds.of(attempts).applied(attempts)


def pooled_baseline(attempts: Attempts) -> StoredAttempt | None:
    """Return the baseline's own trial at the mean rate of all of its runs in the search.

    Its error is that of the mean. Where trials were paired, the trial is returned as it is: its rate is
    what theirs are told by.
    """
    at_home = at_home_speed(attempts)
    own = at_home.baseline()
    runs = list(at_home.baseline_runs().measured())
    if own is None or len(runs) < 2 or attempts.of(Purpose.PAIRED):
        return own
    rate, error = math.exp(_mean_log(runs)), _error_of_mean(runs)
    mean = dataclasses.replace(
        own.result, throughput=rate, block_half_width=0.0, block_freedom=None, sigma_run=error
    )
    return dataclasses.replace(own, result=mean)


def _speed(here: Sequence[StoredAttempt], there: Sequence[StoredAttempt]) -> NodeSpeed:
    """Return the speed by the mean log rates of both nodes, drawn towards 1."""
    error = math.hypot(_error_of_mean(here), _error_of_mean(there))
    faster = _mean_log(here) - _mean_log(there)
    if abs(faster) > ANALYSIS.odd_node * math.hypot(ANALYSIS.nodes_apart, error):
        return NodeSpeed(math.exp(faster), error)
    known = ANALYSIS.nodes_apart**2 / (ANALYSIS.nodes_apart**2 + error**2)
    return NodeSpeed(math.exp(known * faster), error * math.sqrt(known))


def _mean_log(runs: Sequence[StoredAttempt]) -> float:
    return statistics.fmean(math.log(run.result.throughput or math.ulp(0.0)) for run in runs)


def _error_of_mean(runs: Sequence[StoredAttempt]) -> float:
    errors = [error_of(run.result) for run in runs]
    most = (PROOF.most_error if e is None else min(e, PROOF.most_error) for e in errors)
    return math.hypot(*most) / len(runs)
