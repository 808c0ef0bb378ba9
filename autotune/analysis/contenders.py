"""Ranking of trials by all that the search has seen, the most promising first. Pure."""

import math
from collections.abc import Sequence

from autotune.measurement.noise import standard_error
from autotune.measurement.policy import PROOF
from autotune.search.ranking import expected_first, expected_rates
from storage import AttemptResult, StoredAttempt

_LEAST_RATE = 1e-9


def most_promising_first(several: Sequence[StoredAttempt]) -> list[StoredAttempt]:
    """Return trials by the rate that the model of a step expects of them.

    Each measured rate counts for as much as its noise lets it. Trials that were stopped early are
    included: that is no proof that they are slow.

    Args:
        several: trials with a throughput.
    """
    by_rate, rates = _by_rate(several)
    close = by_rate[: len(rates)]
    order = expected_first(rates, [_error(a) for a in close], [a.knobs for a in close])
    return [*(close[place] for place in order), *by_rate[len(rates) :]]


def expected_by_trial(several: Sequence[StoredAttempt]) -> dict[int, float]:
    """Return the rate that the model expects of each trial, of those that were seen fastest.

    Args:
        several: trials with a throughput.
    """
    by_rate, rates = _by_rate(several)
    close = by_rate[: len(rates)]
    found = expected_rates(rates, [_error(a) for a in close], [a.knobs for a in close])
    return {one.trial: rate for one, rate in zip(close, found, strict=True)}


def _by_rate(several: Sequence[StoredAttempt]) -> tuple[list[StoredAttempt], list[float]]:
    """Return trials, the fastest first, and the rates of those that are looked at closely."""
    by_rate = sorted(several, key=lambda a: -(a.result.throughput or 0.0))
    return by_rate, [rate for a in by_rate[: PROOF.ranked] if (rate := a.result.throughput)]


def rivals(several: Sequence[StoredAttempt], margin: float) -> list[StoredAttempt]:
    """Return the first of these trials, and those that may be faster than it by more than a margin.

    Args:
        several: trials with a throughput, the most promising first.
        margin: difference of the logarithms of the rates.
    """
    return [
        one
        for place, one in enumerate(several)
        if not place or _surplus(one, several[0], margin) > -PROOF.unlikely
    ]


def _surplus(one: StoredAttempt, first: StoredAttempt, margin: float) -> float:
    """Return by how many standard errors a trial is faster than another by more than the margin."""
    ahead = math.log(
        (one.result.throughput or _LEAST_RATE) / (first.result.throughput or _LEAST_RATE)
    )
    return (ahead - margin) / math.hypot(_error(one), _error(first))


def may_be_faster(one: StoredAttempt, other: StoredAttempt) -> bool:
    """Return whether a trial may be faster than another one, by the known noise of both."""
    rates = one.result.throughput, other.result.throughput
    if not (rates[0] and rates[1]):
        return True
    doubt = PROOF.beyond_doubt * math.hypot(_error(one), _error(other))
    return math.log(rates[0] / rates[1]) > -doubt


def error_of(result: AttemptResult) -> float | None:
    """Return the relative standard error of a run's rate, by its blocks and by runs; None if unknown."""
    if result.block_half_width is None:
        return None
    freedom = math.inf if result.block_freedom is None else result.block_freedom
    return math.hypot(standard_error(result.block_half_width, freedom), result.sigma_run or 0.0)


def _error(attempt: StoredAttempt) -> float:
    known = error_of(attempt.result)
    return (
        PROOF.most_error if known is None else min(max(known, PROOF.least_error), PROOF.most_error)
    )
