"""What a study concludes, in one sentence. Pure functions over a confirmation."""

import collections
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Self

from autotune.analysis.batches import at_both
from autotune.analysis.confirmation import ALIKE, Confirmation
from autotune.analysis.effort import Effort, Price
from autotune.analysis.gate import GateRecord, Refusal, touched
from autotune.analysis.levels import levelled
from autotune.analysis.memory import Memory
from autotune.analysis.wording import counted, difference, quantity, rate_text, too_slow
from autotune.measurement.estimate import Ratio, paired_ratio
from search_spaces import CATALOGUE
from storage import Attempts, AttemptState, Purpose

_AS_FAST = 0.0005
"""Slower than the best by less is not said."""
_WORTH_A_FIGURE = 1.01
"""Below this "at least so many times as fast" says nothing."""


class Kind(StrEnum):
    """What a verdict says."""

    BETTER = "better"
    NOTHING_BETTER = "nothing_better"
    UNDECIDED = "undecided"
    """The noise is larger than the difference."""
    NO_BASELINE = "no_baseline"
    """The baseline cannot run."""
    NO_RESULT = "no_result"
    NOT_ENOUGH_TIME = "not_enough_time"
    """Nothing could be confirmed in the time that there was."""


@dataclass(frozen=True)
class Finalist:
    """A candidate of the confirmation.

    Attributes:
        baseline: it is the user's configuration.
        rates: throughput, round by round.
        ratio_to_recommended: its throughput over that of the recommended one, for the baseline in the
            rounds that the speed-up rests on, for others in those that chose; None if it never ran.
        dropped_after_round: counted from one; None if it stayed to the end.
    """

    trial: int
    knobs: dict[str, Any]
    baseline: bool
    rates: tuple[float, ...]
    ratio_to_recommended: Ratio | None
    dropped_after_round: int | None


@dataclass(frozen=True)
class Numerics:
    """How closely a configuration follows the fp32 reference.

    Attributes:
        loss_distance: largest relative one; None if it could not be checked.
        norm_ratio: median gradient norm over the reference's; None as above.
        unchecked: why it could not be checked; empty if it was.
    """

    loss_distance: float | None = None
    norm_ratio: float | None = None
    unchecked: str = ""


@dataclass(frozen=True)
class LongRun:
    """What a pair of long runs has shown.

    Attributes:
        seconds: of each.
        ratio: of the recommended configuration over the baseline in it.
        shift: of that over the ratio of the short runs.
    """

    seconds: float
    ratio: Ratio
    shift: Ratio

    @property
    def contradicts(self) -> bool:
        """Whether the short runs told something else."""
        return not self.shift.low <= 1 <= self.shift.high


