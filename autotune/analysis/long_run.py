"""Comparison of a pair of long runs with a verdict that rests on short ones. Pure.

Clocks and temperatures settle over minutes.
"""

import dataclasses
import math

from autotune.analysis.verdict import Finalist, Kind, LongRun, Verdict
from autotune.measurement.estimate import Ratio
from autotune.measurement.noise import run_df, total_half_width
from storage import Attempts, Purpose, StoredAttempt


def long_run(attempts: Attempts, verdict: Verdict) -> LongRun | None:
    """Return the result of the pair for the recommended configuration; None if there is none."""
    if verdict.speedup is None or verdict.knobs is None:
        return None
    runs = attempts.of(Purpose.LONG).complete()
    own = runs.of_trial(verdict.trial).with_knobs(verdict.knobs).last
    today = runs.of_baseline().last
    if own is None or today is None or own.environment != today.environment:
        return None
    equal = attempts.of(Purpose.SEARCH, Purpose.CALIBRATE).of_baseline().complete()
    freedom = run_df(len(equal))
    log = _log(own) - _log(today)
    width = math.hypot(_width(own, freedom), _width(today, freedom))
    short = verdict.speedup
    if short.low <= 0 or not math.isfinite(short.high):
        return None
    beyond = math.hypot(width, math.log(short.high / short.low) / 2)
    seconds = min(own.result.wall_seconds, today.result.wall_seconds)
    return LongRun(seconds, _around(log, width), _around(log - math.log(short.value), beyond))


def overruled(verdict: Verdict, pair: LongRun, attempts: Attempts) -> Verdict:
    """Return a verdict with a pair of long runs, whose ratio counts where it contradicts the short runs.

    Where it does not show the change to be faster, the baseline is kept.
    """
    if not pair.contradicts:
        return dataclasses.replace(verdict, long_run=pair)
    if pair.ratio.low > 1:
        return dataclasses.replace(
            verdict, long_run=pair, speedup=pair.ratio, price=None, by_rounds=verdict
        )
    today = attempts.baseline()
    assert today is not None  # it is one of the pair
    return dataclasses.replace(
        verdict,
        kind=Kind.UNDECIDED,
        trial=today.trial,
        knobs=today.knobs,
        throughput=verdict.baseline,
        speedup=Ratio(1, 1, 1),
        finalists=tuple(
            dataclasses.replace(one, ratio_to_recommended=_reversed(one, verdict))
            for one in verdict.finalists
        ),
        numerics=None,
        price=None,
        long_run=pair,
        by_rounds=verdict,
    )


def _reversed(finalist: Finalist, verdict: Verdict) -> Ratio | None:
    """Return a finalist's ratio to the baseline by the rounds of a verdict that recommends another.

    None: it was not compared with the baseline alone.
    """
    if finalist.baseline:
        return Ratio(1, 1, 1)
    return verdict.speedup if finalist.trial == verdict.trial else None


def _log(run: StoredAttempt) -> float:
    return math.log(run.result.throughput or math.ulp(0.0))


def _width(run: StoredAttempt, freedom: float) -> float:
    """Return half of the 95 % interval, with Student's t for a noise that few runs tell."""
    own = run.result.block_half_width
    return 1.0 if own is None else total_half_width(own, run.result.sigma_run or 0.0, freedom)


def _around(log: float, width: float) -> Ratio:
    return Ratio(math.exp(log), math.exp(log - width), math.exp(log + width))
