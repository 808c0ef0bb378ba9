"""Provisional answer of a study by all runs of its trials, before rounds confirm one. Pure."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.analysis.batches import batch_change
from autotune.analysis.early import with_known_noise
from autotune.analysis.gate import GateRecord, touched
from autotune.analysis.levels import Levels
from autotune.analysis.memory import outgrown
from autotune.analysis.outcomes import Outcomes, baseline_failure
from autotune.analysis.verdict import Contender, Finalist, Kind, Numerics, Unchecked, Verdict
from autotune.measurement.estimate import Ratio
from autotune.measurement.noise import run_df, total_half_width
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt

_SHOWN = 4
_TIMED = (Purpose.SEARCH, Purpose.CALIBRATE, Purpose.CONFIRM)
_PACED = (Purpose.SEARCH, Purpose.CONFIRM)


@dataclass(frozen=True)
class Seen:
    """Trial with all that has been seen of its speed.

    Attributes:
        rates: of its runs so far, per second.
        rate: their geometric mean.
        half_width: relative, of its 95 % interval.
    """

    trial: int
    knobs: dict[str, Any]
    rates: tuple[float, ...]
    rate: float
    half_width: float

    @property
    def interval(self) -> Ratio:
        """Rate with its interval."""
        return _spread(self.rate, self.half_width)

    def ratio(self, other: "Seen") -> Ratio:
        """Return how many times faster it is than another."""
        return _spread(self.rate / other.rate, math.hypot(self.half_width, other.half_width))


def by_all_runs(
    attempts: Attempts, today: Mapping[str, Any], checks: GateRecord, world_size: int
) -> Verdict:
    """Return the answer that all runs support, before rounds do.

    What can change numerics and has not passed the gate is named, but never the answer.

    Args:
        attempts: attempts of a study that may be under way.
        today: the baseline, a value for every knob.
        checks: what the numerics gate has found.
        world_size: number of ranks.
    """
    if not attempts.searched():
        return Verdict(Kind.NO_RESULT)
    seen = _ranked(attempts, checks)
    own = attempts.baseline()
    baseline = next((one for one in seen if own and one.trial == own.trial), None)
    safe = (
        one
        for one in seen
        if one is not baseline
        and (one.trial in checks.passed or not touched(one.knobs, today, checks.harmless))
    )
    others = list(itertools.islice(safe, _SHOWN))
    if not others and baseline is None:
        return Verdict(Kind.NO_RESULT, outcomes=Outcomes.of(attempts))
    chosen, kind = _choice(others, baseline)
    changes = baseline is not None and chosen is not baseline
    return Verdict(
        kind,
        trial=chosen.trial,
        knobs=chosen.knobs,
        throughput=chosen.interval,
        speedup=_against(chosen, baseline) if baseline else None,
        baseline=baseline.interval if baseline else None,
        finalists=_shown(others, baseline, chosen),
        refused=checks.refused,
        runs=(len(chosen.rates), len(baseline.rates) if baseline else 0),
        baseline_failure=None if baseline else baseline_failure(attempts),
        contender=_contender(others, baseline, chosen),
        batch=batch_change(chosen.knobs, today, world_size) if changes else None,
        touched=tuple(touched(chosen.knobs, today, checks.harmless)) if changes else (),
        numerics=_numerics(chosen, checks) if changes else None,
        risks=checks.risks.get(chosen.trial, "") if changes else "",
        unchecked=_unchecked(seen, chosen, baseline or chosen, today, checks),
    )


def _choice(others: Sequence[Seen], baseline: Seen | None) -> tuple[Seen, Kind]:
    """Return the trial to recommend, and what that says."""
    if baseline is None:
        return others[0], Kind.NO_BASELINE
    if not others:
        return baseline, Kind.NOTHING_BETTER
    ratio = others[0].ratio(baseline)
    if ratio.low > 1:
        return others[0], Kind.BETTER
    return baseline, Kind.UNDECIDED if ratio.high > 1 else Kind.NOTHING_BETTER


def _contender(others: Sequence[Seen], baseline: Seen | None, chosen: Seen) -> Contender | None:
    if baseline is None or chosen is not baseline or not others:
        return None
    return Contender(others[0].trial, others[0].knobs, others[0].ratio(baseline))


def _numerics(chosen: Seen, checks: GateRecord) -> Numerics | None:
    found = checks.passed.get(chosen.trial)
    if found is None:
        return None
    return Numerics(found.loss_distance, found.norm_ratio, steps=found.steps)


def _ranked(attempts: Attempts, checks: GateRecord) -> list[Seen]:
    """Return trials that have completed and not failed since, the fastest first."""
    own = attempts.baseline()
    out = {*outgrown(attempts), *(refused.trial for refused in checks.refused)}
    out |= {
        a.trial
        for a in attempts.of(Purpose.CONFIRM).recorded()
        if a.result.state != AttemptState.COMPLETE and not (own and a.trial == own.trial)
    }
    runs: dict[int, list[StoredAttempt]] = {}
    # The rates of paired trials refer to the baseline's own trial alone.
    timed = _PACED if attempts.of(Purpose.PAIRED) else _TIMED
    for attempt in with_known_noise(attempts).of(*timed).complete().measured():
        runs.setdefault(attempt.trial, []).append(attempt)
    levels = Levels.of(attempts)
    equal = attempts.of(Purpose.SEARCH, Purpose.CALIBRATE).of_baseline().complete()
    freedom = run_df(len(equal))
    seen = [
        _seen(searched, runs[searched.trial], levels, freedom)
        for searched in attempts.searched().complete()
        if searched.trial in runs and searched.trial not in out
    ]
    return sorted(seen, key=lambda one: -one.rate)


def _seen(
    searched: StoredAttempt, runs: Sequence[StoredAttempt], levels: Levels, freedom: float
) -> Seen:
    """Return what is seen of a trial, by what is known by now of the noise between runs and of nodes.

    All runs on a node share the doubt of the node.
    """
    results = [levels.at(run.environment).applied(run.result) for run in runs]
    rates = tuple(result.throughput or 0.0 for result in results)
    mean = math.exp(math.fsum(map(math.log, rates)) / len(rates))
    blocks = map(_of_blocks, results)
    times = Counter(run.environment for run in runs)
    doubts = [count * levels.at(node).error for node, count in times.items()]
    between = math.hypot(*(r.sigma_run or 0.0 for r in results), *doubts)
    width = total_half_width(math.hypot(*blocks), between, freedom) / len(rates)
    return Seen(searched.trial, searched.knobs, rates, mean, width)


def _of_blocks(result: AttemptResult) -> float:
    """Return the relative half-width of the 95 % interval of the blocks.

    Attempts of an earlier version have only one for blocks and runs together.
    """
    known = (result.block_half_width, result.half_width)
    return next((width for width in known if width is not None), 1.0)


def _unchecked(
    seen: Sequence[Seen], chosen: Seen, base: Seen, today: Mapping[str, Any], checks: GateRecord
) -> Unchecked | None:
    """Return the fastest trial that is ahead of the choice and may compute something else."""
    faster = (one for one in seen if one.rate > chosen.rate and one.trial not in checks.passed)
    first = next((one for one in faster if touched(one.knobs, today, checks.harmless)), None)
    if first is None:
        return None
    names = tuple(touched(first.knobs, today, checks.harmless))
    return Unchecked(first.knobs, first.rate / base.rate, names)


def _shown(others: Sequence[Seen], baseline: Seen | None, chosen: Seen) -> tuple[Finalist, ...]:
    first = [baseline] if baseline else []
    return tuple(
        Finalist(one.trial, one.knobs, one is baseline, one.rates, _against(one, chosen), None)
        for one in [*first, *others]
    )


def _against(one: Seen, chosen: Seen) -> Ratio:
    return Ratio(1, 1, 1) if one is chosen else one.ratio(chosen)


def _spread(value: float, half_width: float) -> Ratio:
    return Ratio(value, value / (1 + half_width), value * (1 + half_width))
