"""What a pair of long runs says of a verdict that rests on short ones. Pure.

Clocks and temperatures settle over minutes.
"""

import dataclasses
import math

from autotune.analysis.verdict import Finalist, Kind, LongRun, Verdict
from autotune.analysis.wording import difference
from autotune.measurement.estimate import Ratio
from autotune.measurement.noise import run_df, total_half_width
from storage import Attempts, AttemptState, Purpose, StoredAttempt

_SECONDS_PER_MINUTE = 60.0


def long_run(attempts: Attempts, verdict: Verdict) -> LongRun | None:
    """What the pair has shown of the recommended configuration; None if there is none."""
    if verdict.kind != Kind.BETTER or verdict.speedup is None or verdict.knobs is None:
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


def with_long_run(verdict: Verdict, attempts: Attempts) -> Verdict:
    """The same with what the long pair says. Where it contradicts the short runs its figure is the one
    that holds; where it does not show the change to be faster any more, yours is kept."""
    found = long_run(attempts, verdict)
    if found is None or verdict.knobs is None:
        return dataclasses.replace(verdict, sentence=verdict.sentence + _failed(verdict, attempts))
    if not found.contradicts:
        sentence = f"{verdict.sentence} {_figure(found)}."
        return dataclasses.replace(verdict, long_run=found, sentence=sentence)
    first = f"{_figure(found)}: the longer runs count. In short ones: {verdict.sentence}"
    if found.ratio.low > 1:
        return dataclasses.replace(
            verdict, long_run=found, speedup=found.ratio, price=None, sentence=first
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
        long_run=found,
        sentence=(
            f"Keep your configuration: {difference(verdict.knobs, today.knobs)} was faster in short "
            f"runs, but does not stay so. {first}"
        ),
    )


def _reversed(finalist: Finalist, verdict: Verdict) -> Ratio | None:
    """Its ratio to the baseline by the rounds of the verdict, which recommended another; None of those
    that were not compared with the baseline alone."""
    if finalist.baseline:
        return Ratio(1, 1, 1)
    return verdict.speedup if finalist.trial == verdict.trial else None


def _failed(verdict: Verdict, attempts: Attempts) -> str:
    """That the recommended configuration did not last, in a sentence; empty where it did."""
    if verdict.kind != Kind.BETTER or verdict.knobs is None:
        return ""
    runs = attempts.of(Purpose.LONG).of_trial(verdict.trial).with_knobs(verdict.knobs).recorded()
    well = (AttemptState.COMPLETE, AttemptState.PRUNED)
    if runs.last is None or runs.last.result.state in well:
        return ""
    result = runs.last.result
    return f" See why before you rely on it: a run for minutes ended in {result.state}: {result.cause}."


def _figure(found: LongRun) -> str:
    """'In runs of 8 minutes: 1.52x (1.50 to 1.54), 0.8 % less than in short ones (...)'."""
    ratio, shift = found.ratio, found.shift
    change = "less" if shift.value < 1 else "more"
    return (
        f"In runs of {found.seconds / _SECONDS_PER_MINUTE:.0f} minutes: {ratio.value:.2f}x (95 % "
        f"interval {ratio.low:.2f} to {ratio.high:.2f}), {abs(shift.value - 1):.1%} {change} than in "
        f"short ones ({shift.low - 1:+.1%} to {shift.high - 1:+.1%})"
    )


def _log(run: StoredAttempt) -> float:
    return math.log(run.result.throughput or math.ulp(0.0))


def _width(run: StoredAttempt, freedom: float) -> float:
    """Half of the 95 % interval, with Student's t for the noise between runs, of which few tell."""
    own = run.result.block_half_width
    return 1.0 if own is None else total_half_width(own, run.result.sigma_run or 0.0, freedom)


def _around(log: float, width: float) -> Ratio:
    return Ratio(math.exp(log), math.exp(log - width), math.exp(log + width))
