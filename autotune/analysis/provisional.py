"""What a study would answer if it ended now. Pure functions over its records."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.analysis.batches import change
from autotune.analysis.confirmation import FEWEST_ROUNDS, replay
from autotune.analysis.early import with_known_noise
from autotune.analysis.gate import GateRecord, touched
from autotune.analysis.levels import Levels
from autotune.analysis.memory import outgrown, refused_for_memory
from autotune.analysis.verdict import (
    Finalist,
    Kind,
    Verdict,
    conclude,
    consequences,
    end_of_baseline,
    no_result,
)
from autotune.analysis.wording import counted, difference, rate_text
from autotune.config.sections import MeasurementSpec
from autotune.measurement.estimate import Ratio
from autotune.measurement.noise import run_df, total_half_width
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt

_SHOWN = 4
_TIMED = (Purpose.SEARCH, Purpose.CALIBRATE, Purpose.CONFIRM)
_PACED = (Purpose.SEARCH, Purpose.CONFIRM)


@dataclass(frozen=True)
class Seen:
    """A trial, with all that has been seen of its speed.

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
        """The rate with its interval."""
        return _spread(self.rate, self.half_width)

    def ratio(self, other: "Seen") -> Ratio:
        """How many times faster than another."""
        return _spread(self.rate / other.rate, math.hypot(self.half_width, other.half_width))


def provisional(
    attempts: Attempts,
    today: Mapping[str, Any],
    checks: GateRecord,
    wanted: MeasurementSpec,
    *,
    study: str,
    unit: str,
    world_size: int,
) -> Verdict:
    """What the records support by now.

    Once the confirmation has its fewest rounds it is what these say. Before, it is the trial with the
    highest mean over all its runs, if that is surely faster than the baseline, and else the baseline.
    What can change numerics and has not passed the gate is named, but never the answer.

    Args:
        attempts: of a study that may be under way.
        today: the baseline, a value for every knob.
        checks: what the numerics gate has found.
        wanted: how the study confirms.
        study: its name.
        unit: of the objective.
        world_size: ranks.
    """
    trials = len(attempts.searched())
    if not trials:
        return Verdict(Kind.NO_RESULT, "Nothing has been measured yet.", provisional=True)
    confirmation = replay(
        attempts,
        finalists=wanted.finalists,
        most_rounds=wanted.rounds,
        barred=(
            *outgrown(attempts),
            *(refusal.trial for refusal in checks.refused),
            *(checks.unchecked if wanted.refuses_unchecked else ()),
        ),
    )
    rounds = len(confirmation.rounds) if confirmation else 0
    if confirmation and confirmation.members() and rounds >= FEWEST_ROUNDS:
        end = end_of_baseline(attempts)
        found = conclude(confirmation, unit, world_size, checks, end)
        sentence = f"Provisional, after {rounds} rounds of confirmation: {found.sentence}"
    else:
        found = _by_all_runs(attempts, today, checks, study, unit, world_size)
        found = dataclasses.replace(found, rounds=rounds if rounds < FEWEST_ROUNDS else 0)
        sentence = f"Provisional, after {counted(trials, 'trial')}: {found.sentence}"
    sentence += refused_for_memory(attempts, today)
    return dataclasses.replace(found, sentence=sentence, provisional=True)


def _by_all_runs(
    attempts: Attempts,
    today: Mapping[str, Any],
    checks: GateRecord,
    study: str,
    unit: str,
    world_size: int,
) -> Verdict:
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
        return no_result(attempts, study)
    chosen, kind, sentence = _choice(others, baseline, attempts, unit)
    if baseline and chosen is not baseline:
        sentence += change(chosen.knobs, today, world_size)
        sentence += consequences(chosen.trial, chosen.knobs, today, checks)
    sentence += _yet_unchecked(seen, chosen, baseline or chosen, today, checks)
    return Verdict(
        kind,
        sentence,
        trial=chosen.trial,
        knobs=chosen.knobs,
        throughput=chosen.interval,
        speedup=_speedup(chosen, baseline),
        baseline=baseline.interval if baseline else None,
        finalists=_shown(others, baseline, chosen),
        refused=checks.refused,
    )


def _choice(
    others: Sequence[Seen], baseline: Seen | None, attempts: Attempts, unit: str
) -> tuple[Seen, Kind, str]:
    """Which one, and why."""
    if baseline is None:
        end = end_of_baseline(attempts)
        yours = f"does not run here ({end})" if end else "has not been measured yet"
        rate = rate_text(others[0].interval, unit)
        return (
            others[0],
            Kind.NO_BASELINE,
            (
                f"your configuration {yours}; the fastest that was seen reaches {rate} with "
                f"{difference(others[0].knobs, {})}."
            ),
        )
    rate = rate_text(baseline.interval, unit)
    if not others:
        return (
            baseline,
            Kind.NOTHING_BETTER,
            (f"your configuration reaches {rate}, and there is nothing to compare it with yet."),
        )
    best = others[0]
    ratio, changed = best.ratio(baseline), difference(best.knobs, baseline.knobs)
    times = (
        f"{ratio.value:.2f}x your configuration (95 % interval {ratio.low:.2f} to {ratio.high:.2f})"
    )
    if ratio.low <= 1:
        kind = Kind.UNDECIDED if ratio.high > 1 else Kind.NOTHING_BETTER
        return (
            baseline,
            kind,
            (
                f"keep your configuration, which reaches {rate}: nothing is surely faster, and what "
                f"comes next, {changed}, was seen at {times}."
            ),
        )
    return (
        best,
        Kind.BETTER,
        (
            f"{times}: {changed} reaches {rate_text(best.interval, unit)}, by "
            f"{counted(len(best.rates), 'run')} against {len(baseline.rates)} of yours. That is not "
            "confirmed: whichever of many trials comes first owes a part of it to luck."
        ),
    )


def _ranked(attempts: Attempts, checks: GateRecord) -> list[Seen]:
    """The trials that have completed and not failed since, the fastest first."""
    own = attempts.baseline()
    out = {*outgrown(attempts), *(refused.trial for refused in checks.refused)}
    out |= {
        a.trial
        for a in attempts.of(Purpose.CONFIRM).recorded()
        if a.result.state != AttemptState.COMPLETE and not (own and a.trial == own.trial)
    }
    runs: dict[int, list[StoredAttempt]] = {}
    # Trials that took turns with the baseline are told at the pace of its own trial alone.
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
    """By what is known by now of the noise between runs, and of nodes, whose doubt all runs there
    share."""
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
    """Relative half-width of the 95 % interval that the blocks give; of an earlier version the only one
    that there is."""
    known = (result.block_half_width, result.half_width)
    return next((width for width in known if width is not None), 1.0)


def _yet_unchecked(
    seen: Sequence[Seen], chosen: Seen, base: Seen, today: Mapping[str, Any], checks: GateRecord
) -> str:
    """What was seen to be faster and may compute something else, in words."""
    faster = (one for one in seen if one.rate > chosen.rate and one.trial not in checks.passed)
    first = next((one for one in faster if touched(one.knobs, today, checks.harmless)), None)
    if first is None:
        return ""
    names = ", ".join(touched(first.knobs, today, checks.harmless))
    return (
        f" Faster, at {first.rate / base.rate:.2f}x, but not an answer before {names} has been checked "
        f"against fp32: {difference(first.knobs, today)}."
    )


def _speedup(chosen: Seen, baseline: Seen | None) -> Ratio | None:
    return _against(chosen, baseline) if baseline else None


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