@dataclass(frozen=True)
class Verdict:
    """The outcome of a study.

    Attributes:
        sentence: what the user reads.
        trial: of the recommended configuration; None for no_result.
        knobs: the recommended configuration.
        throughput: its rate with interval, per second.
        speedup: over the baseline, with interval; None where that did not run.
        baseline: the baseline's rate with interval; None where it did not run.
        finalists: all candidates of the confirmation.
        rounds: that throughput, speed-up and the baseline's rate rest on.
        chosen_in: rounds before those, of all finalists, that chose; 0: the same.
        numerics: of the recommended configuration; None where nothing in it can change numerics.
        refused: configurations that do not follow the reference.
        provisional: the study has not come to its end; see analysis.provisional.
        missing_seconds: that would lead further, about; None where nothing is missing.
        price: what the recommendation cost and brings; None where it changes nothing.
        measured_on: the machine, in words; empty where nothing was measured, or it is not known.
        memory: what the recommendation takes; None where it changes nothing.
        long_run: what a pair of long runs says of the speed-up; None where there was no room for it.
    """

    kind: Kind
    sentence: str
    trial: int | None = None
    knobs: dict[str, Any] | None = None
    throughput: Ratio | None = None
    speedup: Ratio | None = None
    baseline: Ratio | None = None
    finalists: tuple[Finalist, ...] = ()
    rounds: int = 0
    chosen_in: int = 0
    numerics: Numerics | None = None
    refused: tuple[Refusal, ...] = ()
    provisional: bool = False
    missing_seconds: float | None = None
    price: Price | None = None
    measured_on: str = ""
    memory: Memory | None = None
    long_run: LongRun | None = None

    def telling(self, finalist: Finalist) -> tuple[float, ...]:
        """Its throughput in the rounds that tell by how much; of who was not in them, in those that
        chose."""
        alone = len(finalist.rates) > self.chosen_in
        return finalist.rates[self.chosen_in :] if alone else finalist.rates

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: a bound that is infinite, because one round tells no interval, is None."""
        body: dict[str, Any] = _finite(asdict(self))
        return body

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Self:
        """The verdict that `as_dict` wrote, also that of an earlier version, which said less."""
        parts: dict[str, Any] = {f.name: body[f.name] for f in fields(cls) if f.name in body}
        parts["kind"] = Kind(body["kind"])
        for name in ("throughput", "speedup", "baseline"):
            parts[name] = _ratio(body.get(name))
        parts["finalists"] = tuple(map(_known_finalist, body.get("finalists", ())))
        parts["refused"] = tuple(Refusal(**refused) for refused in body.get("refused", ()))
        parts["price"] = Price(**body["price"]) if body.get("price") else None
        parts["memory"] = Memory(**body["memory"]) if body.get("memory") else None
        parts["long_run"] = _known_long_run(body.get("long_run"))
        numerics = body.get("numerics")
        parts["numerics"] = Numerics(**numerics) if numerics else None
        return cls(**parts)


def _ratio(body: Mapping[str, float | None] | None) -> Ratio | None:
    if body is None:
        return None
    known = {name: math.inf if value is None else value for name, value in body.items()}
    return Ratio(**known)


def _known_long_run(body: Mapping[str, Any] | None) -> LongRun | None:
    if not body:
        return None
    return LongRun(body["seconds"], Ratio(**body["ratio"]), Ratio(**body["shift"]))


def _known_finalist(body: Mapping[str, Any]) -> Finalist:
    ratio = _ratio(body["ratio_to_recommended"])
    return Finalist(**{**body, "rates": tuple(body["rates"]), "ratio_to_recommended": ratio})


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def conclude(
    confirmation: Confirmation,
    unit: str,
    world_size: int,
    checks: GateRecord,
    baseline_end: str = "",
    effort: Effort | None = None,
) -> Verdict:
    """The verdict of a confirmation; at least one candidate finished a round.

    Args:
        confirmation: decided.
        unit: of the objective.
        world_size: ranks.
        checks: what the numerics gate has found.
        baseline_end: how the baseline ended in the search, where it did not complete.
        effort: what the study has taken, and what would lead further; None: it goes on.
    """
    chosen = confirmation.choice()
    knobs = confirmation.candidates[chosen].knobs
    throughput = confirmation.own_rate(chosen) or mean_rate(confirmation.basis_rates(chosen))
    baseline = confirmation.baseline
    finalists = tuple(_finalist(confirmation, trial, chosen) for trial in confirmation.candidates)
    common: dict[str, Any] = {
        "trial": chosen,
        "knobs": knobs,
        "throughput": throughput,
        "finalists": finalists,
        "rounds": len(confirmation.basis),
        "chosen_in": 0 if confirmation.basis is confirmation.rounds else len(confirmation.rounds),
        "numerics": _numerics(chosen, checks),
        "refused": checks.refused,
    }
    times = len(confirmation.rates(baseline)) if baseline is not None else 0
    if baseline is None or not times or baseline in confirmation.dropped:
        ends = f" ({baseline_end})" if baseline_end else ""
        fails = f"does not run here{ends}; the best that does"
        if times:
            fails = f"fails after {counted(times, 'run')} in turn{ends}; the best that does not"
        sentence = (
            f"Your configuration {fails} reaches {rate_text(throughput, unit)} with "
            f"{difference(knobs, {})}. If you have mended what stopped yours since, start a study of "
            "another name."
        )
        return Verdict(Kind.NO_BASELINE, sentence, **common)
    before = confirmation.own_rate(baseline) or mean_rate(confirmation.basis_rates(baseline))
    if chosen == baseline:
        kind, sentence = _stay(confirmation, baseline, rate_text(throughput, unit), effort)
        sentence += _failures(confirmation) + _refusals(checks, knobs)
        if kind == Kind.UNDECIDED:
            common["missing_seconds"] = _missing(effort, confirmation)
        return Verdict(kind, sentence, baseline=before, speedup=Ratio(1, 1, 1), **common)
    speedup = confirmation.gain(chosen)
    today = confirmation.candidates[baseline].knobs
    sure = speedup.low if speedup.vague else speedup.value
    price = Price.of(effort, sure, world_size) if effort and speedup.low > 1 else None
    sentence = (
        f"{_gain(speedup)}: {difference(knobs, today)} reaches {rate_text(throughput, unit)}, "
        f"{_in_turn(confirmation)}."
        + _of_several(confirmation, chosen)
        + _failures(confirmation)
        + _taken_back(confirmation)
        + at_both(confirmation, chosen, baseline, world_size)
        + consequences(chosen, knobs, today, checks)
        + (price.sentence if price else "")
    )
    if speedup.vague:
        common["missing_seconds"] = _missing(effort, confirmation)
        sentence += _would_narrow(effort, confirmation)
    return Verdict(Kind.BETTER, sentence, baseline=before, speedup=speedup, price=price, **common)


def _in_turn(confirmation: Confirmation) -> str:
    """How often it was measured against the baseline, and what has chosen it."""
    rounds = len(confirmation.basis)
    if confirmation.basis is confirmation.rounds:
        return f"measured again {rounds} times in turn with yours"
    return (
        f"measured {rounds} times in turn with yours after {len(confirmation.rounds)} rounds of all "
        "finalists had chosen it"
    )


def _of_several(confirmation: Confirmation, chosen: int) -> str:
    """How far it may be from the best of the finalists, in a sentence; empty where it is alone."""
    behind = confirmation.behind(chosen)
    if len(confirmation.candidates) < 3 or not math.isfinite(behind):
        return ""
    slower = -math.expm1(-behind)
    if slower < _AS_FAST:
        return " None of the finalists is faster."
    return f" It is at most {slower:.1%} slower than the best of the finalists."


def _taken_back(confirmation: Confirmation) -> str:
    """What it can do without, in a sentence; empty where that is nothing."""
    if not confirmation.taken_back or confirmation.chosen is None:
        return ""
    now = confirmation.candidates[confirmation.chosen].knobs
    back = {name: now[name] for name in confirmation.taken_back}
    return f" What brought nothing is back as you have it: {difference(back, {})}."


def _gain(speedup: Ratio) -> str:
    """A figure whose interval is wider than itself is none, but its lower end holds."""
    interval = f"95 % interval {speedup.low:.2f} to {speedup.high:.2f}"
    if speedup.vague and speedup.low < _WORTH_A_FIGURE:
        return f"Faster than your configuration, but nobody knows by how much ({interval})"
    if speedup.vague:
        return f"At least {speedup.low:.2f}x your configuration ({interval})"
    return f"{speedup.value:.2f}x your configuration ({interval})"


def _would_narrow(effort: Effort | None, confirmation: Confirmation) -> str:
    if effort is None:
        return ""
    if missing := _missing(effort, confirmation):
        return f" By how much it is faster, about {missing:.0f} s more would tell ({MORE_TIME})."
    return _more_rounds(confirmation)


def _missing(effort: Effort | None, confirmation: Confirmation) -> float | None:
    """Return seconds that would lead further; None where the rounds that are allowed are over."""
    return None if effort is None or confirmation.exhausted else effort.missing


def _more_rounds(confirmation: Confirmation) -> str:
    """Return what would lead further where no time does, in a sentence."""
    if not confirmation.exhausted:
        return (
            " Its runs lie too far apart: no number of rounds that the study may have would tell."
        )
    rounds = len(confirmation.basis)
    return (
        " All rounds that the study may have are over: one of another name with "
        f"`measurement.rounds` above {rounds} would tell more."
    )


def consequences(
    trial: int,
    knobs: Mapping[str, Any],
    today: Mapping[str, Any],
    checks: GateRecord,
) -> str:
    """What else changes with a configuration besides its speed and its global batch, in sentences; each
    begins with a space."""
    return (
        _schedule_changes(knobs, today)
        + _numerics_sentence(trial, touched(knobs, today, checks.harmless), checks)
        + (f" {checks.risks[trial]}" if checks.risks.get(trial) else "")
        + _refusals(checks, today)
    )


def _stay(
    confirmation: Confirmation, baseline: int, rate: str, effort: Effort | None
) -> tuple[Kind, str]:
    """Why to keep the baseline: because it is as good as any, or because the noise hides it."""
    rounds = len(confirmation.rounds)
    contender, most = confirmation.contender(), math.expm1(confirmation.most_gain())
    if contender is None or most <= ALIKE:
        others = len(confirmation.candidates) - 1
        how = f"times in turn with {counted(others, 'finalist')}" if others else "times more"
        left = f" by more than {most:.1%}" if most >= _AS_FAST else ""
        return Kind.NOTHING_BETTER, (
            f"Nothing that was measured again beats your configuration{left}: it reaches {rate}, "
            f"measured {rounds} {how}."
        )
    ratio = confirmation.gain(contender)
    knobs, today = (confirmation.candidates[trial].knobs for trial in (contender, baseline))
    left_open = _left_open(ratio, difference(knobs, today), counted(rounds, "round"))
    if confirmation.contradicted and not confirmation.measured_alone:
        since = counted(len(confirmation.fresh), "round")
        left_open = (
            f"{difference(knobs, today)} measured {ratio.value:.2f}x in the rounds that chose it, and "
            f"no more than yours in {since} after that"
        )
    return Kind.UNDECIDED, (
        f"Cannot tell whether anything beats your configuration, so keep it: {left_open}."
        f"{_would_tell(effort, confirmation)}"
    )


def _would_tell(effort: Effort | None, confirmation: Confirmation) -> str:
    if effort is None:
        return ""
    if missing := _missing(effort, confirmation):
        return f" About {missing:.0f} s more would do ({MORE_TIME}), and less on a quieter machine."
    return _more_rounds(confirmation)


def _failures(confirmation: Confirmation) -> str:
    """Who was among the finalists and failed as it was measured again, in a sentence."""
    failed = [trial for trial in confirmation.failed if trial != confirmation.baseline]
    if not failed:
        return ""
    which = ", ".join(map(str, failed))
    return (
        f" Not among the finalists any more: trial {which}, which failed as it was measured again."
    )


def _left_open(ratio: Ratio, changed: str, rounds: str) -> str:
    """What the rounds say of the leader. A figure whose interval is wider than itself is none."""
    if not ratio.vague:
        return (
            f"{changed} measured {ratio.value:.2f}x in {rounds}, but the 95 % interval is "
            f"{ratio.low:.2f} to {ratio.high:.2f}"
        )
    known = "nothing" if not math.isfinite(ratio.high) else "too little"
    return f"{rounds} of {changed} against yours tell {known}"


MORE_TIME = "a longer `budget.wall_time`; `autotune start` then goes on"
"""How a study gets more of it."""


def not_enough_time(attempts: Attempts, unit: str, effort: Effort) -> Verdict:
    """Return the verdict when the time ended before anything could be confirmed.

    Args:
        effort: what the study has taken, and what would lead to a verdict.
    """
    attempts = levelled(attempts)
    today = attempts.baseline()
    complete = attempts.searched().complete()
    best = max(complete, key=lambda a: a.result.throughput or 0.0, default=None)
    if today is None or best is None:
        seen = "not even your configuration could be timed"
    elif best.knobs == today.knobs:
        seen = f"your configuration ran at {quantity(today.result.throughput or 0.0)} {unit}"
        seen += ", and nothing was seen to be faster"
    else:
        ratio = (best.result.throughput or 0.0) / (today.result.throughput or 1.0)
        seen = f"{difference(best.knobs, today.knobs)} ran {ratio:.2f} times as fast as yours, once"
    sentence = f"Not enough time: {seen}."
    if effort.missing:
        sentence += f" About {effort.missing:.0f} s more would do to prove something ({MORE_TIME})."
    elif effort.hindrance:
        sentence = f"Nothing is proved: {seen}; {effort.hindrance}."
    elif not complete:
        sentence += f" How much it needs is not known; try several times as much ({MORE_TIME})."
    return Verdict(Kind.NOT_ENOUGH_TIME, sentence, missing_seconds=effort.missing)


def end_of_baseline(attempts: Attempts) -> str:
    """How the baseline ended in the search, or else as it was last measured again, in words; empty if it
    completed or never ran."""
    own = attempts.of(Purpose.SEARCH).of_baseline().last
    if own is not None and own.result.state == AttemptState.COMPLETE:
        own = attempts.of(Purpose.CONFIRM).of_trial(own.trial).recorded().last
    if own is None or own.result.state in (AttemptState.COMPLETE, AttemptState.PRUNED):
        return ""
    return f"{own.result.state}: {own.result.cause}" if own.result.cause else own.result.state


def no_result(attempts: Attempts, study: str) -> Verdict:
    """The verdict when no trial completed, or none that did could be measured again."""
    searched = attempts.searched()
    again = bool(searched.complete())
    judged = attempts.of(Purpose.CONFIRM) if again else searched
    ends = collections.Counter(str(a.result.state) for a in judged)
    text = ", ".join(f"{count} {state}" for state, count in sorted(ends.items())) or "none ran"
    sentence = f"No configuration could be measured{' again' if again else ''} ({text})."
    well = (AttemptState.COMPLETE, AttemptState.PRUNED)
    failed = [a for a in judged if a.result.cause and a.result.state not in well]
    if failed:
        sentence += f" The first cause: {failed[0].result.cause}."
        sentence += too_slow(failed[0].result.state)
    if set(ends) == {AttemptState.OOM}:
        sentence += " Every trial ran out of memory: try smaller micro_batch values."
    elif failed:
        sentence += f" `autotune logs {study} --trial {failed[0].trial}` shows what it printed."
    return Verdict(Kind.NO_RESULT, sentence)


def mean_rate(rates: Sequence[float]) -> Ratio:
    """Geometric mean over rounds with its 95 % interval."""
    return paired_ratio(rates, [1.0] * len(rates))


def _schedule_changes(knobs: Mapping[str, Any], today: Mapping[str, Any]) -> str:
    size = ("micro_batch", "accumulation_steps")
    changed = {
        name: knobs[name]
        for name, knob in CATALOGUE.items()
        if knob.schedule and name not in size and knobs[name] != today[name]
    }
    if not changed:
        return ""
    return (
        f" {difference(changed, {})} changes what is trained: compare how far whole trainings come."
    )


def _numerics(trial: int, checks: GateRecord) -> Numerics | None:
    if trial in checks.passed:
        agreement = checks.passed[trial]
        return Numerics(agreement.loss_distance, agreement.norm_ratio)
    if trial in checks.unchecked:
        return Numerics(unchecked=checks.unchecked[trial])
    return None


def _numerics_sentence(trial: int, names: Sequence[str], checks: GateRecord) -> str:
    if not names:
        return ""
    what = ", ".join(names)
    if trial not in checks.passed:
        return f" {what} can change the loss, which could not be checked: compare a longer run."
    agreed = checks.passed[trial]
    return (
        f" With {what} the loss stays within {agreed.loss_distance:.2%} of fp32 over {agreed.steps} "
        "steps."
    )


def _refusals(checks: GateRecord, today: Mapping[str, Any]) -> str:
    if not checks.refused:
        return ""
    first = checks.refused[0]
    return (
        f" {counted(len(checks.refused), 'trial')} refused: {difference(first.knobs, today)}, as "
        f"{first.reason}."
    )


def _finalist(confirmation: Confirmation, trial: int, chosen: int) -> Finalist:
    rates = confirmation.rates(trial)
    return Finalist(
        trial=trial,
        knobs=confirmation.candidates[trial].knobs,
        baseline=trial == confirmation.baseline,
        rates=tuple(rates),
        ratio_to_recommended=_to_recommended(confirmation, trial, chosen) if rates else None,
        dropped_after_round=confirmation.dropped.get(trial),
    )


def _to_recommended(confirmation: Confirmation, trial: int, chosen: int) -> Ratio:
    """Of the pair that was measured alone by those rounds, as the speed-up is."""
    alone = confirmation.chosen
    if alone is None or not confirmation.measured_alone:
        return confirmation.ratio(trial, chosen)
    if (trial, chosen) == (alone, confirmation.baseline):
        return confirmation.gain(alone)
    if (trial, chosen) == (confirmation.baseline, alone):
        return _inverse(confirmation.gain(alone))
    return confirmation.ratio(trial, chosen)


def _inverse(ratio: Ratio) -> Ratio:
    """How many times faster the second is than the first."""
    return Ratio(1 / ratio.value, 1 / ratio.high, 1 / ratio.low if ratio.low else math.inf)
