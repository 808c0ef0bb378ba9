"""Which trials may be the best, by all that the search has seen. Pure."""

import math
from collections.abc import Sequence

from autotune.measurement.best import chances
from autotune.measurement.neighbours import smoothed
from autotune.measurement.noise import standard_error
from storage import AttemptResult, StoredAttempt

_MOST = 64
"""Trials that are looked at closely: those that were seen fastest."""
_LEAST_ERROR, MOST_ERROR = 1e-4, 0.15
"""Relative, of a rate: none is known better, and a trial of a step or two is not further off."""


def likeliest_first(several: Sequence[StoredAttempt]) -> list[StoredAttempt]:
    """Trials by the probability that theirs is the fastest configuration of all that were tried.

    Which was seen fastest is mostly which was lucky: each rate counts for as much as its noise lets it,
    and is drawn towards those of similar configurations. Who was stopped early is among them: that is
    no proof that it is slow.

    Args:
        several: trials with a throughput.
    """
    by_rate = sorted(several, key=lambda a: -(a.result.throughput or 0.0))
    close, others = by_rate[:_MOST], by_rate[_MOST:]
    if len(close) < 2:
        return by_rate
    logs = [math.log(a.result.throughput or math.ulp(0.0)) for a in close]
    means, spreads = smoothed(logs, [_error(a) for a in close], [a.knobs for a in close])
    chance = chances(means, spreads)
    order = sorted(range(len(close)), key=lambda place: (-chance[place], -means[place]))
    return [*(close[place] for place in order), *others]


def error_of(result: AttemptResult) -> float | None:
    """Relative standard error of a run's rate, by its blocks and by runs; None if it is not known."""
    if result.block_half_width is None:
        return None
    freedom = math.inf if result.block_freedom is None else result.block_freedom
    return math.hypot(standard_error(result.block_half_width, freedom), result.sigma_run or 0.0)


def _error(attempt: StoredAttempt) -> float:
    known = error_of(attempt.result)
    return MOST_ERROR if known is None else min(max(known, _LEAST_ERROR), MOST_ERROR)
